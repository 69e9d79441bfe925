"""Index of a closed log file: the blocks that may contain a wanted line.

    audit.000012.jsonl    a closed file
    audit.000012.index    offsets of its blocks, and the blocks that contain each value

The first search that profits from an index builds it. An index is only a hint. It is used if it was
built with the key of the log, from the complete file, and the file has the same inode, size and
times (programs cannot set the last of them). Any other index is rebuilt. Without an index, the
search reads the file.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from itertools import product
from typing import BinaryIO, Protocol
from zlib import crc32

import msgspec

from callgate.audit.keys import make_key, read_key
from callgate.audit.records import after_remains, index_path

_FORMAT = f"callgate audit index 1, {sys.byteorder}"
_BLOCK = 256 * 1024
_LONGEST_LINE = 1024 * 1024
"""A file with a longer line has no index."""
_SETTLED_S = 2.0
"""A file that changed more recently may still be written, and its times may not show it."""
_MAC = 32
_LARGEST_HEAD = 4 * 1024 * 1024
_BLOCK_BITS = 32
_LEFT_BEHIND_S = 600.0
_INDEX = re.compile(r"(?P<stem>.+)\.\d{6,}\.index(?P<writer>\.\d+)?")

Stamp = tuple[int, int, int, int]
Tables = Mapping[str, "array[int]"]
"""Sorted hashes of values by field name, each with the number of a block that contains it."""
Keys = Mapping[str, Sequence[int]]
"""Hashes to look for, by the name of the table; at most one per table."""


class Wanted(Protocol):
    """Wanted values of a line; None: any."""

    @property
    def tool(self) -> str | None: ...
    @property
    def decision(self) -> str | None: ...
    @property
    def error_classes(self) -> Collection[str] | None:
        """Classes of which a record must have one; None: any."""
        ...

    @property
    def session(self) -> str | None: ...
    @property
    def call(self) -> str | None: ...


class Blocks(msgspec.Struct, frozen=True):
    begins: list[int]
    """Offsets of the blocks, and the end of the last one."""
    matching: frozenset[int]
    """Blocks that may contain a wanted line; the others contain none."""

    def backwards(self, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the blocks before an offset, the last first: begin, end, whether it may match."""
        for number in reversed(range(len(self.begins) - 1)):
            begin = self.begins[number]
            if begin < end:
                yield begin, min(self.begins[number + 1], end), number in self.matching


class _Head(msgspec.Struct, frozen=True):
    format: str
    stamp: Stamp
    begins: list[int]
    tables: dict[str, tuple[int, bytes]]
    """Size and SHA-256 of each part, in order."""


class _Values(msgspec.Struct):
    """Indexed fields of a line. They are decoded for every line that is read as a record."""

    tool: str
    decision: str
    call_id: str
    session: str
    error_class: str | None = None


_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode = msgspec.json.Decoder(_Values).decode


def find_blocks(log: str, segment: str, file: BinaryIO, wanted: Wanted) -> Blocks | None:
    """Return the blocks of a closed file that may contain a line; None if that is unknown."""
    keys = _keys(wanted)
    if not keys:
        return None
    try:
        return _load(log, segment, file, keys) or _make(log, segment, file, keys)
    except OSError:
        return None


def _keys(wanted: Wanted) -> Keys:
    keys: dict[str, list[int]] = {}
    outcome = (wanted.tool, wanted.decision, wanted.error_classes)
    if any(value is not None for value in outcome):
        classes = (None,) if wanted.error_classes is None else wanted.error_classes
        keys["outcomes"] = [_hash(wanted.tool, wanted.decision, each) for each in classes]
    if wanted.session is not None:
        keys["sessions"] = [_hash(wanted.session)]
    if wanted.call is not None:
        keys["calls"] = [_hash(wanted.call)]
    return keys


def _hash(*values: str | None) -> int:
    encoded = ("\1" if value is None else f"\0{value}" for value in values)
    return crc32("".join(encoded).encode("utf-8", "surrogatepass"))


def _matching(begins: list[int], tables: Tables, keys: Keys) -> Blocks:
    found = [
        frozenset(number for key in some for number in _numbers(tables[name], key))
        for name, some in keys.items()
    ]
    return Blocks(begins, frozenset.intersection(*found))


def _numbers(table: array[int], key: int) -> Iterator[int]:
    for at in range(bisect_left(table, key << _BLOCK_BITS), len(table)):
        found, number = divmod(table[at], 1 << _BLOCK_BITS)
        if found != key:
            return
        yield number


def _stamp(fd: int) -> Stamp:
    status = os.fstat(fd)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _mac(key: bytes, head: bytes) -> bytes:
    return blake2b(head, key=key, digest_size=_MAC, person=b"audit index").digest()


