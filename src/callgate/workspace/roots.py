"""A directory with the wall around it, held open."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from callgate.core.sessions import Root
from callgate.workspace.opening import Opener


class Directory:
    """An open root. Its descriptor is closed when the last user lets go of the object, so
    that no thread can find the number closed, or worse reused, in the middle of its work."""

    __slots__ = (
        "_identity",
        "_spellings",
        "fd",
        "names_above",
        "prefix",
        "real",
        "spelled",
        "writable",
    )

    def __init__(self, root: Root, opener: Opener) -> None:
        self.fd = -1
        self.fd, self.real = opener.top(root.path)
        self.writable = root.writable
        self.prefix = self.real.rstrip("/") + "/"
        self._identity = _identity(os.fstat(self.fd))
        self.spelled = os.path.abspath(root.path)
        is_plain = self.spelled == self.real
        self.names_above = tuple(os.fsencode(self.real).split(b"/")[1:]) if is_plain else ()
        """Names from `/` down to it, by which `../NAME` leads back into it; none where its path has
        links, for whoever resolves such a path by its text would be led elsewhere."""
        self._spellings = tuple({os.fsencode(p.rstrip("/")) for p in (self.real, self.spelled)})

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)

    def holds(self, real: str) -> bool:
        return real.startswith(self.prefix) or real == self.real

    def relative(self, real: str) -> str:
        """A real path in this root, seen from it."""
        return real[len(self.prefix) :] or "."

    def spelling(self, path: bytes) -> bytes | None:
        """With which of its known spellings an absolute path enters this root."""
        for spelled in self._spellings:
            if path == spelled or path.startswith(spelled + b"/"):
                return spelled
        return None

    def entered_by(self, names: Sequence[bytes]) -> Sequence[bytes] | None:
        """The rest of the names of an absolute path that goes up and down above this root, along
        the root's own path, until it enters the root; None for any other path."""
        depth = 0
        for count, name in enumerate(names, 1):
            if name == b"..":
                depth = max(depth - 1, 0)
            elif depth < len(self.names_above) and name == self.names_above[depth]:
                depth += 1
            else:
                return None
            if depth == len(self.names_above):
                return names[count:]
        return None

    def is_at(self, fd: int) -> bool:
        return _identity(os.fstat(fd)) == self._identity

    def in_place(self) -> bool:
        """Whether its path still leads to the directory that is open."""
        try:
            return _identity(os.stat(self.real)) == self._identity
        except OSError:
            return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
