"""Names and values of secrets: names such as `DB_PASSWORD`, and values that look like one.

A name (`apiKey`, `X-Auth-Token`, `client-key-data`) is split into words and classified by its last
meaningful word, because `password_min_length` is about passwords and `min_password` is a password.
Some names only hint (`key`, `auth`, `sig`): their value is secret if it also looks like a secret.
`looks_random` recognizes the randomness of keys and tokens. `stands_in` recognizes a placeholder, a
variable, a type or a word of prose, which needs no mask.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise

MASK = "[REDACTED]"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLE = 512
_SEPARATORS = b"_-+/=.~%:"
_CLASSES = bytes(
    ord("0")
    if 48 <= code <= 57
    else ord("A")
    if 65 <= code <= 90
    else ord("a")
    if 97 <= code <= 122
    else ord(".")
    for code in range(256)
)
_CHANGES = (b"aA", b"Aa", b"a0", b"0a", b"A0", b"0A")
_HUMPS = re.compile(r"(?:[a-z]{2,}(?![a-z])|[A-Z]{2,}(?![A-Z])|[A-Z](?=[a-z])|[-_.])+")
"""Each run matches in only one way: otherwise a long one would take exponential time."""
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_NO_SECRET = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # UUID
    r"|\d{4}-\d\d-\d\d.*"  # date
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"  # address
    r"|\w+://.*|(?:~|\.{1,2})/.*|[A-Za-z]:\\.*",  # place
    re.DOTALL,
)


def looks_random(text: str) -> bool:
    """Whether a text is as random as a key: many short runs of different characters."""
    if len(text) < 12 or " " in text:
        return False
    sample = text[:_SAMPLE]
    classes = sample.encode("utf-8", "replace").translate(_CLASSES, _SEPARATORS)
    mixed = sum(map(classes.count, _CHANGES))
    letters = len(classes) - classes.count(b".")
    if letters < 12 or letters < 0.7 * len(sample) or mixed < 0.2 * letters:
        return False
    if b"0" not in classes:
        return letters >= 16 and mixed >= 0.35 * letters and not _HUMPS.fullmatch(sample)
    if sample[0] == "/" and mixed < 0.4 * letters:
        return False
    return not _NO_SECRET.fullmatch(sample) and MASK not in sample


def is_dense(text: str) -> bool:
    """Whether a text mixes all three classes well; stricter, for texts without other signs."""
    sample = text[:_SAMPLE]
    classes = sample.encode("utf-8", "replace").translate(_CLASSES, _SEPARATORS)
    digits, upper, lower = map(classes.count, (b"0", b"A", b"a"))
    letters = digits + upper + lower
    if letters < 24 or letters < 0.85 * len(sample) or not digits or upper < 3 or lower < 3:
        return False
    mixed = sum(map(classes.count, _CHANGES))
    if mixed < 0.34 * letters or _HEX.fullmatch(sample):
        return False
    words = classes.count(b"Aa") + classes.count(b"0a") + classes.startswith(b"a")
    return mixed >= 0.52 * letters or lower < 2.7 * words  # CamelCase has words in it


_WORDS = words(
    "none null nil true false yes no on off undefined unset empty missing invalid expired valid ok"
    " required optional string str text bytes int integer number bool boolean object array any"
    " type secretstr changed hidden masked redacted removed omitted filtered present set not is"
    " was are must should has have may can cannot could will for the a an from in and or of to"
    " with your this that it its at by be been incorrect wrong failed denied provided needed"
    " accepted updated reset successfully too only field value policy here see unknown default"
    " inherit include omit same-origin self password secret token key name header query path"
    " cookie body basic bearer digest enabled disabled auto manual always never n/a na tbd todo"
    " example placeholder changeme change_me change-me await async new function return import"
    " lambda x xx n y foo bar baz"
)
"""Placeholders that people and programs write in place of a secret."""
_HOLES = ("${", "$(", "#{", "{", "<", MASK)
"""Beginnings of placeholders in templates, shells and texts."""
_HOLE = re.compile(
    r"\$\w+|\$env:\w+|%\w+%|@\w+@|\[[A-Za-z_ -]*\]?"  # variables, [optional]
    r"|[*•.·…_#-]+|[xX]{3,}|[*•]{3,}.{0,8}"  # already masked
    r"|\d{1,3}|-?\d+\.\d+"
)
_ADVICE = re.compile(
    r"(?:your|insert|enter|replace|change|example|placeholder|dummy|redacted|masked|hidden)"
    r"[a-z_ .-]*",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"[0-9]")
_NAMES_A_SECRET = re.compile("pass|secret|token|key|pwd|auth|cred", re.IGNORECASE)
_REFERENCE = re.compile(r"[&*]?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:!|\Z|[\[(].*)", re.DOTALL)
"""A member, a call or an index in source code."""


def stands_in(value: str, *, quoted: bool) -> bool:
    """Whether a value names, hides or replaces a secret instead of being one."""
    if not value or value.isspace() or value.startswith(_HOLES) or value.lower() in _WORDS:
        return True
    if _HOLE.fullmatch(value) or _ADVICE.fullmatch(value):
        return True
    head = value.partition("(")[0]
    if _DIGIT.search(head):
        return False
    if head.isidentifier() and _NAMES_A_SECRET.search(head):
        return not quoted or value.isupper()
    return not quoted and not value.isidentifier() and _REFERENCE.fullmatch(value) is not None


class Weight(IntEnum):
    NONE = 0
    HINT = 1
    """The value is a secret if it looks made by a machine."""
    SECRET = 2
    """The value is a secret, of any form."""


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

# Words before `key` when the key opens something ...
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
    """Return how strongly a name suggests that its value is a secret."""
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


@lru_cache(maxsize=4096)
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
    """Whether a name denotes an identity or a checksum, which looks random but is not a secret."""
    name_words = _WORD.findall(name[-96:])
    while len(name_words) > 1 and name_words[-1].isdigit():
        name_words.pop()
    return bool(name_words) and name_words[-1].lower() in _IDENTIFIERS
