"""The net changes in a log of pre-images (`core/local/preimages`): which file had which name.

    lines --> replay on a partial tree --> Slot: a name in a directory, before and after

The tree contains only nodes that a line names. A node is a file with its identity: a moved
directory remains one node, and its content needs no lines. A slot is a name in one directory node.
It has a path before the changes, if its directory existed then, and a path after them, if it still
exists. The two differ below a moved directory.

The replay assumes that every change in the log happened. `lines_made` removes the last one if a
crash prevented it.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from callgate.core.local import preimages
from callgate.core.local.preimages import HEAD
from callgate.workspace.noting import Kind

Line = list[bytes]
Inode = tuple[int, int]

_KINDS: dict[bytes, Kind] = {
    preimages.FILE: "file",
    preimages.DIRECTORY: "directory",
    preimages.LINK: "link",
    preimages.OTHER: "other",
}
_FACTS = 7
"""Fields of a file's facts."""


class Facts(NamedTuple):
    """A file when a line was written."""

    kind: Kind
    mode: int
    inode: Inode
    links: int
    size: int
    mtime_ns: int


class Node:
    """A file, directory or link, under any name."""

    __slots__ = (
        "attributes",
        "before",
        "body",
        "children",
        "facts",
        "first_names",
        "is_new",
        "links_left",
        "names",
        "stored",
        "target",
    )

    def __init__(self, facts: Facts | None, *, is_new: bool = False) -> None:
        self.facts = facts
        """Its state before the first change; None: a new file, or a directory without changes."""
        self.is_new = is_new
        self.stored: bytes | None = None
        """Stored file with its inode or content, from when it lost a name; or a reason."""
        self.body: bytes | None = None
        """Stored content from before its first change, or a reason."""
        self.links_left = 0
        """Names after the last removal of one."""
        self.target = b""
        self.attributes: dict[bytes, bytes | None] = {}
        self.first_names: set[tuple[Node, bytes]] = set()
        self.names: set[tuple[Node, bytes]] = set()
        self.before: dict[bytes, Node | None] = {}
        """Of a directory: the first occupants of the names that lines mention."""
        self.children: dict[bytes, Node | None] = {}

    @property
    def has_ended(self) -> bool:
        """Whether the file lost its last name, as far as the lines show."""
        return not self.names and self.links_left == 0

    @property
    def is_pipe(self) -> bool:
        return self.target.isdigit() and stat.S_ISFIFO(int(self.target))

    @property
    def is_changed(self) -> bool:
        return not self.is_new and bool(self.body or self.attributes)


class Slot(NamedTuple):
    first_path: bytes | None
    """None: its directory did not exist before."""
    path: bytes | None
    """None: its directory no longer exists."""
    before: Node | None
    after: Node | None
    is_source: bool = False
    """Whether the file only got another name, through which it may change later."""


def read(content: bytes) -> tuple[list[Line], bool, bool]:
    """Return the lines, and whether the log has a beginning and an end."""
    lines: list[Line] = []
    has_begun = has_ended = False
    at = 0
    while at + HEAD.size <= len(content):
        length, check = HEAD.unpack_from(content, at)
        at += HEAD.size
        text = content[at : at + length]
        if len(text) < length or zlib.crc32(text) != check or not text:
            break  # torn by a crash, so that its change was not made, or lost in a power failure
        line = text.split(b"\0")
        at += length
        if line[0] == preimages.BEGIN:
            has_begun = True
        elif line[0] == preimages.END:
            has_ended = True
        else:
            lines.append(line)
    return lines, has_begun, has_ended


def paths(lines: Iterable[Line]) -> Iterator[bytes]:
    """Yield the paths that lines name."""
    for line in lines:
        yield line[1]
        if line[0] in (preimages.MOVED, preimages.SWAPPED, preimages.LINKED):
            yield line[2]


