"""Workspace boundary: the only way from path text to an open descriptor inside the workspace.

    path -> checked text -> root and rest -> opened beneath the root -> real path -> caller

A relative path starts at the workspace, an absolute one must start with a root; a link may lead
anywhere inside the roots. The real path is read from the open file, so that links, other spellings
and concurrent replacement cannot evade a rule about paths.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from callgate.core.errors import ToolError
from callgate.core.sessions import ResolvedPath, Root
from callgate.workspace import refusals
from callgate.workspace.opening import DIRECTORY, LOOK, UNDECIDED, Directory, Opener, Spot, walk
from callgate.workspace.paths import encode, sayable, split, wants_directory
from callgate.workspace.protected import is_protected

_SLASH = ord("/")
_NO_NAMES = (b"", b".", b"..")
_ATTEMPTS = 4
"""Maximum replacements of a root during one operation."""
_DEEPEST_SPELLING = 64
"""Maximum number of names of an absolute path before the root."""


class Opened(NamedTuple):
    fd: int
    real: str
    root: Directory


class Wall:
    """The roots of a session; the first one is its workspace."""

    def __init__(self, roots: Sequence[Root], opener: Opener) -> None:
        self.opener = opener
        self._roots = tuple(roots)
        self._directories: list[Directory | None] = [None] * len(self._roots)

    @property
    def workspace(self) -> Directory:
        return self._directories[0] or self._directory(0)

    def open(self, path: str, flags: int) -> Opened:
        """Open the target of a path. The caller closes the descriptor."""
        for _ in range(_ATTEMPTS):
            root, remaining = self._enter(path)
            try:
                fd = self.opener.beneath(root.fd, remaining, flags)
            except OSError as error:
                if error.errno in UNDECIDED:
                    return self._open_walked(path, flags)
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    if self._renew(root):
                        continue
                    raise self.absent(path) from error
                raise refusals.of(error, path) from error
            real = self._real(fd, "", path)
            if root.holds(real):
                return Opened(fd, real, root)
            os.close(fd)
            if not self._renew(root):
                break
        raise refusals.escape(path)

    def locate(self, path: str) -> ResolvedPath:
        """Resolve a path. Raises if it leaves the roots or is invalid, not if it is missing."""
        root, remaining = self._enter(path)
        try:
            fd = self.opener.beneath(root.fd, remaining, LOOK)
        except FileNotFoundError:
            return self._locate_new(path, root, remaining) or self._locate_walked(path)
        except OSError:
            return self._locate_walked(path)
        real = self._real(fd, "", path)
        os.close(fd)
        if not root.holds(real):
            return self._locate_walked(path)
        return _resolved(path, remaining, root, root.relative(real), exists=True)

    def resolved(self, real: str) -> ResolvedPath:
        """Describe a real path that was opened here, without access to the disk."""
        root = self._holding(real)
        relative = root.relative(real)
        return _resolved(real, os.fsencode(relative), root, relative, exists=True)

    def spelled(self, resolved: ResolvedPath) -> str:
        """Return the absolute path of a location, with its root in the user's spelling."""
        spellings = (root.spelled for root in self._all() if sayable(root.real) == resolved.root)
        root = sayable(next(spellings, resolved.root))
        return root if resolved.relative == "." else f"{root.rstrip('/')}/{resolved.relative}"

    def spot(self, path: str, *, follow: bool = True) -> Spot:
        """Return the directory that contains, or would contain, the target of a path."""
        root, remaining = self._enter(path)
        if self._renew(root):
            root, remaining = self._enter(path)
        with refusals.answering(path):
            return walk(self.opener, root, remaining, self._enter_link, follow=follow)

    def spot_of(self, real: str) -> Spot:
        """Return the spot of a former real path. Refused if a link is on the way now."""
        root = self._holding(real)
        if self._renew(root):
            root = self._holding(real)
        path, remaining = sayable(real), os.fsencode(root.relative(real))
        with refusals.answering(path):
            spot = walk(self.opener, root, remaining, self._enter_link, follow=False)
        if spot.root is not root or [*spot.parents, *spot.remaining] != split(remaining):
            spot.__exit__(None, None, None)
            raise refusals.changed(path)
        return spot

    def root_of(self, real: str) -> Directory:
        """Return the root that contains a real path, which may be missing now."""
        return self._holding(real)

    def _holding(self, real: str) -> Directory:
        holding = [root for root in self._all() if root.holds(real)]
        if not holding:
            raise refusals.escape(real)
        return max(holding, key=lambda root: len(root.prefix))

    def real(self, spot: Spot, path: str) -> str:
        """Return the real path of a spot's target, existing or not."""
        real = self.opener.real(spot.fd, spot.walked)
        if spot.remaining:
            real = f"{real.rstrip('/')}/{os.fsdecode(b'/'.join(spot.remaining))}"
        if spot.status is not None:
            real = self._named(spot, real)
        if not spot.root.holds(real):
            raise refusals.escape(path)
        return real

    def _named(self, spot: Spot, walked: str) -> str:
        """Return the path of an existing file in the case of the file system."""
        try:
            fd = self.opener.step(spot.fd, spot.remaining[0], LOOK)
        except OSError:
            return walked  # gone, or a link that this system cannot open
        try:
            return self.opener.real(fd, walked)
        finally:
            os.close(fd)

    def absent(self, path: str) -> ToolError:
        """Return the error for a missing path; outside the roots it is still an escape."""
        if ".." in path:
            try:
                self._locate_walked(path)
            except ToolError as error:
                return error
        return refusals.missing(path)

    def _real(self, fd: int, walked: str, path: str) -> str:
        """Return the real path of an open file; close the descriptor if there is none."""
        try:
            return self.opener.real(fd, walked)
        except OSError as error:
            os.close(fd)
            raise refusals.of(error, path) from error

    def _open_walked(self, path: str, flags: int) -> Opened:
        with self.spot(path) as spot:
            if len(spot.remaining) > 1 or (spot.remaining and (spot.status is None or spot.slash)):
                raise self.absent(path)
            with refusals.answering(path):
                fd = self.opener.step(spot.fd, spot.remaining[0] if spot.remaining else b".", flags)
            walked = os.fsdecode(b"/".join([*spot.parents, *spot.remaining]))
            real = self._real(fd, (spot.root.prefix + walked).rstrip("/") or "/", path)
            if spot.root.holds(real):
                return Opened(fd, real, spot.root)
            os.close(fd)
            raise refusals.escape(path)

    def _locate_new(self, path: str, root: Directory, remaining: bytes) -> ResolvedPath | None:
        """Resolve a missing file in the common case: only its name is missing, without links."""
        parent, _, name = remaining.rpartition(b"/")
        if name in _NO_NAMES:
            return None
        try:
            fd = self.opener.beneath(root.fd, parent or b".", DIRECTORY)
        except OSError:
            return None
        try:
            real = f"{self.opener.real(fd, '')}/{name.decode()}"
            if os.access(name, os.F_OK, dir_fd=fd, follow_symlinks=False):
                return None
        finally:
            os.close(fd)
        if not root.holds(real) or not root.in_place():
            return None
        return _resolved(path, remaining, root, root.relative(real), exists=False)

    def _locate_walked(self, path: str) -> ResolvedPath:
        with self.spot(path) as spot, refusals.answering(path):
            base = spot.root.relative(self.opener.real(spot.fd, spot.walked))
            names = [] if base == "." else base.split("/")
            for name in map(os.fsdecode, spot.remaining):
                if name != "..":
                    names.append(name)
                elif names:
                    names.pop()
                else:
                    raise refusals.escape(path)
            whole = len(spot.remaining) == 1 and spot.status is not None and not spot.slash
            return _resolved(
                path,
                self._enter(path)[1],
                spot.root,
                "/".join(names) or ".",
                exists=whole or not spot.remaining,
            )

    def _enter(self, path: str) -> tuple[Directory, bytes]:
        text = encode(path)
        if text[0] != _SLASH:
            return self.workspace, text
        try:
            return self._enter_link(text)
        except OSError as error:
            raise refusals.of(error, path) from error

    def _enter_link(self, absolute: bytes) -> tuple[Directory, bytes]:
        """Return the root that an absolute path enters, and the rest. Raises EXDEV if none."""
        names = split(absolute)
        flat = b"/" + b"/".join(names)
        found: tuple[int, Directory, bytes] | None = None
        for root in self._all():
            spelled = root.spelling(flat)
            if spelled is not None and (found is None or len(spelled) > found[0]):
                found = len(spelled), root, flat[len(spelled) + 1 :]
        if found is None:
            found = (0, *self._enter_otherwise(names))
        remaining = found[2] + (b"/" if wants_directory(absolute) else b"")
        return found[1], remaining.lstrip(b"/") or b"."

    def _enter_otherwise(self, names: list[bytes]) -> tuple[Directory, bytes]:
        """Find a root with another spelling: with `..`, through links or in another case. Roots are
        compared by identity."""
        for root in self._all():
            if (remaining := root.entered_by(names)) is not None:
                return root, b"/".join(remaining)
        top = Directory(Root("/"), self.opener)
        limit = names.index(b"..") if b".." in names else len(names)
        for count in range(1, min(limit, _DEEPEST_SPELLING) + 1):
            prefix = b"/".join(names[:count])
            with walk(self.opener, top, prefix, lambda target: (top, target)) as spot:
                if spot.remaining:
                    break
                for root in self._all():
                    if root.is_at(spot.fd):
                        return root, b"/".join(names[count:])
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def _all(self) -> list[Directory]:
        """Return every existing root; the workspace must exist."""
        directories = [self.workspace]
        for index in range(1, len(self._roots)):
            if self._is_inside_another(index):
                continue
            try:
                directories.append(self._directories[index] or self._directory(index))
            except ToolError:
                continue
        return directories

    def _is_inside_another(self, index: int) -> bool:
        """Whether a root is inside another writable root, and is therefore opened through that one.

        Otherwise it would be no boundary: a program that works in the other could replace it with
        a link.
        """
        path = os.path.abspath(self._roots[index].path)
        if self.workspace.spelling(os.fsencode(path)) is not None:
            return True
        return any(
            outer.writable and path.startswith(os.path.abspath(outer.path).rstrip("/") + "/")
            for outer in self._roots[1:]
        )

    def _directory(self, index: int) -> Directory:
        try:
            directory = Directory(self._roots[index], self.opener)
        except OSError as error:
            raise refusals.workspace_missing() from error
        self._directories[index] = directory
        return directory

    def _renew(self, root: Directory) -> bool:
        """Reopen a root if another directory replaced it. Returns whether that was so."""
        if root.in_place():
            return False
        for index, directory in enumerate(self._directories):
            if directory is root:
                self._directory(index)
        return True


def _resolved(
    path: str, remaining: bytes, root: Directory, relative: str, *, exists: bool
) -> ResolvedPath:
    return ResolvedPath(
        given=path,
        real=sayable(root.real if relative == "." else root.prefix + relative),
        root=sayable(root.real),
        relative=sayable(relative),
        exists=exists,
        protected=is_protected(relative)
        or (path != relative and is_protected(os.fsdecode(remaining))),
        writable=root.writable,
    )
