"""Which names stand for a secret: `DB_PASSWORD`, `apiKey`, `X-Auth-Token`, `client-key-data`.

A name is cut into words and judged by its last meaningful one, because `password_min_length`
is about passwords and `min_password` is one. Some names only hint (`key`, `auth`, `sig`):
under those a value counts as secret if it also looks like one.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise

from callgate.redaction.values import words


class Weight(IntEnum):
    NONE = 0
    HINT = 1
    """The value is a secret if it looks made by a machine."""
    SECRET = 2
    """The value is a secret whatever it looks like."""


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_SECRET_WORDS = words(
    "password passwd passphrase passcode passwort pwd pass psk secret token apikey otp totp"
    " credential authorization cookie pgpass dbpass userpass rootpass smtppass mailpass"
    " ftppass sshpass passe kennwort contrasena senha mdp pw pin cvv cvc"
)
_SECRET_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "secretkey",
    "accesskey",
    "privatekey",
    "pwd",
    "authkey",
    "encryptionkey",
    "signingkey",
    "passwort",
    "kennwort",
    "keypass",
    "storepass",
    "pincode",
)
_HINT_WORDS = words(
    "auth sig signature hmac jwt bearer sessid sessionid jsessionid phpsessid"
    " tokens secrets passwords credentials keys cookies apikeys"
)
_PLURALS_OF_SECRETS = words("secrets passwords credentials apikeys")

# What stands before `key` when the key opens something ...
_OPENING_KEYS = words(
    "api secret private access encryption encrypt decryption signing sign master auth session"
    " shared ssh hmac aes rsa jwt service account storage admin deploy license subscription"
    " consumer app application client root crypto cipher webhook bot integration ingest"
)
# ... and when it only finds something.
_FINDING_KEYS = words(
    "primary foreign public sort partition cache idempotency index row object composite unique"
    " candidate map lookup translation group search natural surrogate dict json hot short shift"
    " arrow enter tab escape any host known registry routing message dedupe dedup"
)
# Tokens of paging, cancelling and language models, not of access.
_HARMLESS_TOKENS = words(
    "page next cancel cancellation continuation sync pad eos bos unk mask sep cls stop start"
    " special end begin prompt completion total max min num input output cached reasoning per"
    " image text audio first last unexpected expected"
)
# These say in what form or place the secret is, not what else it is about.
_FORMS = words(
    "value val data string plain plaintext raw base64 b64 hex encoded enc prod production dev"
    " development staging stage test live old new current previous prev default main backup"
    " confirm confirmation again repeat header json"
)
# A name that ends so is about a secret and does not hold one.
_ABOUT = words(
    "type types length len min max count name names id ids file files filename path paths dir"
    " directory url uri endpoint expiry expires expiration expired ttl age limit limits usage"
    " policy policies field fields label hint prompt required enabled disabled env var regex"
    " pattern prefix suffix param params parameter format version class manager provider store"
    " service rotation reset changed algorithm alg size bits index at in on by budget cost price"
    " rate used left remaining total exists valid invalid mode scope scopes method methods stdin"
    " table column schema model error errors status state attempts retries ref refs reference"
    " location source sources kind strength rules check checker validator generator helper"
    " function func callback placeholder description title docs md txt example pub public"
    " fingerprint details info page pages form input button screen storage board words word"
    " stroke frame map ring"
)


_SECRET_CODES = words("pin otp totp cvv cvc security verification mfa 2fa sms login access unlock")


@lru_cache(maxsize=4096)
def weigh(name: str) -> Weight:
    """How much a name says that what it holds is a secret."""
    name_words = [part.lower() for part in _WORD.findall(name[-96:].replace("ñ", "n"))]
    while len(name_words) > 1 and (name_words[-1] in _FORMS or name_words[-1].isdigit()):
        name_words.pop()
    if not name_words:
        return Weight.NONE
    last = name_words[-1]
    before = name_words[-2] if len(name_words) > 1 else ""
    if last == "pass" and name.isupper() and not before:
        return Weight.NONE  # a test's verdict
    if last == "token" or last == "tokens":
        if before in _HARMLESS_TOKENS:
            return Weight.NONE
        return Weight.SECRET if last == "token" else Weight.HINT
    if last in _SECRET_WORDS or last.endswith(_SECRET_ENDINGS):
        return Weight.SECRET
    if last == "key":
        return _weigh_key(before)
    if last == "code":
        return Weight.SECRET if before in _SECRET_CODES else Weight.NONE
    if last == "clave":
        return Weight.HINT
    if last in _HINT_WORDS:
        return Weight.HINT
    if last in _ABOUT or last.endswith(("izer", "ize", "ized", "izing")):
        return Weight.NONE
    return Weight.HINT if _mentions_secret(name_words) else Weight.NONE


def _weigh_key(before: str) -> Weight:
    if before in _OPENING_KEYS:
        return Weight.SECRET
    return Weight.NONE if before in _FINDING_KEYS else Weight.HINT


def _mentions_secret(name_words: list[str]) -> bool:
    return any(
        word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in name_words
    ) or any(first in _OPENING_KEYS and second == "key" for first, second in pairwise(name_words))


def holds_many(name: str) -> bool:
    """Whether a name is a plural whose every member is a secret: `secrets`, `auth_tokens`."""
    name_words = _WORD.findall(name[-96:])
    return bool(name_words) and name_words[-1].lower() in _PLURALS_OF_SECRETS


_IDENTIFIERS = words(
    "id ids uuid guid etag digest hash sha md h blake checksum integrity fingerprint commit ref"
    " revision cursor"
)


@lru_cache(maxsize=4096)
def identifies(name: str) -> bool:
    """Whether a name holds an identity or a checksum: random to look at, and no secret."""
    name_words = _WORD.findall(name[-96:])
    while len(name_words) > 1 and name_words[-1].isdigit():
        name_words.pop()
    return bool(name_words) and name_words[-1].lower() in _IDENTIFIERS
