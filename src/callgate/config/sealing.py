"""Encrypted texts (AES-256-GCM, bound to the secret's name), and the port of their stores.

    callgate-secret:1:KEY_ID:NONCE:DATA        one line; nonce and data in base64url

The key is any text with enough entropy; HKDF-SHA-256 derives the encryption key and, independently,
the id, which distinguishes keys and reveals nothing about them. Version, id and name are
authenticated with the data, so no part can be replaced.

A name is a path below the home, such as `keys.json` or `mcp/web.tokens`, in every store.
`home_files` and `shared_entries` implement the port; all raise `SecretsError`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple, NoReturn, Protocol

PREFIX = "callgate-secret:"
VERSION = 1
SHORTEST = 32
"""Minimum characters of a key: 128 bits in hexadecimal."""
_FEWEST_DISTINCT = 8
_LONGEST = 64 * 1024
_NONCE_BYTES = 12
_SALT = b"callgate secrets 1"


class SecretsError(Exception):
    """A secret cannot be read or stored. `str(error)` contains no secret."""


class SealingKey:
    """An encryption key, which shows only its id."""

    __slots__ = ("_key", "id")

    def __init__(self, text: str) -> None:
        """Strip surrounding white space. Raises `ValueError` if the key is too weak."""
        text = text.strip()
        if len(text) < SHORTEST or len(set(text)) < _FEWEST_DISTINCT:
            raise ValueError(
                f"is too weak for a key: it takes at least {SHORTEST} characters that are hard to "
                "guess, such as `openssl rand -base64 32` prints"
            )
        if len(text) > _LONGEST:
            raise ValueError(f"is too long for a key: at most {_LONGEST} characters")
        root = hmac.digest(_SALT, text.encode("utf-8", "surrogateescape"), hashlib.sha256)
        self._key = _expand(root, b"encryption")
        self.id = _expand(root, b"id")[:8].hex()

    def reveal(self) -> bytes:
        return self._key

    def __repr__(self) -> str:
        return f"SealingKey({self.id})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not written down")


class _Sealed(NamedTuple):
    key_id: str
    nonce: bytes
    data: bytes


def is_sealed(text: str) -> bool:
    return text.startswith(PREFIX)


def seal(name: str, text: str, key: SealingKey) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # lazy: heavy  # noqa: PLC0415

    nonce = os.urandom(_NONCE_BYTES)
    data = AESGCM(key.reveal()).encrypt(nonce, text.encode(), _bound_to(name, key.id))
    fields = (str(VERSION), key.id, _encoded(nonce), _encoded(data))
    return PREFIX + ":".join(fields)


def unseal(name: str, sealed: str, keys: Iterable[SealingKey]) -> str:
    """Decrypt a text. Raises `SecretsError` if no key fits or the text was changed."""
    from cryptography.exceptions import InvalidTag  # lazy: as in `seal`  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # lazy: as in `seal`  # noqa: PLC0415

    content, keys = _parse(name, sealed), tuple(keys)
    key = next((each for each in keys if each.id == content.key_id), None)
    if key is None:
        known = " and ".join(each.id for each in keys)
        raise SecretsError(
            f"{name} is encrypted with the key {content.key_id}, and [secrets] "
            + (f"has {known}" if known else "names no key: set key_env or key_command")
        )
    try:
        data = AESGCM(key.reveal()).decrypt(content.nonce, content.data, _bound_to(name, key.id))
        return data.decode()
    except (InvalidTag, UnicodeDecodeError):
        raise _damaged(name) from None


def key_id_of(name: str, sealed: str) -> str:
    """Return the id of the key of a text. Raises `SecretsError` if the text is damaged."""
    return _parse(name, sealed).key_id


def _parse(name: str, sealed: str) -> _Sealed:
    version, _, body = sealed.removeprefix(PREFIX).rstrip("\n").partition(":")
    if version.isascii() and version.isdigit() and int(version[:9]) > VERSION:
        raise SecretsError(f"{name} was encrypted by a newer callgate (format {version[:9]})")
    fields = body.split(":")
    if version != str(VERSION) or len(fields) != 3:
        raise _damaged(name)
    try:
        nonce, data = (_decoded(each) for each in fields[1:])
    except (ValueError, binascii.Error):
        raise _damaged(name) from None
    if len(nonce) != _NONCE_BYTES or len(fields[0]) != 16 or not fields[0].isalnum():
        raise _damaged(name)
    return _Sealed(fields[0], nonce, data)


def _damaged(name: str) -> SecretsError:
    return SecretsError(
        f"{name} is damaged, or was encrypted under another name, and was not changed. Restore "
        "it from a backup, or delete it and enter the key or log in again"
    )


def _bound_to(name: str, key_id: str) -> bytes:
    return f"{PREFIX}{VERSION}:{key_id}:{name}".encode()


def _expand(root: bytes, purpose: bytes) -> bytes:
    """One block of HKDF's second step (RFC 5869)."""
    return hmac.digest(root, purpose + b"\x01", hashlib.sha256)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    if _encoded(data) != text:
        raise ValueError("not in canonical form")
    return data


Change = Callable[[str | None], str | None]
"""Maps the present text (None: there is none) to the new one (None: delete it).

It may be called several times if others write concurrently. Its exceptions are passed on, and then
nothing is changed.
"""


CLAIM_S = 15.0
"""Maximum duration of a claim; after that others do not wait for it."""


class SecretStore(Protocol):
    always_sealed: ClassVar[bool]
    """Whether the store contains only encrypted texts."""

    def names(self) -> Sequence[str]:
        """The names of all secrets, sorted."""
        ...

    def get(self, name: str) -> str | None: ...

    def mark(self, name: str) -> object:
        """Return a value that differs after each change, for caches; None: no such secret."""
        ...

    def update(self, name: str, change: Change) -> None:
        """Read, change and write without losing concurrent writes."""
        ...

    def drop(self, name: str) -> None:
        """Remove a secret, readable or not. Idempotent."""
        ...

    def refresh(self) -> None:
        """Make the next read see all earlier writes."""
        ...

    def claim(self, name: str) -> None:
        """Wait until no other process renews a login with this secret, at most for `CLAIM_S`."""
        ...

    def release(self, name: str) -> None: ...

    def where(self, name: str) -> str:
        """Return the location for a message."""
        ...
