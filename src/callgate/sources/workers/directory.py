"""Which workers are connected, to whichever server: each server announces its own in the store."""

from __future__ import annotations

import msgspec

from callgate.core.ops import DropEntry, PutEntry
from callgate.core.stores import Store

KIND = "worker"


class WorkerEntry(msgspec.Struct, frozen=True, kw_only=True):
    pool: str
    name: str
    generation: int
    process: str
    server: str
    """The owner's name, in the store, of the server that it is connected to."""
    version: str
    platform: str
    workspaces: tuple[str, ...]
    tools: tuple[str, ...]
    slots: int
    sandbox: str
    connected_at: float

    @property
    def key(self) -> str:
        return f"{self.pool}/{self.name}/{self.server}"


async def announce(store: Store, entry: WorkerEntry) -> None:
    value = msgspec.json.encode(entry).decode()
    await store.commit(PutEntry(kind=KIND, name=entry.key, value=value))


async def withdraw(store: Store, entry: WorkerEntry) -> None:
    """Unless a later connection was announced under the same name."""
    known = {each.name: each for each in await store.entries(KIND)}.get(entry.key)
    if known is not None and _read(known.value).generation == entry.generation:
        await store.commit(DropEntry(kind=KIND, name=entry.key, expected=known.version))


async def connected_workers(store: Store) -> list[WorkerEntry]:
    """Those of every server that lives."""
    entries = [_read(each.value) for each in await store.entries(KIND)]
    alive = {each.server: await store.alive(each.server) for each in entries}
    return [each for each in entries if alive[each.server]]


async def drop_dead(store: Store) -> None:
    """Remove what servers that are gone have announced."""
    for each in await store.entries(KIND):
        if not await store.alive(_read(each.value).server):
            await store.commit(DropEntry(kind=KIND, name=each.name, expected=each.version))


def _read(value: str) -> WorkerEntry:
    return msgspec.json.decode(value, type=WorkerEntry)
