"""Walk a path one name at a time from a root, resolving links here and never leaving the roots.

Each name is opened in the directory before it without following a link. `..` returns to the
previous directory, which is still open, so that no link can be swapped in.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from callgate.workspace.opening import DIRECTORY, Directory, Opener
from callgate.workspace.paths import split, wants_directory

MAX_LINKS = 40
"""The kernel's limit. A name that changes during the walk counts as a link."""

Enter = Callable[[bytes], tuple[Directory, bytes]]
"""Target of an absolute link: a root and the remaining path, or OSError(EXDEV)."""

_SWAPPED = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EINVAL)


class Spot:
    """End of a walk: an open directory, and the names that were not entered.

    `remaining` is empty if the path leads to the directory itself, one name for a file in it, and
    more if the path ends early. `status` belongs to the first name, None if it is missing.
    """

    __slots__ = ("fd", "parents", "remaining", "root", "slash", "status")

    def __init__(
        self,
        root: Directory,
        fd: int,
        parents: list[bytes],
        remaining: list[bytes],
        status: os.stat_result | None,
        slash: bool,
    ) -> None:
        self.root = root
        self.fd = fd
        self.parents = parents
        self.remaining = remaining
        self.status = status
        self.slash = slash

    @property
    def walked(self) -> str:
        """The real path of the directory, by the walk."""
        return self.root.prefix + os.fsdecode(b"/".join(self.parents))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.fd != self.root.fd:
            os.close(self.fd)


class _Way:
    """The open directories from a root down to the present position."""

    def __init__(self, root: Directory, opener: Opener) -> None:
        self.opener = opener
        self.root = root
        self.names: list[bytes] = []
        self.fds = [root.fd]

    @property
    def fd(self) -> int:
        return self.fds[-1]

    def down(self, name: bytes) -> None:
        self.fds.append(self.opener.step(self.fd, name, DIRECTORY))
        self.names.append(name)

    def up(self) -> None:
        if not self.names:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        self.names.pop()
        os.close(self.fds.pop())

    def restart(self, root: Directory) -> None:
        self.close()
        self.root, self.names, self.fds = root, [], [root.fd]

    def close(self, keep: int | None = None) -> None:
        for fd in self.fds[1:]:
            if fd != keep:
                os.close(fd)
        del self.fds[1:]


def walk(
    opener: Opener, root: Directory, path: bytes, enter: Enter, *, follow: bool = True
) -> Spot:
    """Return the end of a path, with links resolved; the last one only with `follow`.

    Raises `OSError`: EXDEV if the path leaves the roots, ELOOP after too many links.
    """
    way = _Way(root, opener)
    try:
        remaining, status, slash = _go(way, path, enter, follow)
        spot = Spot(way.root, way.fd, way.names, remaining, status, slash)
    except BaseException:
        way.close()
        raise
    way.close(keep=spot.fd)
    return spot


def _go(
    way: _Way, path: bytes, enter: Enter, follow: bool
) -> tuple[list[bytes], os.stat_result | None, bool]:
    pending = deque(split(path))
    slash = wants_directory(path)
    links = 0
    while pending:
        name = pending.popleft()
        if name == b"..":
            if way.names:
                way.up()
            else:
                _reenter(way.root, pending)
            continue
        status = _status(way.fd, name)
        is_link = status is not None and stat.S_ISLNK(status.st_mode)
        is_directory = status is not None and stat.S_ISDIR(status.st_mode)
        if not is_directory and not (is_link and (follow or pending or slash)):
            return [name, *pending], status, slash
        try:
            if is_directory:
                way.down(name)
                continue
            target = _read_link(way.fd, name)
        except OSError as error:
            if error.errno not in _SWAPPED:
                raise
            target = name  # changed in between: check again
        if (links := links + 1) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not pending:
            slash = slash or wants_directory(target)
        if target.startswith(b"/"):
            entered, target = enter(target)
            way.restart(entered)
        pending.extendleft(reversed(split(target)))
    return [], None, slash


def _reenter(root: Directory, pending: deque[bytes]) -> None:
    """Skip names that lead from above a root straight back into it, such as `../ROOT`.

    Nothing outside is accessed: each name must be the root's own. Raises EXDEV otherwise.
    """
    names, above = root.names_above, 1
    while above:
        name = pending.popleft() if pending else b""
        if name == b".." and above < len(names):
            above += 1
        elif name != b".." and above <= len(names) and name == names[-above]:
            above -= 1
        else:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _status(fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _read_link(fd: int, name: bytes) -> bytes:
    target = os.readlink(name, dir_fd=fd)
    if os.stat(name, dir_fd=fd, follow_symlinks=False).st_size == 0:
        # Created by the kernel, such as /proc/self/root: its text is not its target.
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return target
