"""The stored files of one command: hard links, copies, and encrypted copies.

    L1   hard link: needs no copy and preserves the inode
    C2   copy, which shares blocks where the file system can, and has the holes of the original
    S3   encrypted copy: size, then parts (offset, length, AES-256-GCM), the last one empty

A name of a copy in the log has a checksum behind it, `C2:size:crc`, because a power cut may lose a
copy that was not synced. Encrypted parts detect this themselves, and a clone has no checksum.

The bounds count data, not holes. A file above them is not stored, for a reason that the log has. If
the disk is full, the change is refused, unless the settings permit it.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import struct
import zlib

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REASON = b"!"
"""Prefix of the reason for which a file is not stored."""
LINKS = b"links"
"""Directory of hard links on the file system of the workspace, if that is another one."""

_CLONE = 0x40049409
"""FICLONE"""
_BLOCK = 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SIZE = struct.Struct("<Q")
_PART = struct.Struct("<QI")
_TAG_BYTES = 16


class Store:
    """Stores files in the directory of one command. Not among the mounts of the command."""

    def __init__(
        self,
        directory: str,
        max_file: int,
        max_total: int,
        *,
        key: bytes | None = None,
        strict: bool = False,
        tolerant: bool = False,
    ) -> None:
        """`key`: encrypt copies. `strict`: refuse changes of files that are not stored.
        `tolerant`: permit them even on a full disk."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self._directory = os.open(directory, flags)
        try:
            self._links = os.open(LINKS, flags, dir_fd=self._directory)
        except OSError:
            self._links = self._directory
        self._max_file = max_file
        self._left = max_total
        self._key = key
        self._strict = strict
        self._tolerant = tolerant
        self._count = 0

    def close(self) -> None:
        if self._links != self._directory:
            os.close(self._links)
        os.close(self._directory)

    def link(self, file: int, path: bytes) -> bytes:
        """Store an open file with its inode, else its content. Returns the name or a reason."""
        facts = os.fstat(file)
        size = facts.st_blocks * 512 if facts.st_nlink == 1 else 0
        if size > self._left:
            return self._without(b"the bound of stored files is reached")
        self._count += 1
        name = b"L%d" % self._count
        if self._link(file, name) or self._link_by_path(facts, path, name):
            self._left -= size
            return name
        return self.copy(file)

    def _without(self, reason: bytes) -> bytes:
        if self._strict:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return REASON + reason

    def _link(self, file: int, name: bytes) -> bool:
        try:
            os.link(b"/proc/self/fd/%d" % file, name, dst_dir_fd=self._links)
        except OSError as error:
            if error.errno in _FULL and not self._tolerant:
                raise
            return False
        return True

    def _link_by_path(self, facts: os.stat_result, path: bytes, name: bytes) -> bool:
        """Store a file that was opened through a mount of the command, through our own."""
        try:
            ours = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            here = os.fstat(ours)
            is_same = (here.st_dev, here.st_ino) == (facts.st_dev, facts.st_ino)
            return is_same and self._link(ours, name)
        finally:
            os.close(ours)

    def copy(self, file: int) -> bytes:
        """Store the content of an open file. Returns the name or a reason."""
        try:
            source = os.open(b"/proc/self/fd/%d" % file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return self._without(os.strerror(error.errno or 0).encode())
        try:
            return self._copy(source)
        except OSError as error:
            if error.errno not in _FULL or not self._tolerant:
                raise
            return REASON + os.strerror(error.errno or 0).encode()
        finally:
            os.close(source)

    def _copy(self, source: int) -> bytes:
        self._count += 1
        name = b"%s%d" % (b"C" if self._key is None else b"S", self._count)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        target = os.open(name, flags, 0o600, dir_fd=self._directory)
        try:
            why, check = self._fill(target, source, name)
        except BaseException:
            os.unlink(name, dir_fd=self._directory)
            raise
        finally:
            os.close(target)
        if why is None:
            return name + check
        os.unlink(name, dir_fd=self._directory)
        return self._without(why)

    def _fill(self, target: int, source: int, name: bytes) -> tuple[bytes | None, bytes]:
        """Copy a content to a new file. Returns the reason if that is not permitted, and the
        checksum."""
        size = os.fstat(source).st_size
        if self._key is None and _shares_blocks(source, target):
            return None, b":%d:" % size
        extents = []
        data = 0
        for start, end in _extents(source, size):
            extents.append((start, end))
            data += end - start
            if data > self._max_file:
                return b"larger than %d bytes" % self._max_file, b""
            if data > self._left:
                return b"the bound of stored files is reached", b""
        self._left -= data
        pieces = _parts(source, extents)
        if self._key is not None:
            _seal(target, name, size, pieces, self._key)
            return None, b""
        summed = _Summed(pieces)
        write_parts(target, size, summed)
        return None, b":%d:%d" % (size, summed.sum)


def content_parts(
    file: int, name: bytes, key: bytes | None
) -> tuple[int, Iterator[tuple[int, bytes]]]:
    """Return the size of a stored content, and its parts without holes. The parts raise
    `ValueError` if an encrypted content was changed, or its key is not available."""
    if not name.startswith(b"S"):
        size = os.fstat(file).st_size
        return size, _parts(file, _extents(file, size))
    head = os.pread(file, _SIZE.size, 0)
    if len(head) < _SIZE.size:
        raise ValueError("truncated")
    (size,) = _SIZE.unpack(head)
    return size, _unseal(file, name, size, key)


def path_of(directory: str, name: str) -> str:
    """Return the path of a stored file in the directory of its command."""
    if name.startswith("L"):
        linked = os.path.join(directory, os.fsdecode(LINKS), name)
        if os.path.lexists(linked):
            return linked
    return os.path.join(directory, name)


class _Summed:
    """Parts of a content, and their checksum after the last one."""

    def __init__(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        self._pieces = pieces
        self.sum = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for offset, block in self._pieces:
            self.sum = zlib.crc32(block, self.sum)
            yield offset, block


def is_complete(directory: str, stored: str) -> bool:
    """Whether a stored file is as the log describes it. Reads it if it is a copy."""
    name, _, check = stored.partition(":")
    size, _, crc = check.partition(":")
    try:
        file = os.open(path_of(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found, pieces = content_parts(file, name.encode(), None)
        if not check or found != int(size):
            return not check
        summed = _Summed(pieces if crc else ())
        for _ in summed:
            pass
        return not crc or summed.sum == int(crc)
    finally:
        os.close(file)


def write_parts(target: int, size: int, pieces: Iterable[tuple[int, bytes]]) -> None:
    """Fill an empty file with parts of a content. The rest are holes."""
    for offset, block in pieces:
        left = memoryview(block)
        while left:
            written = os.pwrite(target, left, offset)
            left, offset = left[written:], offset + written
    os.ftruncate(target, size)


def _extents(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that are not holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
            end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno != errno.ENXIO:  # the file system has no holes
                yield at, size
            return
        if start < end:
            yield start, end
        at = max(end, at + 1)


def _parts(file: int, extents: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    for start, end in extents:
        while start < end and (block := os.pread(file, min(_BLOCK, end - start), start)):
            yield start, block
            start += len(block)


def _seal(
    target: int, name: bytes, size: int, pieces: Iterable[tuple[int, bytes]], key: bytes
) -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # lazy: with a key only  # noqa: PLC0415

    cipher = AESGCM(key)
    _write(target, _SIZE.pack(size))
    for number, (offset, block) in enumerate(itertools.chain(pieces, [(size, b"")])):
        sealed = cipher.encrypt(_nonce(name, number), block, _bound_to(name, size, offset))
        _write(target, _PART.pack(offset, len(sealed)) + sealed)


def _unseal(file: int, name: bytes, size: int, key: bytes | None) -> Iterator[tuple[int, bytes]]:
    from cryptography.exceptions import InvalidTag  # lazy: as above  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # lazy: as above  # noqa: PLC0415

    if key is None:
        raise ValueError("the key is not available")
    cipher = AESGCM(key)
    at, number, block = _SIZE.size, 0, b"x"
    while block:
        head = os.pread(file, _PART.size, at)
        if len(head) < _PART.size:
            raise ValueError("truncated")
        offset, length = _PART.unpack(head)
        sealed = os.pread(file, min(length, _BLOCK + _TAG_BYTES), at + _PART.size)
        try:
            block = cipher.decrypt(_nonce(name, number), sealed, _bound_to(name, size, offset))
        except InvalidTag:
            raise ValueError("damaged") from None
        at += _PART.size + length
        number += 1
        if block:
            yield offset, block


def _nonce(name: bytes, number: int) -> bytes:
    """Return a nonce that is used once: each command has its own key, and counts its files."""
    return struct.pack("<IQ", int(name[1:]), number)


def _bound_to(name: bytes, size: int, offset: int) -> bytes:
    return b"callgate pre-image 1:%s:%d:%d" % (name, size, offset)


def _shares_blocks(source: int, target: int) -> bool:
    """Let a new file share the blocks of another one, where the file system can."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        return False
    return True


def _write(descriptor: int, content: bytes) -> None:
    left = content
    while left:
        left = left[os.write(descriptor, left) :]
