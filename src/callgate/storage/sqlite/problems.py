"""SQLite's errors in the store's own words."""

from __future__ import annotations

import errno

import apsw
import msgspec

from callgate.core.stores import (
    StoreDamaged,
    StoreError,
    StoreUnreadable,
    StoreUnwritable,
    Trouble,
)

DAMAGE = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    UnicodeDecodeError,  # text of the file that is no text any more
    msgspec.DecodeError,  # a value of the file that is none any more
)

_TROUBLES: tuple[tuple[type[apsw.Error], Trouble], ...] = (
    (apsw.FullError, Trouble.FULL),
    (apsw.ReadOnlyError, Trouble.READ_ONLY),
    (apsw.BusyError, Trouble.BUSY),
    (apsw.LockedError, Trouble.BUSY),
    (apsw.ProtocolError, Trouble.BUSY),
    (apsw.CantOpenError, Trouble.NO_ACCESS),
    (apsw.PermissionsError, Trouble.NO_ACCESS),
    (apsw.AuthError, Trouble.NO_ACCESS),
    (apsw.IOError, Trouble.IO),
    (apsw.NoMemError, Trouble.IO),
    (apsw.NoLFSError, Trouble.IO),
)

TROUBLE = tuple(kind for kind, _ in _TROUBLES)
"""What the disk does to us; anything else is a mistake of ours."""


def from_system(error: OSError) -> apsw.Error:
    """An error of our own system calls, as SQLite would report it."""
    if error.errno == errno.EROFS:
        return apsw.ReadOnlyError(error.strerror)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return apsw.FullError(error.strerror)
    if error.errno == errno.EIO:
        return apsw.IOError(error.strerror)
    return apsw.CantOpenError(error.strerror)


def unwritable(path: str, error: Exception) -> StoreError:
    return _named(path, error, StoreUnwritable)


def unreadable(path: str, error: Exception) -> StoreError:
    return _named(path, error, StoreUnreadable)


def _named(
    path: str, error: Exception, kind: type[StoreUnwritable | StoreUnreadable]
) -> StoreError:
    if isinstance(error, DAMAGE):
        return StoreDamaged(path)
    for raised, trouble in _TROUBLES:
        if isinstance(error, raised):
            return kind(path, trouble)
    return kind(path, Trouble.IO)
