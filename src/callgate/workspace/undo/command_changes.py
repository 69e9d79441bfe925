"""The change set of one command: its log of pre-images as ordinary changes.

    undo/open/<call>.<session>.<moment>/    log, origin and stored files, while the command runs
    undo/files/<call>.<session>.<moment>/   the stored files, when the changes are in `undo/calls`

A directory that remains in `open` belongs to a command whose callgate was killed. It is locked as
long as callgate or the command's keeper lives. The next reader of the history settles it
(`settle`). Settling twice has the same result, because the times of the changes come from the log.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

import msgspec

from callgate.core.local import preimages
from callgate.core.local.disk import make_private_directory
from callgate.workspace.noting import Kind
from callgate.workspace.paths import opening
from callgate.workspace.undo import preimage_logs
from callgate.workspace.undo.preimage_logs import Node, Slot
from callgate.workspace.undo.records import (
    PIPE,
    Change,
    Origin,
    State,
    digest_of,
    is_linked,
    is_same,
    node_of,
)

HASHED = 16 * 1024 * 1024
"""Maximum size of a file that is compared by its content, otherwise by inode, size and time."""
_ORIGIN = "origin"


class ChangeSet(NamedTuple):
    """The changes of one command."""

    changes: list[Change]
    unkept: list[tuple[str, str]] = []
    """Paths that cannot be restored, each with the reason."""
    is_recorded: bool = True
    """False: the system offers no listener, so the changes are unknown."""


def begin(open_directory: str, name: str, origin: Origin) -> tuple[str, int]:
    """Create the directory of a command's pre-images. Returns it, and a descriptor that locks it
    for its owner."""
    directory = os.path.join(open_directory, name)
    with opening():
        make_private_directory(open_directory, synced=False)
        os.mkdir(directory, 0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(os.path.join(directory, _ORIGIN), flags, 0o600)
    fcntl.flock(file, fcntl.LOCK_SH)
    os.write(file, msgspec.json.encode(origin))
    return directory, file


def origin_of(directory: str) -> Origin | None:
    """Return the author of the changes in a directory; None if it is unreadable."""
    try:
        with opening(), open(os.path.join(directory, _ORIGIN), "rb") as file:
            return msgspec.json.decode(file.read(), type=Origin)
    except (OSError, ValueError, RecursionError):
        return None


def is_in_use(directory: str) -> bool:
    """Whether a keeper may still append to the log in a directory, or callgate settles it."""
    for name in (_ORIGIN, preimages.LOG):
        try:
            with opening(), open(os.path.join(directory, name), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


def collect(directory: str, origin: Origin) -> ChangeSet:
    """Return the changes in a log. Blocks."""
    path = os.path.join(directory, preimages.LOG)
    try:
        with opening(), open(path, "rb") as log:
            content, ended_ns = log.read(), os.fstat(log.fileno()).st_mtime_ns
    except FileNotFoundError:
        return ChangeSet([], is_recorded=False)
    lines, has_begun, has_ended = preimage_logs.read(content)
    if not has_begun:
        return ChangeSet([], is_recorded=False)
    if not has_ended:
        lines = preimage_logs.lines_made(lines, _status)
    collector = _Collector(directory)
    changes: list[Change] = []
    unkept: list[tuple[str, str]] = []
    for slot, before, after in collector.states(preimage_logs.net(lines)):
        at = ended_ns + len(changes)
        changes.append(_change(origin, slot, before, after, at, ended_ns))
        if before is not None and before.why is not None:
            unkept.append((changes[-1].real, before.why))
    return ChangeSet(changes, unkept)


def _change(
    origin: Origin, slot: Slot, before: State | None, after: State | None, at: int, group: int
) -> Change:
    path = slot.path or slot.first_path
    assert path is not None
    first = slot.first_path if slot.first_path not in (None, path) else None
    within = "removed" if slot.path is None else "new" if slot.first_path is None else ""
    return Change(
        origin=origin,
        path=path,
        before=before,
        after=after,
        at=at,
        group=group,
        first=first,
        is_source=slot.is_source and before is not None and after is not None,
        within=within,  # type: ignore[arg-type]
    )


class _Collector:
    """Looks at the paths of a command's changes after its end."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._name = os.path.basename(directory)

    def states(self, slots: Iterable[Slot]) -> Iterator[tuple[Slot, State | None, State | None]]:
        """Yield the changed slots with their states before and after."""
        found = []
        present: dict[Node, State] = {}
        for slot in slots:
            before = None
            if slot.before is not None and slot.first_path is not None and not slot.before.is_new:
                before = self._before(slot.before, is_replaced=slot.before is not slot.after)
            after = self._after(slot, before)
            found.append((slot, before, after))
            if after is not None and slot.after is not None:
                present[slot.after] = after
        for slot, before, after in found:
            if before is None and after is None:
                continue
            first = slot.before
            now = None if first is None or first.body else present.get(first)
            if before is not None and now is not None:
                digest = before.sha256 or now.sha256
                before = _with(before, sha256=digest, target=before.target or now.target)
            if _is_unchanged(before, after) and not slot.is_source:
                continue
            yield slot, before, after

    def _before(self, node: Node, *, is_replaced: bool) -> State:
        facts = node.facts
        if facts is None:
            return State("directory", 0o755)
        state = State(
            facts.kind,
            facts.mode,
            facts.size,
            node=node_of(facts.kind, *facts.inode),
            mtime_ns=facts.mtime_ns,
            attributes=tuple(node.attributes.items()),
        )
        if facts.kind == "link":
            if not is_replaced or not node.target:
                return state
            digest = sha256(node.target).hexdigest()
            return _with(state, target=node.target, sha256=digest, kept=True)
        if facts.kind == "other":
            if node.is_pipe:
                return _with(state, target=PIPE, node=None)
            if node.names or not is_replaced:
                return state
            return _with(state, why="sockets and devices are not stored", node=None)
        if facts.kind == "directory":
            return state
        body, why = self._stored(node.body)
        stored, why_gone = self._stored(node.stored if is_replaced else None)
        if node.names and stored is None:
            why_gone = None  # it still has a name
        hashed = self._digest(body or stored, facts.size)
        is_held = stored is not None and is_linked(stored)
        return _with(
            state,
            node=state.node if node.names or is_held else None,
            body=body,
            stored=stored,
            sha256=hashed,
            kept=bool(body or stored),
            why=why or why_gone,
        )

    def _stored(self, name: bytes | None) -> tuple[str | None, str | None]:
        """Return a stored file, or the reason for which it is not stored."""
        if not name:
            return None, None
        if name.startswith(preimages.REASON):
            return None, name[1:].decode(errors="replace")
        return f"{self._name}/{name.decode()}", None

    def _digest(self, stored: str | None, size: int) -> str | None:
        if stored is None or size > HASHED:
            return None
        path = os.path.join(self._directory, os.path.basename(stored))
        return _digest(path)

    def _after(self, slot: Slot, before: State | None) -> State | None:
        if slot.path is None:
            return None
        facts = _status(slot.path)
        if facts is None:
            return None
        kind = _kind(facts.st_mode)
        node = node_of(kind, facts.st_dev, facts.st_ino)
        if slot.after is None:
            return None  # another program created it since
        state = State(
            kind,
            stat.S_IMODE(facts.st_mode),
            facts.st_size,
            node=node,
            mtime_ns=facts.st_mtime_ns,
        )
        first = slot.after.facts
        is_from_elsewhere = not slot.after.is_new and not slot.after.first_names
        if is_from_elsewhere and first is not None and kind == "file":
            state = _with(
                state,
                first_mode=first.mode,
                body=self._stored(slot.after.body)[0],
                attributes=tuple(slot.after.attributes.items()),
            )
        if stat.S_ISFIFO(facts.st_mode):
            return _with(state, target=PIPE)
        if state.kind == "link":
            link = os.readlink(slot.path)
            return _with(state, target=link, sha256=sha256(link).hexdigest())
        if state.kind != "file" or facts.st_size > HASHED:
            return state
        return _with(state, sha256=_digest(os.fsdecode(slot.path)))


def _is_unchanged(before: State | None, after: State | None) -> bool:
    """Whether a file itself remained, with its content, mode and attributes. A replacement counts
    as a change: it has other attributes and names."""
    if before is None or after is None or before.kind != after.kind or before.mode != after.mode:
        return False
    if before.kind == "link":
        return is_same(before, after)
    if before.node != after.node or before.attributes:
        return False
    return before.kind == "directory" or is_same(before, after)


def _with(state: State, **changes: object) -> State:
    return msgspec.structs.replace(state, **changes)


def _status(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def _digest(path: str) -> str | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with opening():
            file = os.open(path, flags)
    except OSError:
        return None
    try:
        return digest_of(file)
    finally:
        os.close(file)


def unfinished(open_directory: str) -> Iterator[str]:
    """Yield the directories of commands that were not settled and no longer run."""
    try:
        names = sorted(os.listdir(open_directory))
    except FileNotFoundError:
        return
    for name in names:
        directory = os.path.join(open_directory, name)
        if not is_in_use(directory):
            yield directory
