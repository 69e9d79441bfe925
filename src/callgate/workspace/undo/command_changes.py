"""The change set of one command: its log of pre-images as ordinary changes.

    undo/open/<call>.<session>.<moment>/    log, origin and stored files, while the command runs
    undo/files/<call>.<session>.<moment>/   the stored files, when the changes are in `undo/calls`

The next reader of the history settles a directory that a killed callgate left in `open`
(`open_commands`). Settling twice has the same result, because the times of the changes come from
the log. After a restart of the machine, stored contents are checked, and files that changed
without a line in the log are named.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

import msgspec

from callgate.core.local import preimages
from callgate.core.local.preimage_store import REASON, content_parts, is_complete, path_of
from callgate.workspace.noting import Kind
from callgate.workspace.paths import opening
from callgate.workspace.undo import preimage_logs
from callgate.workspace.undo.open_commands import is_of_earlier_boot, moment_of
from callgate.workspace.undo.preimage_logs import Node, Slot
from callgate.workspace.undo.records import (
    PIPE,
    Change,
    Key,
    Origin,
    State,
    digest_of,
    is_linked,
    is_same,
    node_of,
)

HASHED = 16 * 1024 * 1024
"""Maximum size of a file that is compared by its content, otherwise by inode, size and time."""


class ChangeSet(NamedTuple):
    """The changes of one command."""

    changes: list[Change]
    unkept: list[tuple[str, str]] = []
    """Paths that cannot be restored, each with the reason."""
    is_recorded: bool = True
    """False: the system offers no listener, so the changes are unknown."""


def collect(directory: str, origin: Origin, key: Key) -> ChangeSet:
    """Return the changes in a log. `key`: of its encrypted copies. Blocks."""
    path = os.path.join(directory, preimages.LOG)
    try:
        with opening(), open(path, "rb") as log:
            content, ended_ns = log.read(), os.fstat(log.fileno()).st_mtime_ns
    except FileNotFoundError:
        return ChangeSet([], is_recorded=False)
    lines, has_begun, has_ended = preimage_logs.read(content)
    is_doubtful = is_of_earlier_boot(directory)
    if not has_begun and not is_doubtful:
        return ChangeSet([], is_recorded=False)
    if not has_ended:
        lines = preimage_logs.lines_made(lines, _status)
    collector = _Collector(directory, key, is_doubtful=is_doubtful)
    changes: list[Change] = []
    unkept: list[tuple[str, str]] = []
    began_ns = moment_of(directory)
    for slot, before, after in collector.states(preimage_logs.net(lines)):
        at = ended_ns + len(changes)
        change = _change(origin, slot, before, after, at, ended_ns)
        changes.append(msgspec.structs.replace(change, began=began_ns))
        if before is not None and before.why is not None:
            unkept.append((changes[-1].real, before.why))
    if is_doubtful and not has_ended:
        known = {real for each in changes for real in (each.real, each.first_place)}
        for change in unrecorded(origin, began_ns - _CLOCK_NS, ended_ns + len(changes), known):
            changes.append(change)
            unkept.append((change.real, _UNRECORDED))
    return ChangeSet(changes, unkept)


_UNRECORDED = "changed before a power failure, which lost the record"
_MOST_SEARCHED = 200_000
_CLOCK_NS = 20_000_000
"""Times of files are rounded down to ticks of the system."""


def unrecorded(
    origin: Origin, began_ns: int, at: int, known: Collection[str | None]
) -> Iterator[Change]:
    """Yield the files that changed since a command began, and that no line of its log names. After
    a power failure, lines may be missing: directories may contain such changes, too."""
    root = os.path.realpath(origin.directory)
    paths = (
        os.path.join(directory, name)
        for directory, directories, names in os.walk(root)
        for name in (*directories, *names)
    )
    for path in itertools.chain([root], itertools.islice(paths, _MOST_SEARCHED)):
        facts = _status(os.fsencode(path))
        if facts is None or path in known or facts.st_ctime_ns < began_ns:
            continue
        at += 1
        yield Change(
            origin=origin,
            path=os.fsencode(path),
            before=State("file", 0o600, why=_UNRECORDED),
            after=_present(os.fsencode(path), facts),
            at=at,
            group=at,
        )


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

    def __init__(self, directory: str, key: Key, *, is_doubtful: bool) -> None:
        """`is_doubtful`: whether the machine may have lost stored files."""
        self._directory = directory
        self._key = key
        self._is_doubtful = is_doubtful
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
            ended=node.has_ended and not is_held,
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
        if name.startswith(REASON):
            return None, name[1:].decode(errors="replace")
        text = name.decode()
        if self._is_doubtful and not is_complete(self._directory, text):
            return None, "its stored content was lost in a power failure"
        return f"{self._name}/{text.partition(':')[0]}", None

    def _digest(self, stored: str | None, size: int) -> str | None:
        if stored is None or size > HASHED:
            return None
        name = os.path.basename(stored)
        try:
            with opening(), open(path_of(self._directory, name), "rb", buffering=0) as file:
                size, blocks = content_parts(file.fileno(), name.encode(), self._key())
                content = bytearray(size)
                for offset, block in blocks:
                    content[offset : offset + len(block)] = block
        except (OSError, ValueError):
            return None
        return sha256(content).hexdigest()

    def _after(self, slot: Slot, before: State | None) -> State | None:
        if slot.path is None:
            return None
        facts = _status(slot.path)
        if facts is None:
            return None
        if slot.after is None:
            return None  # another program created it since
        state = _present(slot.path, facts)
        first = slot.after.facts
        is_from_elsewhere = not slot.after.is_new and not slot.after.first_names
        if is_from_elsewhere and first is not None and state.kind == "file":
            state = _with(
                state,
                first_mode=first.mode,
                body=self._stored(slot.after.body)[0],
                attributes=tuple(slot.after.attributes.items()),
            )
        if state.kind != "file" or facts.st_size > HASHED:
            return state
        return _with(state, sha256=_digest(os.fsdecode(slot.path)))


def _present(path: bytes, facts: os.stat_result) -> State:
    """Return the present state of a path, without the hash of a file's content."""
    kind = _kind(facts.st_mode)
    state = State(
        kind,
        stat.S_IMODE(facts.st_mode),
        facts.st_size,
        node=node_of(kind, facts.st_dev, facts.st_ino),
        mtime_ns=facts.st_mtime_ns,
    )
    if stat.S_ISFIFO(facts.st_mode):
        return _with(state, target=PIPE)
    if kind != "link":
        return state
    link = os.readlink(path)
    return _with(state, target=link, sha256=sha256(link).hexdigest())


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
