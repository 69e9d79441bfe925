"""Random keys that the servers of one store have in common.

    SERVERS   signs the requests that one server carries to another
    ACCESS    signs tokens, cookies and login links
    AUDIT     hashes arguments in the audit logs

Servers with a shared store keep each key as an entry of kind `secret`, encrypted with the key of
`[secrets]` and bound to its name: a role that can read the database, or exchange rows in it, gets
none of them. Servers of one home keep them as they keep all secrets, in files of the home. The
first process that needs a key makes it; `callgate keys rotate` encrypts them again with the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.schema import Settings
from callgate.config.secrets.key_ring import find_keys
from callgate.config.secrets.opening import open_secrets
from callgate.config.secrets.sealing import SecretsError
from callgate.config.secrets.secrets import Secrets
from callgate.config.secrets.shared_entries import KIND, text_of
from callgate.core.ops import PutEntry
from callgate.core.stores import Store, StoreMisconfigured

SERVERS = "servers-key.json"
ACCESS = "access-key.json"
AUDIT = "audit-key.json"
_BYTES = 32

FindKey = Callable[[Store], Awaitable[bytes]]


class _Value(msgspec.Struct):
    """The secret as it is encrypted; an object, as all secrets are."""

    key: str


def require_key(settings: Settings, environ: Mapping[str, str]) -> None:
    """Refuse settings with a shared store and no key for what is secret in it. Raises
    `SettingsError`."""
    try:
        ring = find_keys(settings.secrets, environ)
    except SecretsError as error:
        raise SettingsError("[secrets]", None, str(error)) from None
    if ring.current is None:
        raise SettingsError(
            "[store]",
            None,
            "a shared store needs a key that encrypts the secrets in it, the same on every server. "
            "Make one with `openssl rand -base64 32`, put it into a variable such as "
            'CALLGATE_SECRETS_KEY, and set [secrets] key_env = "CALLGATE_SECRETS_KEY"',
        )


def key_finder(home: Home, name: str, offered: Callable[[], bytes] | None = None) -> FindKey:
    """Return the function that finds a key in a store, and makes it there if it is missing.

    `offered` gives the value of a key that is made. The function raises `StoreError`, also where
    the key of `[secrets]` is missing or another one.
    """

    async def find(store: Store) -> bytes:
        try:
            kept = open_secrets(home)
            value = (offered or _random)()
            if kept.store.always_sealed:
                return await _from_entries(store, kept, name, value)
            return _from_files(kept, name, value)
        except SecretsError as error:
            raise StoreMisconfigured(str(error)) from None

    return find


async def known_key(home: Home, name: str, store: Store) -> bytes | None:
    """Return a key of a shared store, if there is one. Raises `SecretsError`."""
    kept = open_secrets(home)
    for entry in await store.entries(KIND):
        if entry.name == name:
            return _decode(kept.opened(name, text_of(entry)), name)
    return None


async def _from_entries(store: Store, kept: Secrets, name: str, value: bytes) -> bytes:
    found = next((each for each in await store.entries(KIND) if each.name == name), None)
    if found is None:
        text = msgspec.json.encode(kept.sealed(name, _encode(value))).decode()
        (receipt,) = await store.commit(PutEntry(kind=KIND, name=name, value=text, expected=0))
        found = receipt.entry
    assert found is not None
    return _decode(kept.opened(name, text_of(found)), name)


def _from_files(kept: Secrets, name: str, value: bytes) -> bytes:
    known = kept.read(name)
    if known is None:
        kept.update(name, lambda text: _encode(value) if text is None else text)
        known = kept.read(name)
    return _decode(known or "", name)


def _random() -> bytes:
    return secrets.token_bytes(_BYTES)


def _encode(key: bytes) -> str:
    return msgspec.json.encode(_Value(key=key.hex())).decode()


def _decode(text: str, name: str) -> bytes:
    try:
        key = bytes.fromhex(msgspec.json.decode(text, type=_Value).key)
    except (ValueError, RecursionError):
        key = b""
    if len(key) != _BYTES:
        raise SecretsError(f"{name} is not a key that callgate wrote: delete it")
    return key
