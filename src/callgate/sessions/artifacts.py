"""Files that the calls of a session store: one directory per session, deleted with it.

If several homes share a store, every server has them after a takeover:

    a call ends ---> its files are in the store as blobs, and an entry lists the parts of each
    a session is resumed elsewhere ---> files that its new home does not have are written there
    a session is deleted ---> its entries and blobs are deleted

A blob begins with its location, so no two files share one. The entry is written before the parts: a
crash leaves no unlisted part.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from callgate.core.local.disk import make_private_directory
from callgate.core.ops import DeleteSession, DropBlob, DropEntry, PutBlob, PutEntry
from callgate.core.stored import SharedEntry, StoredSession
from callgate.core.stores import SessionNotFound, Store, StoreError

_log = logging.getLogger("callgate.sessions")


def drop_artifacts(root: str, session: str) -> int:
    """Remove the directory of a session. Returns the number of bytes in it."""
    directory = directory_of(root, session)
    if directory is None:
        return 0
    size = size_of(directory)
    import shutil  # lazy: heavy, and few delete anything  # noqa: PLC0415

    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return 0
    except OSError as error:
        _log.warning("%s could not be removed: %s", directory, error)
        return max(0, size - size_of(directory))
    return size


def directory_of(root: str, session: str) -> str | None:
    """Return the directory of a session; None for an id that callgate did not create."""
    if session in ("", ".", "..") or os.path.basename(session) != session:
        return None
    return os.path.join(root, session)


def directories(root: str) -> list[tuple[str, float]]:
    """Return the sessions with a directory, and the time of its last change."""
    try:
        with os.scandir(root) as entries:
            return [
                (entry.name, entry.stat(follow_symlinks=False).st_mtime)
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []


def old_files(directory: str, before: float) -> dict[str, int]:
    """Return files that were last changed before a moment, with their sizes."""
    return {path: size for path, size, changed in _files(directory) if changed < before}


def size_of(directory: str) -> int:
    return sum(size for _, size, _ in _files(directory))


def _files(directory: str) -> Iterator[tuple[str, int, float]]:
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            try:
                status = os.lstat(path)
            except OSError:  # deleted since the list was read
                continue
            yield path, status.st_size, status.st_mtime


PART_BYTES = 8 * 1024 * 1024
LARGEST = 512 * 1024 * 1024
"""Maximum size of a shared artifact; a larger one stays in its home."""


class Blobs(Protocol):
    """Storage of the contents."""

    async def put(self, data: bytes) -> None: ...
    async def get(self, sha256: str) -> bytes | None: ...
    async def drop(self, sha256: str) -> None: ...


class StoreBlobs:
    """Storage of the contents in the store itself."""

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
    """Time of the last change."""
    parts: tuple[str, ...]
    """Hashes of blobs."""
    is_complete: bool = False


class SharedArtifacts:
    def __init__(self, find_store: Callable[[], Awaitable[Store]], root: str) -> None:
        """`root` has a directory for each session."""
        self._find_store = find_store
        self._root = root

    async def share(self, session: str, paths: Sequence[str]) -> None:
        """Share these files with other homes, as far as a tool created them. Best effort."""
        for path in paths:
            try:
                store = await self._find_store()
                await _share(store, StoreBlobs(store), session, path)
            except FileNotFoundError:
                continue  # the tool did not create the file
            except (StoreError, OSError) as error:
                _log.warning("%s is not shared: %s", path, error)

    async def fetch(self, session: str) -> str | None:
        """Copy a session's shared files from the store to this home, unless they are here. Returns
        their directory; None if there are no files. Raises a `StoreError` or `OSError`."""
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
    """Return the kind of a session's entries, which are named like its files."""
    return f"artifact.{session}"


async def drop_shared(store: Store, session: str, before: float | None = None) -> int:
    """Delete the shared artifacts of a session, or those last changed before a moment; return their
    number."""
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
    blobs = (_part(session, name, path, number) for number in range(count))
    hashes = tuple(hashlib.sha256(part).hexdigest() for part in blobs)
    return status.st_size, status.st_mtime, hashes


def _part(session: str, name: str, path: str, number: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        data = os.pread(descriptor, PART_BYTES, number * PART_BYTES)
    finally:
        os.close(descriptor)
    return _header(session, name, number) + data


def _header(session: str, name: str, number: int) -> bytes:
    return f"{session}/{name}/{number}\n".encode("utf-8", "surrogateescape")


async def _fetch(blobs: Blobs, session: str, entry: SharedEntry, directory: str) -> None:
    artifact = _read(entry)
    path = os.path.join(directory, os.path.basename(entry.name))
    if artifact is None or not artifact.is_complete or os.path.basename(path) != entry.name:
        return
    if entry.name.startswith(".") or os.path.lexists(path):
        return
    pieces = []
    for number, sha256 in enumerate(artifact.parts):
        blob, header = await blobs.get(sha256), _header(session, entry.name, number)
        if blob is None or not blob.startswith(header) or _hash(blob) != sha256:
            _log.warning("%s of session %s is not whole in the store", entry.name, session)
            return
        pieces.append(blob[len(header) :])
    await asyncio.to_thread(_write, path, pieces)


def _write(path: str, blobs: Sequence[bytes]) -> None:
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(blobs)
    os.replace(temporary, path)


def _read(entry: SharedEntry) -> Artifact | None:
    try:
        return msgspec.json.decode(entry.value, type=Artifact)
    except (ValueError, RecursionError):
        return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def all_sessions(store: Store) -> list[StoredSession]:
    """Return all sessions, including sub-agents."""
    found: list[StoredSession] = []
    cursor: str | None = None
    while True:
        page = await store.list_sessions(cursor=cursor, limit=1_000, workers=True)
        found += page.sessions
        cursor = page.cursor
        if cursor is None:
            return found


async def family_of(store: Store, id: str) -> list[StoredSession]:
    """Return a session with its sub-agents, recursively; empty if it does not exist."""
    try:
        family = [await store.get_session(id)]
    except SessionNotFound:
        return []
    for member in family:  # grows while it is read
        family += await store.workers_of(member.id)
    return family


async def delete_session(
    store: Store, id: str, family: Sequence[StoredSession], artifacts: str | None
) -> None:
    """Delete a session and its family. `artifacts` is the directory of their artifacts.

    Raises `SessionLocked` while a living process owns it."""

    await store.commit(DeleteSession(session=id))
    for each in family:
        if artifacts is not None:
            drop_artifacts(artifacts, each.id)
        await drop_shared(store, each.id)
