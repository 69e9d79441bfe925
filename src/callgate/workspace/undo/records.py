"""Stored form of the history: one line per change, and contents under their hashes.

A line has the state before a change, the state after it, and its author. A content is stored once,
complete or not at all, readable by its owner only. A content that is needed again is touched, and a
content to delete is first renamed: if it was touched in between, it is renamed back. So two
processes can store and delete concurrently.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple

import msgspec

from callgate.core.local.disk import make_private_directory, sync_file
from callgate.workspace.noting import Kind
from callgate.workspace.paths import opening

PIPE = b"pipe"


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """Former or present state of a path."""

    kind: Kind
    mode: int
    """Permission bits."""
    size: int = 0
    sha256: str | None = None
    """Hash of a file's content or a link's target; None if unknown."""
    kept: bool = False
    """Whether the content is stored, until it is too old."""
    node: str | None = None
    """Kind, device and inode, if a command changed the path."""
    mtime_ns: int = 0
    stored: str | None = None
    """Stored file with its inode, or a copy, for a path that a command removed or replaced."""
    body: str | None = None
    """Stored content of a file that a command opened for writing."""
    target: bytes | None = None
    """Target of a link, or `PIPE` for a named pipe, if a command changed the path."""
    attributes: tuple[tuple[bytes, bytes | None], ...] = ()
    """Extended attributes that a command changed; None: there was no such attribute."""
    first_mode: int | None = None
    """Mode before the command, if the path is a new name of a file that existed before. Then
    `body` and `attributes` are the earlier ones, too."""
    why: str | None = None
    """Why the content is not stored."""
    ended: bool = False
    """Whether `node` ended with the change: another file may have got its inode since."""


def is_same(one: State | None, other: State | None) -> bool:
    """Whether two states have the same content; the mode does not count."""
    if one is None or other is None:
        return one is other
    if one.kind != other.kind:
        return False
    if one.kind == "directory":
        return True
    if one.kind == "other" and PIPE in (one.target, other.target):
        return one.target == other.target
    if one.sha256 is not None and other.sha256 is not None:
        return one.sha256 == other.sha256
    return one.node is not None and _version(one) == _version(other)


def _version(state: State) -> tuple[str | None, int, int]:
    is_file = state.kind == "file"
    return state.node, state.size * is_file, state.mtime_ns * is_file


def is_linked(stored: str) -> bool:
    """Whether a stored file has the inode of the original, or is a copy."""
    return os.path.basename(stored).startswith("L")


def node_of(kind: Kind, device: int, number: int) -> str | None:
    """Return the identity of a file; None for links, which are the same if their target is."""
    return None if kind == "link" else f"{kind[0]}{device}:{number}"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The author of changes."""

    session: str
    call: str
    tool: str
    workspace: bytes
    turn: str | None = None

    @property
    def directory(self) -> str:
        """The workspace as a path."""
        return self.workspace.decode("utf-8", "surrogatepass")


class Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="change"):
    origin: Origin
    path: bytes
    """Absolute, links resolved. Bytes, because a name need not be UTF-8."""
    before: State | None
    """None: the path did not exist."""
    after: State | None
    at: int
    """Nanoseconds since 1970; in one process greater than in the previous change."""
    group: int = 0
    """Changes of one command, which are reverted together; 0: a change of one path alone.
    The number is the time of the last change."""
    began: int = 0
    """The time before the first change of the group."""
    first: bytes | None = None
    """The path before the changes of the group, if a directory above was moved."""
    is_source: bool = False
    """The file only got another name. Counts if the file is changed through that name later."""
    within: Literal["", "removed", "new"] = ""
    """Whether the directory of the path no longer exists after the group, or did not before."""

    @property
    def place(self) -> str | None:
        """The path after the change; None if its directory no longer exists then."""
        return None if self.within == "removed" else self.real

    @property
    def first_place(self) -> str | None:
        """The path before the change; None if its directory did not exist then."""
        if self.within == "new":
            return None
        return self.real if self.first is None else os.fsdecode(self.first)

    @property
    def kind(self) -> Literal["created", "changed", "deleted", "directory made"]:
        if self.after is None:
            return "deleted"
        if self.before is not None:
            return "changed"
        return "directory made" if self.after.kind == "directory" else "created"

    @property
    def real(self) -> str:
        return os.fsdecode(self.path)


class Withdrawn(msgspec.Struct, frozen=True, tag_field="line", tag="withdrawn"):
    """The change of that moment was not made."""

    at: int


Line = Change | Withdrawn


class Recorded(NamedTuple):
    changes: list[Change]
    """Oldest first."""
    damaged: int = 0
    """Unreadable lines, such as a line that a crash truncated."""


_decode = msgspec.json.Decoder(Line).decode
encode = msgspec.json.Encoder().encode


def read(content: bytes) -> Recorded:
    """Return the changes in a file of the history, without withdrawn ones."""
    changes: dict[int, Change] = {}
    damaged = 0
    for text in content.split(b"\n"):
        if not text:
            continue
        try:
            line = _decode(text)
        except (ValueError, RecursionError):
            damaged += 1
            continue
        if isinstance(line, Change):
            changes[line.at] = line
        else:
            changes.pop(line.at, None)
    return Recorded(list(changes.values()), damaged)