def lines_made(lines: list[Line], status: Callable[[bytes], os.stat_result | None]) -> list[Line]:
    """Return the lines without a last one whose change was not made."""
    if not lines:
        return lines
    last = lines[-1]
    if last[0] in (preimages.MOVED, preimages.SWAPPED):
        old, new, inode = last[1], last[2], _facts(last, 3).inode
        here, there = _inode(status(old)), _inode(status(new))
        if here == inode and there != inode:
            count = 1
            if len(lines) > 1 and lines[-2][0] == preimages.GONE and lines[-2][1] == new:
                count = 2  # lines about attributes before them change nothing
            return lines[:-count]
    elif last[0] == preimages.GONE:
        if _inode(status(last[1])) == _facts(last, 2).inode:
            return lines[:-1]
    elif (last[0] == preimages.NEW and status(last[1]) is None) or (
        last[0] == preimages.LINKED and status(last[2]) is None
    ):
        return lines[:-1]
    return lines


def _inode(status: os.stat_result | None) -> Inode | None:
    return None if status is None else (status.st_dev, status.st_ino)


def net(lines: Sequence[Line]) -> list[Slot]:
    """Return the slots whose occupant, or its content, mode or attributes may have changed."""
    replay = _Replay()
    for line in lines:
        replay.take(line)
    return list(replay.slots())