def _load(log: str, segment: str, file: BinaryIO, keys: Keys) -> Blocks | None:
    """Load the index next to the file, if it is complete, valid, and the file did not change."""
    key = read_key(log)
    if key is None:
        return None
    try:
        fd = os.open(index_path(segment), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(fd, "rb", buffering=0) as index:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        mac, size = index.read(_MAC), int.from_bytes(index.read(4), "big")
        encoded = index.read(min(size, _LARGEST_HEAD))
        if mac != _mac(key, encoded):
            return None
        head = _decode_head(encoded)
        if head.format != _FORMAT or head.stamp != _stamp(file.fileno()):
            return None
        tables, at = dict[str, "array[int]"](), index.tell()
        for name, (length, digest) in head.tables.items():
            if name in keys:
                table = os.pread(fd, length, at)
                if sha256(table).digest() != digest:
                    return None
                tables[name] = array("Q", table)
            at += length
    return _matching(head.begins, tables, keys)


def _make(log: str, segment: str, file: BinaryIO, keys: Keys) -> Blocks | None:
    """Build the index from the file and store it for later searches; None if that fails."""
    stamp = _stamp(file.fileno())
    settled = time.time_ns() - max(stamp[2:]) >= _SETTLED_S * 1e9
    if not (settled and stamp[1] and _has_room(file.fileno(), stamp[1])):
        return None
    make_key(log)
    key = read_key(log)
    if key is None:
        return None
    path = index_path(segment)
    _remove_leftovers(path)
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as index:
            contents = _read_blocks(file.fileno(), stamp[1])
            if contents is None or _stamp(file.fileno()) != stamp:
                return None
            _write(index, key, stamp, *contents)
        os.replace(temporary, path)
        if not os.path.exists(segment):  # deleted since it was opened
            os.unlink(path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    return _matching(*contents, keys)


def _has_room(fd: int, size: int) -> bool:
    """Return whether the disk has room: the rest of a nearly full disk is for the log."""
    disk = os.fstatvfs(fd)
    return disk.f_bavail * disk.f_frsize > size


def _write(index: BinaryIO, key: bytes, stamp: Stamp, begins: list[int], tables: Tables) -> None:
    contents = {name: table.tobytes() for name, table in tables.items()}
    sums = {name: (len(each), sha256(each).digest()) for name, each in contents.items()}
    head = msgspec.msgpack.encode(_Head(_FORMAT, stamp, begins, sums))
    index.write(_mac(key, head) + len(head).to_bytes(4, "big") + head)
    index.writelines(contents.values())


def _read_blocks(fd: int, size: int) -> tuple[list[int], Tables] | None:
    """Read the file block by block; None if it is not an audit log."""
    begins = [0]
    tables = {name: array("Q") for name in ("outcomes", "sessions", "calls")}
    hashes: dict[tuple[str, str, str | None], set[int]] = {}
    while begins[-1] < size:
        block = _block(fd, begins[-1], size)
        if block is None:
            return None
        number = len(begins) - 1
        found: dict[str, set[int]] = {name: set() for name in tables}
        for values in _values_in(block):
            outcome = values.tool, values.decision, values.error_class
            if outcome not in hashes:
                hashes[outcome] = {_hash(*some) for some in product(*((v, None) for v in outcome))}
            found["outcomes"] |= hashes[outcome]
            found["sessions"].add(_hash(values.session))
            found["calls"].add(_hash(values.call_id))
        for name, each in found.items():
            tables[name].extend((hash << _BLOCK_BITS) | number for hash in each)
        begins.append(begins[-1] + len(block))
    return begins, {name: array("Q", sorted(table)) for name, table in tables.items()}


def _block(fd: int, begin: int, size: int) -> bytes | None:
    """Return complete lines from an offset on; at the end, an incomplete line too."""
    for length in (_BLOCK, _BLOCK + _LONGEST_LINE):
        block = os.pread(fd, min(length, size - begin), begin)
        if begin + len(block) == size:
            return block
        if end := block.rfind(b"\n") + 1:
            return block[:end]
    return None


def _values_in(block: bytes) -> Iterator[_Values]:
    """Yield the values of every record that a reader could see in the lines."""
    for raw in block.split(b"\n"):
        remainder = after_remains(raw)
        for part in (raw,) if len(remainder) == len(raw) else (raw, remainder):
            try:
                yield _decode(part)
            except (ValueError, RecursionError):
                continue


def _remove_leftovers(path: str) -> None:
    """Remove indexes without a file, and temporary files of killed writers."""
    directory, name = os.path.split(path)
    for each in os.listdir(directory or "."):
        match, ours = _INDEX.fullmatch(each), _INDEX.fullmatch(name)
        if match is None or ours is None or match["stem"] != ours["stem"]:
            continue
        found = os.path.join(directory, each)
        with suppress(FileNotFoundError):
            if match["writer"]:
                if time.time() - os.stat(found).st_mtime > _LEFT_BEHIND_S:
                    os.unlink(found)
            elif not os.path.exists(found.removesuffix(".index") + ".jsonl"):
                os.unlink(found)
