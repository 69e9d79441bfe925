"""Read and restore the states of single paths, through the workspace boundary.

A path in the history was real when it was recorded. Restoring walks it again name by name, and
refuses it if a link is on the way now, because the link would lead elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from hashlib import sha256

from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.noting import Changed, Standing, change, look, made_directories, sync_names
from callgate.workspace.opening import READ, Spot
from callgate.workspace.paths import sayable
from callgate.workspace.undo.records import PIPE, State, digest_of, is_same, node_of

_PERMISSIONS = 0o777


def state_of(files: WorkspaceFileAPI, real: str, *, hashed: bool = True) -> State | None:
    """Return the present state of a real path, checked for reading; None if it does not exist.
    `hashed`: with the hash of a file's content."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        if spot.remaining and spot.status is None:
            return None
        if len(spot.remaining) > 1:
            raise refusals.changed(path)  # a parent is no directory any more
        files.judge(files.wall.real(spot, path), "read", spot.root, path)
        if not spot.remaining:
            facts = os.fstat(spot.fd)
            return State(
                "directory",
                stat.S_IMODE(facts.st_mode),
                node=node_of("directory", facts.st_dev, facts.st_ino),
            )
        return _state(files, spot, hashed=hashed)


def _state(files: WorkspaceFileAPI, spot: Spot, *, hashed: bool = True) -> State | None:
    found = look(files.wall.opener, spot.fd, spot.remaining[0], limit=0)
    if found is None:
        return None
    digest = None
    if found.kind == "link" and found.content is not None:
        digest = sha256(found.content).hexdigest()
    elif found.kind == "file" and hashed:
        fd = files.wall.opener.step(spot.fd, spot.remaining[0], READ)
        try:
            digest = digest_of(fd)
        finally:
            os.close(fd)
    node, mtime = None, 0
    if found.version is not None:
        device, number, _, mtime = found.version
        node = node_of(found.kind, device, number)
    target = None
    if found.kind == "other":
        facts = os.stat(spot.remaining[0], dir_fd=spot.fd, follow_symlinks=False)
        target = PIPE if stat.S_ISFIFO(facts.st_mode) else None
    return State(
        found.kind, found.mode, found.size, digest, node=node, mtime_ns=mtime, target=target
    )


def content_of(files: WorkspaceFileAPI, real: str, limit: int) -> bytes | None:
    """Return the content of a file or the target of a link; None if it is neither, or larger."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        if len(spot.remaining) != 1 or spot.status is None:
            return None
        files.judge(files.wall.real(spot, path), "read", spot.root, path)
        found = look(files.wall.opener, spot.fd, spot.remaining[0], limit)
        return None if found is None else found.content


def judge_change(files: WorkspaceFileAPI, real: str) -> None:
    """Raise the refusal of a change to a real path, if there is one."""
    with files.wall.spot_of(real) as spot, refusals.answering(sayable(real)):
        files.judge_change(spot, sayable(real))


def put_file(
    files: WorkspaceFileAPI, real: str, content: bytes, mode: int, now: State | None
) -> None:
    """Put a file in place of the state `now`, and of no other state."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot:
        files.replace(spot, path, content, _settled(files, spot, path, now), mode)


def _settled(
    files: WorkspaceFileAPI, spot: Spot, path: str, now: State | None
) -> os.stat_result | None:
    """Return the status of a spot's target, if its state is the expected one."""
    with refusals.answering(path):
        there = len(spot.remaining) == 1 and spot.status is not None
        if not is_same(_state(files, spot) if there else None, now):
            raise refusals.changed(path)
    return spot.status


def put_link(files: WorkspaceFileAPI, real: str, target: bytes) -> None:
    """Create a link at a free name. Its target is checked at each use."""

    def make(fd: int, name: bytes) -> None:
        os.symlink(target, name, dir_fd=fd)

    _make(files, real, make, Standing("link", 0o777, len(target), target))


def put_directory(files: WorkspaceFileAPI, real: str, mode: int) -> None:
    """Create a directory at a free name."""

    def make(fd: int, name: bytes) -> None:
        os.mkdir(name, mode & _PERMISSIONS, dir_fd=fd)

    _make(files, real, make, Standing("directory", mode & _PERMISSIONS, 0))


def _make(
    files: WorkspaceFileAPI,
    real: str,
    make: Callable[[int, bytes], None],
    after: Standing,
) -> None:
    path, opener = sayable(real), files.wall.opener
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        if spot.status is not None or not spot.remaining:
            raise refusals.changed(path)
        _, note = files.judge_change(spot, path)
        *parents, name = spot.remaining
        with made_directories(opener, spot.fd, parents, note, synced=files.synced) as fd:
            _change(
                path,
                lambda: change(opener, fd, name, lambda: make(fd, name), after=after, note=note),
            )
            if files.synced:
                sync_names(opener, fd)


def remove(files: WorkspaceFileAPI, real: str, now: State) -> None:
    """Remove the file or link with the state `now`, and no other state."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        files.remove(spot, path, _settled(files, spot, path, now))


def remove_directory(files: WorkspaceFileAPI, real: str) -> bool:
    """Remove a directory if it is empty. Returns whether it was."""
    path, opener = sayable(real), files.wall.opener
    parent, _, last = real.rpartition("/")
    with files.wall.spot_of(parent) as spot, refusals.answering(path):
        if spot.remaining:
            raise refusals.missing(path)
        name = os.fsencode(last)
        if not _is_empty(files, spot, name):
            return False
        with files.wall.spot_of(real) as inner:
            _, note = files.judge_change(inner, path)

        def rmdir() -> None:
            os.rmdir(name, dir_fd=spot.fd)

        _change(path, lambda: change(opener, spot.fd, name, rmdir, after=None, note=note))
        if files.synced:
            sync_names(opener, spot.fd)
        return True


def _is_empty(files: WorkspaceFileAPI, spot: Spot, name: bytes) -> bool:
    fd = files.wall.opener.step(spot.fd, name, READ | os.O_DIRECTORY)
    try:
        return not os.listdir(fd)
    finally:
        os.close(fd)


def _change(path: str, act: Callable[[], None]) -> None:
    try:
        act()
    except Changed:
        raise refusals.changed(path) from None
