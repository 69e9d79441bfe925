"""The key of the log. Arguments are hashed with it, so that a short secret cannot be guessed from
the hash; lines that say which files were dropped are signed with it.

It lies in a file beside the log, so that a line waits for nothing, and in the store, so that
several servers share it; where they differ, the store's counts. Whoever has both the key and a
guess can check the guess: the log alone, copied elsewhere, tells nobody.
"""

from __future__ import annotations

import os
import secrets
import stat
from hashlib import blake2b

NAME = "audit"
"""Of the key in the store."""
_PREFIX = "keyed:"
"""What hashes of older lines, which are plain SHA-256, do not begin with."""
_SIZE = 32


def keyed_hash(key: bytes, sha256: str) -> str:
    """For the log: of arguments by their SHA-256."""
    return _PREFIX + blake2b(sha256.encode(), key=key, digest_size=_SIZE).hexdigest()


def drop_signature(key: bytes, chain: str, n: int, kept_from: int, dropped_last: str) -> str:
    """Of the line of a chain that says which files were dropped."""
    text = f"drop {chain} {n} {kept_from} {dropped_last}"
    return blake2b(text.encode(), key=key, digest_size=_SIZE).hexdigest()


def is_keyed(hash: str) -> bool:
    return hash.startswith(_PREFIX)


def key_path(log: str) -> str:
    return log.removesuffix(".jsonl") + ".key"


def read_key(log: str) -> bytes | None:
    """The key beside a log, if there is one."""
    try:
        descriptor = os.open(key_path(log), os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
        with open(descriptor, encoding="ascii") as file:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return parse_key(file.read(2 * _SIZE)) if is_file else None
    except (OSError, ValueError):
        return None


def parse_key(text: str | None) -> bytes | None:
    """A key as the file and the store have it; None for what is none."""
    try:
        key = bytes.fromhex(text or "")
    except ValueError:
        return None
    return key if len(key) == _SIZE else None


def make_key(log: str) -> bytes:
    """The key beside a log, made if there is none; where that is not possible, one for now."""
    key = read_key(log)
    if key is None:
        key = secrets.token_bytes(_SIZE)
        try:
            save_key(log, key, anew=False)
        except FileExistsError:  # another process was first
            return read_key(log) or key
        except OSError:
            pass
    return key


def save_key(log: str, key: bytes, *, anew: bool = True) -> None:
    """Write the key beside a log. `FileExistsError` if one is there that may not be replaced."""
    path = key_path(log)
    temporary = f"{path}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.write(descriptor, key.hex().encode())
        finally:
            os.close(descriptor)
        if anew:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
