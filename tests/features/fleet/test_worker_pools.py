"""The pools of a server whose store cannot be read for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from callgate.core.errors import ToolHostUnavailable
from callgate.core.sessions import PoolWorkspace
from callgate.core.stored import SharedEntry
from callgate.core.stores import StoreUnreadable, Trouble
from callgate.features.fleet import directory
from callgate.features.fleet.pools import REVOKED, WorkerIdentity, WorkerLink, WorkerPools
from tests.memory_store import MemoryStore


class Store(MemoryStore):
    is_away = False
    asked = 0

    async def entries(self, kind: str) -> Sequence[SharedEntry]:
        self.asked += 1
        if self.is_away:
            raise StoreUnreadable("the database", Trouble.UNREACHABLE)
        return await super().entries(kind)


async def until(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def pools_of(store: Store) -> WorkerPools:
    async def opened() -> Any:
        return store

    return WorkerPools(opened)


async def test_a_call_without_a_worker_is_refused_while_the_store_is_away() -> None:
    store = Store()
    store.is_away = True
    with pytest.raises(ToolHostUnavailable) as caught:
        await pools_of(store).choose(PoolWorkspace("build", "app"), "read_file", "s1")
    assert caught.value.reason == "no_worker"


async def test_a_revoked_token_cuts_its_worker_also_after_the_store_was_away() -> None:
    store = Store()
    pools = pools_of(store)
    await directory.create_token(store, "mine", ("build",))
    ended: list[int] = []
    link = WorkerLink(
        WorkerIdentity("build", "one", "p", "mine"), lambda frame: None, lambda code, reason: ended.append(code)
    )
    pools._links[link.identity.key] = link
    watching = asyncio.create_task(pools._watch(store))  # type: ignore[arg-type]
    store.is_away = True
    before = store.asked
    await store.commit(*[])
    await tokens_changed(store)
    await until(lambda: store.asked > before)
    store.is_away = False
    await directory.revoke_token(store, "mine")
    await until(lambda: ended == [REVOKED])
    watching.cancel()


async def tokens_changed(store: Store) -> None:
    """As another server does it."""
    other = MemoryStore(store.tables)
    await directory.create_token(other, "another", ("build",))
    await other.close()