_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\Z")


def after_turn(changes: Sequence[Change], turn: str) -> list[Change] | None:
    """Return the changes after the end of a turn; None if that time is unknown.

    A turn that changed nothing is ordered by its id, which sorts by its creation time.
    """
    positions = [change.at for change in changes if change.origin.turn == turn]
    if positions:
        return [change for change in changes if change.at > max(positions)]
    if not (placed := _ULID.search(turn)):
        return None
    return [
        change
        for change in changes
        if (found := _ULID.search(change.origin.turn or change.origin.call))
        and found[0] > placed[0]
    ]


def merged(records: Iterable[Recorded]) -> Recorded:
    found = list(records)
    changes = sorted((change for part in found for change in part.changes), key=lambda c: c.at)
    return Recorded(changes, sum(part.damaged for part in found))


Key = Callable[[], bytes | None]
"""Returns the key that encrypts stored contents; None: they are not encrypted."""

_TEMPORARY = "tmp-"
_SEALED = b"callgate content 1\n"
_NONCE_BYTES = 12
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1024 * 1024


class Blobs:
    """A directory of contents. Every method raises `OSError` on a disk failure."""

    def __init__(self, directory: str, *, synced: bool = True, key: Key = lambda: None) -> None:
        """If not `synced`, no operation waits for the disk. `key` encrypts new contents."""
        self._directory = directory
        self._key = key
        self._synced = synced

    def keep(self, content: bytes, digest: str, *, durable: bool) -> bool:
        """Store a content; a durable one survives a power failure. Returns whether it was new."""
        path, durable = self.path(digest), durable and self._synced
        try:
            os.utime(path)
            if durable:
                _sync(path)
                _sync(os.path.dirname(path))
            return False
        except FileNotFoundError:
            pass
        beside = os.path.join(self._directory, _TEMPORARY + secrets.token_hex(8))
        key = self._key()
        if key is not None:
            content = _sealed(key, content, digest)
        try:
            _write_new(beside, content, durable=durable)
        except FileNotFoundError:
            self._make(self._directory)
            _write_new(beside, content, durable=durable)
        self._name(beside, path)
        if durable:
            _sync(os.path.dirname(path))
        return True

    def read(self, digest: str) -> bytes | None:
        """Return a content, if it is still stored and undamaged."""
        try:
            with opening(), open(self.path(digest), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        if sha256(content).hexdigest() == digest:
            return content
        key = self._key() if content.startswith(_SEALED) else None
        return None if key is None else _unsealed(key, content, digest)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all contents."""
        return {name: status.st_size for name, status in self._scan() if len(name) == 64}

    def drop_others(self, wanted: Collection[str], older_than: float) -> None:
        """Delete contents that are neither wanted nor recently touched, and remains of crashes."""
        for name, status in list(self._scan()):
            if name in wanted or status.st_mtime >= older_than:
                continue
            if len(name) != 64:
                _unlink(os.path.join(self._directory, name))
                continue
            path = self.path(name)
            aside = os.path.join(self._directory, _TEMPORARY + secrets.token_hex(8))
            try:
                os.rename(path, aside)
            except FileNotFoundError:
                continue  # another process drops it, too
            if os.stat(aside).st_mtime >= older_than:
                self._name(aside, path)
            else:
                _unlink(aside)

    def _name(self, beside: str, path: str) -> None:
        try:
            os.rename(beside, path)
        except FileNotFoundError:
            self._make(os.path.dirname(path))
            os.rename(beside, path)

    def _make(self, directory: str) -> None:
        with opening():
            make_private_directory(directory, synced=self._synced)

    def path(self, digest: str) -> str:
        """Return the path of a content."""
        return os.path.join(self._directory, digest[:2], digest)

    def _scan(self) -> Iterator[tuple[str, os.stat_result]]:
        for directory, _, names in os.walk(self._directory):
            for name in names:
                try:
                    yield name, os.stat(os.path.join(directory, name))
                except FileNotFoundError:
                    continue


def _sealed(key: bytes, content: bytes, digest: str) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # lazy: with a key only  # noqa: PLC0415

    nonce = os.urandom(_NONCE_BYTES)
    return _SEALED + nonce + AESGCM(key).encrypt(nonce, content, digest.encode())


def _unsealed(key: bytes, content: bytes, digest: str) -> bytes | None:
    from cryptography.exceptions import InvalidTag  # lazy: as above  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # lazy: as above  # noqa: PLC0415

    start = len(_SEALED)
    nonce, data = content[start : start + _NONCE_BYTES], content[start + _NONCE_BYTES :]
    try:
        return AESGCM(key).decrypt(nonce, data, digest.encode())
    except (InvalidTag, ValueError):
        return None


def _write_new(path: str, content: bytes, *, durable: bool) -> None:
    """Create a file with this content, or none."""
    with opening():
        fd = os.open(path, _CREATE, 0o600)
    try:
        write_all(fd, content)
        if durable:
            sync_file(fd)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _sync(path: str) -> None:
    with opening():
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def write_all(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def digest_of(fd: int) -> str:
    """Return the hash of an open file's content, of any size."""
    hashed = sha256()
    while block := os.read(fd, _BLOCK):
        hashed.update(block)
    return hashed.hexdigest()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
