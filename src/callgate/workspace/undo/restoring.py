"""Put a real path back into a state it once had: through the wall, the guard and the history.

A path in a history was real when it was written down. It is gone again here name by name, and
refused if a link stands on the way by now, because it would lead elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from hashlib import sha256

from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.noting import Changed, Standing, change, look
from callgate.workspace.opening import READ
from callgate.workspace.paths import sayable
from callgate.workspace.replace import made_directories, sync_names
from callgate.workspace.undo.blobs import digest_of
from callgate.workspace.undo.records import State, is_same
from callgate.workspace.walk import Spot

_PERMISSIONS = 0o777


def state_of(files: WorkspaceFileAPI, real: str) -> State | None:
    """What stands under a real path now, judged for reading; None if nothing does."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        if spot.rest and spot.status is None:
            return None
        if len(spot.rest) > 1:
            raise refusals.changed(path)  # no directory any more on the way to it
        files.judge(files.wall.real(spot, path), "read", spot.root, path)
        if not spot.rest:
            return State("directory", stat.S_IMODE(os.fstat(spot.fd).st_mode))
        return _state(files, spot)


def _state(files: WorkspaceFileAPI, spot: Spot) -> State | None:
    found = look(files.wall.opener, spot.fd, spot.rest[0], limit=0)
    if found is None:
        return None
    digest = None
    if found.kind == "link" and found.content is not None:
        digest = sha256(found.content).hexdigest()
    elif found.kind == "file":
        fd = files.wall.opener.step(spot.fd, spot.rest[0], READ)
        try:
            digest = digest_of(fd)
        finally:
            os.close(fd)
    return State(found.kind, found.mode, found.size, digest)


def content_of(files: WorkspaceFileAPI, real: str, limit: int) -> bytes | None:
    """The content of a file or the target of a link; None if it is neither or larger."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        if len(spot.rest) != 1 or spot.status is None:
            return None
        files.judge(files.wall.real(spot, path), "read", spot.root, path)
        found = look(files.wall.opener, spot.fd, spot.rest[0], limit)
        return None if found is None else found.content


def judge_change(files: WorkspaceFileAPI, real: str) -> None:
    """Raise what changing a real path would be refused with."""
    with files.wall.spot_of(real) as spot, refusals.answering(sayable(real)):
        files.judge_change(spot, sayable(real))


def put_file(
    files: WorkspaceFileAPI, real: str, content: bytes, mode: int, now: State | None
) -> None:
    """A file in place of what stands there `now`, and of nothing else."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot:
        files.replace(spot, path, content, _settled(files, spot, path, now), mode)


def _settled(
    files: WorkspaceFileAPI, spot: Spot, path: str, now: State | None
) -> os.stat_result | None:
    """The status of what a spot stands for, if that is what it is thought to be."""
    with refusals.answering(path):
        there = len(spot.rest) == 1 and spot.status is not None
        if not is_same(_state(files, spot) if there else None, now):
            raise refusals.changed(path)
    return spot.status


def put_link(files: WorkspaceFileAPI, real: str, target: bytes) -> None:
    """A link where nothing stands. Where it leads is judged whenever it is followed."""

    def make(fd: int, name: bytes) -> None:
        os.symlink(target, name, dir_fd=fd)

    _make(files, real, make, Standing("link", 0o777, len(target), target))


def put_directory(files: WorkspaceFileAPI, real: str, mode: int) -> None:
    """A directory where nothing stands."""

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
        if spot.status is not None or not spot.rest:
            raise refusals.changed(path)
        _, note = files.judge_change(spot, path)
        *parents, name = spot.rest
        with made_directories(opener, spot.fd, parents, note, synced=files.synced) as fd:
            _change(
                path,
                lambda: change(opener, fd, name, lambda: make(fd, name), after=after, note=note),
            )
            if files.synced:
                sync_names(opener, fd)


def remove(files: WorkspaceFileAPI, real: str, now: State) -> None:
    """Remove the file or the link that stands there `now`, and nothing else."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        files.remove(spot, path, _settled(files, spot, path, now))


def remove_directory(files: WorkspaceFileAPI, real: str) -> bool:
    """Remove a directory if it is empty; whether it was."""
    path, opener = sayable(real), files.wall.opener
    parent, _, last = real.rpartition("/")
    with files.wall.spot_of(parent) as spot, refusals.answering(path):
        if spot.rest:
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
