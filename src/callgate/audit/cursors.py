"""How far somebody has read the audit logs, in a file of its own that one process holds at a time.

What is written here was accepted by whoever is given the records. A crash before that repeats them,
and never leaves one out.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping

import msgspec

from callgate.audit.forward import Place
from callgate.core.directories import make_private_directory, write_private_synced
from callgate.core.disk.file_locks import try_lock

_LONGEST = 1024 * 1024


class CursorHeld(Exception):
    """Another process goes by this cursor."""


class CursorUnreadable(Exception):
    """The file of a cursor says nothing that we wrote."""


class Positions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    for_: str = msgspec.field(name="for", default="")
    """Whose they are: another target, or another format, has a cursor of its own."""
    logs: Mapping[str, Place] = {}
    """By the path of the log."""
    output_inode: int = 0
    output_size: int = 0
    """Of a file that the records are appended to: how much of it was written for certain."""


class Cursor:
    """The file, held until it is closed. `CursorHeld`, `CursorUnreadable`, `OSError`."""

    def __init__(self, path: str, owner: str) -> None:
        """`owner`: see `Positions.for_`."""
        self.path = path
        make_private_directory(os.path.dirname(os.path.abspath(path)))
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(f"{path}.lock", flags, 0o600)
        try:
            is_free = try_lock(self._lock, fcntl.LOCK_EX)
        except OSError:
            os.close(self._lock)
            raise
        if not is_free:
            os.close(self._lock)
            raise CursorHeld(f"another process goes by the cursor {path}")
        try:
            self.is_new, self.positions = self._read(owner)
        except BaseException:
            self.close()
            raise

    def _read(self, owner: str) -> tuple[bool, Positions]:
        try:
            with open(self.path, "rb") as file:
                data = file.read(_LONGEST)
        except FileNotFoundError:
            return True, Positions(for_=owner)
        try:
            found = msgspec.json.decode(data, type=Positions)
        except (ValueError, RecursionError):
            raise CursorUnreadable(f"{self.path} is no cursor of ours") from None
        if found.for_ != owner:
            raise CursorUnreadable(f"{self.path} is the cursor of {found.for_!r}, not of {owner!r}")
        return False, found

    def advance(self, positions: Positions) -> None:
        """Keep these from now on, after a power cut too."""
        write_private_synced(self.path, msgspec.json.encode(positions).decode())
        self.positions = positions

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)