class _Replay:
    def __init__(self) -> None:
        self._root = Node(None)
        self._inodes: dict[Inode, Node] = {}
        self._directories: dict[Node, None] = {self._root: None}
        self._changed_modes: set[Node] = set()
        self._linked: set[Node] = set()
        """Files that existed before and got another name."""

    def take(self, line: Line) -> None:
        kind, path = line[0], line[1]
        if kind == preimages.NEW:
            self._put(path, Node(None, is_new=True))
        elif kind == preimages.GONE:
            facts = _facts(line, 2)
            self._deletion(path, facts, line[2 + _FACTS], b"\0".join(line[3 + _FACTS :]))
        elif kind == preimages.MOVED:
            node = self._occupant(path, _facts(line, 3))
            self._take_out(path)
            self._put(line[2], node)
        elif kind == preimages.SWAPPED:
            one = self._occupant(path, _facts(line, 3))
            other = self._occupant(line[2], _facts(line, 3 + _FACTS))
            self._take_out(path)
            self._take_out(line[2])
            self._put(line[2], one)
            self._put(path, other)
        elif kind == preimages.LINKED:
            node = self._by_inode(path, _facts(line, 3))
            self._linked.add(node)
            self._put(line[2], node)
        else:
            self._changed(kind, path, _facts(line, 2), line[2 + _FACTS :])

    def slots(self) -> Iterator[Slot]:
        first_paths: dict[Node, bytes | None] = {self._root: b""}
        paths: dict[Node, bytes | None] = {self._root: b""}
        for directory in self._directories:
            for name, before in directory.before.items():
                after = directory.children.get(name)
                is_same = before is after
                if is_same and (after is None or not self._is_of_interest(after)):
                    continue
                first = _path(directory, first_paths, lambda node: node.first_names)
                last = _path(directory, paths, lambda node: node.names)
                if before is None and last is None:
                    continue  # created and removed with its directory
                if before is None and after is None:
                    continue
                yield Slot(
                    None if first is None else first + b"/" + name,
                    None if last is None else last + b"/" + name,
                    before,
                    after,
                    is_same and after is not None and not self._is_changed(after),
                )

    def _is_of_interest(self, node: Node) -> bool:
        return self._is_changed(node) or (node in self._linked and not node.is_new)

    def _is_changed(self, node: Node) -> bool:
        return node.is_changed or node in self._changed_modes

    def _deletion(self, path: bytes, facts: Facts, stored: bytes, target: bytes) -> None:
        node = self._occupant(path, facts)
        self._take_out(path)
        node.links_left = facts.links - 1
        if not node.is_new:
            node.stored = node.stored or stored
            node.target = target
        if facts.links == 1 and not stored.startswith(b"L"):
            self._inodes.pop(facts.inode, None)  # another file may get the number

    def _changed(self, kind: bytes, path: bytes, facts: Facts, fields: Line) -> None:
        node = self._by_inode(path, facts)
        if node.is_new:
            return
        if node.facts is None:
            node.facts = facts
        if kind == preimages.BODY:
            node.body = node.body or fields[0]
        elif kind == preimages.MODE:
            self._changed_modes.add(node)
        elif kind == preimages.ATTRIBUTE:
            old = bytes.fromhex(fields[1].decode())
            node.attributes.setdefault(fields[0], old[1:] if old else None)

    def _by_inode(self, path: bytes, facts: Facts) -> Node:
        """Return the node of an open file, which may have lost its name."""
        if path != preimages.NOWHERE:
            return self._occupant(path, facts)
        return self._inodes.setdefault(facts.inode, Node(facts))

    def _directory(self, path: bytes) -> Node:
        node = self._root
        for name in path.split(b"/")[1:]:
            child = node.children.get(name)
            if child is None:
                child = Node(None, is_new=name in node.children)
                if name not in node.children:
                    node.before[name] = child
                    child.first_names.add((node, name))
                node.children[name] = child
                child.names.add((node, name))
            self._directories[child] = None
            node = child
        return node

    def _parent(self, path: bytes) -> tuple[Node, bytes]:
        head, _, name = path.rpartition(b"/")
        return (self._directory(head) if head else self._root), name

    def _occupant(self, path: bytes, facts: Facts) -> Node:
        """Return the node at a path where a file with these facts was."""
        parent, name = self._parent(path)
        node = parent.children.get(name)
        if node is not None and not node.is_new and node.facts is None:
            node.facts = facts
            self._inodes[facts.inode] = node
        is_known = node is not None and (
            node.is_new or (node.facts is not None and node.facts.inode == facts.inode)
        )
        if node is not None and is_known:
            if node.is_new and facts.kind == "file":
                self._inodes.setdefault(facts.inode, node)
            return node
        return self._found(parent, name, facts, node)

    def _found(self, parent: Node, name: bytes, facts: Facts, previous: Node | None) -> Node:
        """Return the node of a file that no earlier line mentions under this name."""
        node = self._inodes.get(facts.inode)
        is_first = name not in parent.children
        if node is None:
            # Another program created it during the command, unless the name is new to us.
            is_foreign = not is_first and (previous is None or previous.is_new)
            node = self._inodes[facts.inode] = Node(facts, is_new=is_foreign)
        if previous is not None:
            previous.names.discard((parent, name))
        replaces = previous is not None and parent.before.get(name) is previous
        if previous is not None and replaces:
            previous.first_names.discard((parent, name))
        if is_first or replaces:
            parent.before[name] = node
            node.first_names.add((parent, name))
        parent.children[name] = node
        node.names.add((parent, name))
        return node

    def _take_out(self, path: bytes) -> None:
        parent, name = self._parent(path)
        node = parent.children.get(name)
        if node is not None:
            node.names.discard((parent, name))
        parent.children[name] = None

    def _put(self, path: bytes, node: Node) -> None:
        parent, name = self._parent(path)
        previous = parent.children.get(name)
        if previous is not None:
            previous.names.discard((parent, name))
        parent.before.setdefault(name, None)
        parent.children[name] = node
        node.names.add((parent, name))


def _path(
    node: Node,
    found: dict[Node, bytes | None],
    names: Callable[[Node], set[tuple[Node, bytes]]],
) -> bytes | None:
    """Return the path of a directory; None if it has none."""
    waiting = []
    while node not in found:
        above = names(node)
        if not above:
            found[node] = None
            break
        parent, name = next(iter(above))
        waiting.append((node, name))
        node = parent
    path = found[node]
    for child, name in reversed(waiting):
        path = found[child] = None if path is None else path + b"/" + name
    return path


def _facts(line: Line, at: int) -> Facts:
    mode, device, number, links, size, mtime = map(int, line[at + 1 : at + _FACTS])
    return Facts(_KINDS[line[at]], mode, (device, number), links, size, mtime)
