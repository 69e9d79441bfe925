"""Contents kept under their own hash: each once, whole or not at all, for its owner only.

A content that is wanted again is touched, and one that is dropped is moved aside first: if it
was touched in between it goes back. So two processes can keep and drop at the same time.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator
from hashlib import sha256

from callgate.core.directories import make_private_directory, sync_file
from callgate.workspace.paths import opening

_TEMPORARY = "tmp-"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1024 * 1024


class Blobs:
    """A directory of contents. Every method raises `OSError` where the disk fails."""

    def __init__(self, directory: str, *, synced: bool = True) -> None:
        """Without `synced` nothing waits for the disk."""
        self._directory = directory
        self._synced = synced

    def keep(self, content: bytes, digest: str, *, durable: bool) -> bool:
        """Keep a content; once durable it outlives a loss of power. Whether it was new."""
        path, durable = self._path(digest), durable and self._synced
        try:
            os.utime(path)
            if durable:
                _sync(path)
                _sync(os.path.dirname(path))
            return False
        except FileNotFoundError:
            pass
        beside = os.path.join(self._directory, _TEMPORARY + secrets.token_hex(8))
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
        """A content, if it is still kept and still what it was."""
        try:
            with opening(), open(self._path(digest), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        return content if sha256(content).hexdigest() == digest else None

    def sizes(self) -> dict[str, int]:
        """Everything that is kept."""
        return {name: status.st_size for name, status in self._scan() if len(name) == 64}

    def drop_others(self, wanted: Collection[str], older_than: float) -> None:
        """Drop what is not wanted and was not touched lately, and the remains of crashes."""
        for name, status in list(self._scan()):
            if name in wanted or status.st_mtime >= older_than:
                continue
            if len(name) != 64:
                _unlink(os.path.join(self._directory, name))
                continue
            path = self._path(name)
            aside = os.path.join(self._directory, _TEMPORARY + secrets.token_hex(8))
            try:
                os.rename(path, aside)
            except FileNotFoundError:
                continue  # another process drops it too
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

    def _path(self, digest: str) -> str:
        return os.path.join(self._directory, digest[:2], digest)

    def _scan(self) -> Iterator[tuple[str, os.stat_result]]:
        for directory, _, names in os.walk(self._directory):
            for name in names:
                try:
                    yield name, os.stat(os.path.join(directory, name))
                except FileNotFoundError:
                    continue


def _write_new(path: str, content: bytes, *, durable: bool) -> None:
    """A new file with this content, or none."""
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
    """The hash of an open file's content, however large."""
    hashed = sha256()
    while block := os.read(fd, _BLOCK):
        hashed.update(block)
    return hashed.hexdigest()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
