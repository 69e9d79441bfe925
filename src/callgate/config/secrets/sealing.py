"""Texts sealed with a key: AES-256-GCM, bound to the name under which each is kept.

    callgate-secret:1:KEY_ID:NONCE:DATA        one line; nonce and data in base64url

The key is any text with enough entropy; HKDF-SHA-256 derives from it the encryption key and,
apart from that, the id, which tells keys from each other and says nothing about them. Version,
id and name are authenticated with the data, so that no part can be exchanged. Pure
but for the nonce.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

PREFIX = "callgate-secret:"
VERSION = 1
SHORTEST = 32
"""Characters of a key: 128 bits in hexadecimal."""
_FEWEST_DISTINCT = 8
_LONGEST = 64 * 1024
_NONCE_BYTES = 12
_SALT = b"callgate secrets 1"


class SecretsError(Exception):
    """Why a secret cannot be read or kept. `str(error)` shows nothing secret."""


class SealingKey:
    """Encrypts and decrypts. It shows its id, and never itself."""

    __slots__ = ("_key", "id")

    def __init__(self, text: str) -> None:
        """Spaces and line ends around it do not count. `ValueError` where it is too weak."""
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
    parts = (str(VERSION), key.id, _encoded(nonce), _encoded(data))
    return PREFIX + ":".join(parts)


def unseal(name: str, sealed: str, keys: Iterable[SealingKey]) -> str:
    """Raises `SecretsError` where none of the keys fits, or a single bit is not as it was."""
    from cryptography.exceptions import InvalidTag  # lazy: as in `seal`  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # lazy: as in `seal`  # noqa: PLC0415

    parts, keys = _parse(name, sealed), tuple(keys)
    key = next((each for each in keys if each.id == parts.key_id), None)
    if key is None:
        known = " and ".join(each.id for each in keys)
        raise SecretsError(
            f"{name} is encrypted with the key {parts.key_id}, and [secrets] "
            + (f"gives {known}" if known else "names no key: set key_env or key_command")
        )
    try:
        data = AESGCM(key.reveal()).decrypt(parts.nonce, parts.data, _bound_to(name, key.id))
        return data.decode()
    except (InvalidTag, UnicodeDecodeError):
        raise _damaged(name) from None


def key_id_of(name: str, sealed: str) -> str:
    """The id of the key that it takes. Raises `SecretsError` where that cannot be told."""
    return _parse(name, sealed).key_id


def _parse(name: str, sealed: str) -> _Sealed:
    version, _, rest = sealed.removeprefix(PREFIX).rstrip("\n").partition(":")
    if version.isascii() and version.isdigit() and int(version[:9]) > VERSION:
        raise SecretsError(f"{name} was encrypted by a newer callgate (format {version[:9]})")
    parts = rest.split(":")
    if version != str(VERSION) or len(parts) != 3:
        raise _damaged(name)
    try:
        nonce, data = (_decoded(each) for each in parts[1:])
    except (ValueError, binascii.Error):
        raise _damaged(name) from None
    if len(nonce) != _NONCE_BYTES or len(parts[0]) != 16 or not parts[0].isalnum():
        raise _damaged(name)
    return _Sealed(parts[0], nonce, data)


def _damaged(name: str) -> SecretsError:
    return SecretsError(
        f"{name} is damaged, or is not what was kept under this name; it is left as it is: restore "
        "it from a backup, or delete it and give the key or log in anew"
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
        raise ValueError("not the one spelling")
    return data
