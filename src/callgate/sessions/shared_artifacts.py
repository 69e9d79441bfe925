"""What calls put aside, where several homes share a store: any server has it after a takeover.

    a call ends ---> its files are in the store as blobs, and an entry lists the parts of each
    a session is resumed elsewhere ---> the files that its new home does not have are written there
    a session goes ---> its entries and blobs go

A blob begins with the place that it belongs to, so no two files ever share one, and none is needed
by another when it is dropped. The entry is there before the parts: a crash leaves none unlisted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from callgate.core.directories import make_private_directory
from callgate.core.ops import DropBlob, DropEntry, PutBlob, PutEntry
from callgate.core.stored import SharedEntry
from callgate.core.stores import Store, StoreError
from callgate.sessions.artifacts import directory_of

PART_BYTES = 8 * 1024 * 1024
LARGEST = 512 * 1024 * 1024
"""What is larger stays in its home."""

_log = logging.getLogger("callgate.sessions")


class Blobs(Protocol):
    """Where the bytes are kept."""

    async def put(self, data: bytes) -> None: ...
    async def get(self, sha256: str) -> bytes | None: ...
    async def drop(self, sha256: str) -> None: ...


class StoreBlobs:
    """In the store itself."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, data: bytes) -> None:
        await self._store.commit(PutBlob(data=data))

    async def get(self, sha256: str) -> bytes | None:
        return await self._store.get_blob(sha256)

    async def drop(self, sha256: str) -> None:
        await self._store.commit(DropBlob(sha256=sha256))


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """The value of an entry."""

    size: int
    at: float
    """When it was last changed."""
    parts: tuple[str, ...]
    """Hashes of blobs."""
    is_complete: bool = False


class SharedArtifacts:
    def __init__(self, find_store: Callable[[], Awaitable[Store]], root: str) -> None:
        """`root` has a directory for each session."""
        self._find_store = find_store
        self._root = root

    async def share(self, session: str, paths: Sequence[str]) -> None:
        """Have other homes know these files, as far as a tool made them. Does what it can."""
        for path in paths:
            try:
                store = await self._find_store()
                await _share(store, StoreBlobs(store), session, path)
            except FileNotFoundError:
                continue  # there was nothing to put aside after all
            except (StoreError, OSError) as error:
                _log.warning("%s is not shared: %s", path, error)

    async def fetch(self, session: str) -> str | None:
        """Write the files of a session that this home does not have; its directory, if it has any.
        Raises a `StoreError` or OSError."""
        directory = directory_of(self._root, session)
        store = await self._find_store()
        entries = await store.entries(kind_of(session))
        if directory is None or not entries:
            return None
        make_private_directory(self._root)
        make_private_directory(directory)
        for entry in entries:
            await _fetch(StoreBlobs(store), session, entry, directory)
        return directory


def kind_of(session: str) -> str:
    """The kind of the entries of a session, by the names of its files."""
    return f"artifact.{session}"


async def drop_shared(store: Store, session: str, before: float | None = None) -> int:
    """Forget what is shared of a session, or what was last changed before a moment; how much."""
    dropped = 0
    blobs = StoreBlobs(store)
    for entry in await store.entries(kind_of(session)):
        artifact = _read(entry)
        if before is not None and (artifact is None or artifact.at >= before):
            continue
        for sha256 in () if artifact is None else artifact.parts:
            await blobs.drop(sha256)
        await store.commit(DropEntry(kind=entry.kind, name=entry.name))
        dropped += 1
    return dropped


async def _share(store: Store, blobs: Blobs, session: str, path: str) -> None:
    name = os.path.basename(path)
    size, at, hashes = await asyncio.to_thread(_measure, session, name, path)
    if size > LARGEST:
        _log.warning("%s is too large to be shared", path)
        return
    artifact = Artifact(size=size, at=at, parts=hashes)
    await store.commit(_put(session, name, artifact))
    for number in range(len(hashes)):
        await blobs.put(await asyncio.to_thread(_part, session, name, path, number))
    await store.commit(_put(session, name, msgspec.structs.replace(artifact, is_complete=True)))


def _put(session: str, name: str, artifact: Artifact) -> PutEntry:
    value = msgspec.json.encode(artifact).decode()
    return PutEntry(kind=kind_of(session), name=name, value=value)


def _measure(session: str, name: str, path: str) -> tuple[int, float, tuple[str, ...]]:
    status = os.lstat(path)
    count = -(-status.st_size // PART_BYTES) if status.st_size <= LARGEST else 0
    parts = (_part(session, name, path, number) for number in range(count))
    hashes = tuple(hashlib.sha256(part).hexdigest() for part in parts)
    return status.st_size, status.st_mtime, hashes


def _part(session: str, name: str, path: str, number: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        data = os.pread(descriptor, PART_BYTES, number * PART_BYTES)
    finally:
        os.close(descriptor)
    return _place(session, name, number) + data


def _place(session: str, name: str, number: int) -> bytes:
    return f"{session}/{name}/{number}\n".encode("utf-8", "surrogateescape")


async def _fetch(blobs: Blobs, session: str, entry: SharedEntry, directory: str) -> None:
    artifact = _read(entry)
    path = os.path.join(directory, os.path.basename(entry.name))
    if artifact is None or not artifact.is_complete or os.path.basename(path) != entry.name:
        return
    if entry.name.startswith(".") or os.path.lexists(path):
        return
    parts = []
    for number, sha256 in enumerate(artifact.parts):
        blob, place = await blobs.get(sha256), _place(session, entry.name, number)
        if blob is None or not blob.startswith(place) or _hash(blob) != sha256:
            _log.warning("%s of session %s is not whole in the store", entry.name, session)
            return
        parts.append(blob[len(place) :])
    await asyncio.to_thread(_write, path, parts)


def _write(path: str, parts: Sequence[bytes]) -> None:
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(parts)
    os.replace(temporary, path)


def _read(entry: SharedEntry) -> Artifact | None:
    try:
        return msgspec.json.decode(entry.value, type=Artifact)
    except (ValueError, RecursionError):
        return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
