"""Which connection of a worker counts: each has a generation, and a newer process ends the older.

    connects -> generation n + 1, in the store -> connections of other processes with less are cut

So a worker that was replaced, or was stopped and wakes up, can neither answer nor be given a call.
One process may be connected to several servers at once: it does not fence itself.
"""

from __future__ import annotations

import msgspec

from callgate.core.ops import PutEntry
from callgate.core.stores import Store

KIND = "worker_generation"


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    process: str
    """A random name that a worker's process has from its start to its end."""

    def cuts(self, generation: int, process: str) -> bool:
        """Whether a connection does not count any more."""
        return process != self.process and generation < self.generation


async def raise_fence(store: Store, worker: str, process: str) -> int:
    """The generation of a new connection of this worker."""
    while True:
        entries = {each.name: each for each in await store.entries(KIND)}
        known = entries.get(worker)
        generation = 1 if known is None else _read(known.value).generation + 1
        value = msgspec.json.encode(Fence(generation=generation, process=process)).decode()
        version = 0 if known is None else known.version
        (receipt,) = await store.commit(
            PutEntry(kind=KIND, name=worker, value=value, expected=version)
        )
        if receipt.applied:
            return generation


async def read_fences(store: Store) -> dict[str, Fence]:
    """By worker (`pool/name`)."""
    return {each.name: _read(each.value) for each in await store.entries(KIND)}


def _read(value: str) -> Fence:
    return msgspec.json.decode(value, type=Fence)
