"""Key of the log. Arguments are hashed with it, so that a short secret cannot be guessed from its
hash. Lines that name deleted log files are signed with it.

The key is in a file next to the log, so that no line waits for it. Servers that share a store have
one key, encrypted in the store (`config.secret_opening`). A server that gets another key from
the store retains the earlier ones in its file, because older lines are signed with them. A reader
of the log who also has the key can check a guess; the log alone is not enough.
"""

from __future__ import annotations

import os
import secrets
import stat
from hashlib import blake2b

_PREFIX = "keyed:"
"""Prefix that distinguishes keyed hashes from those of older lines, which are plain SHA-256."""
_SIZE = 32
_MOST_KEYS = 8
"""Keys in the file, the current one first."""


def keyed_hash(key: bytes, sha256: str) -> str:
    """Return the hash of arguments for the log, from their SHA-256."""
    return _PREFIX + blake2b(sha256.encode(), key=key, digest_size=_SIZE).hexdigest()


def drop_signature(key: bytes, chain: str, n: int, kept_from: int, dropped_last: str) -> str:
    """Return the signature of a line that names deleted log files."""
    text = f"drop {chain} {n} {kept_from} {dropped_last}"
    return blake2b(text.encode(), key=key, digest_size=_SIZE).hexdigest()


def is_keyed(hash: str) -> bool:
    return hash.startswith(_PREFIX)


def key_path(log: str) -> str:
    return log.removesuffix(".jsonl") + ".key"


def read_key(log: str) -> bytes | None:
    """Return the current key next to a log, if there is one."""
    return next(iter(read_keys(log)), None)


def read_keys(log: str) -> tuple[bytes, ...]:
    """Return the keys next to a log: the current one, then those that signed older lines."""
    try:
        descriptor = os.open(key_path(log), os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
        with open(descriptor, encoding="ascii") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ()
            lines = file.read(_MOST_KEYS * (2 * _SIZE + 1)).split("\n")
    except (OSError, ValueError):
        return ()
    first = parse_key(lines[0][: 2 * _SIZE])
    if first is None:
        return ()
    return (first, *(key for line in lines[1:] if (key := parse_key(line)) is not None))


def parse_key(text: str | None) -> bytes | None:
    """Decode a key; None if the text is not one."""
    try:
        key = bytes.fromhex(text or "")
    except ValueError:
        return None
    return key if len(key) == _SIZE else None


def make_key(log: str) -> bytes:
    """Return the key next to a log, and create a missing one; if that fails, a temporary key."""
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
    """Write the key next to a log, before the keys that are there. `FileExistsError` if one is
    there that may not be replaced."""
    path = key_path(log)
    earlier = [each for each in read_keys(log) if each != key] if anew else []
    text = "\n".join(each.hex() for each in [key, *earlier][:_MOST_KEYS])
    temporary = f"{path}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
        if anew:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
