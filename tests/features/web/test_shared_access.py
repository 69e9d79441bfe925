"""Servers that share a store let in the same people: one token, codes that are good once anywhere, one rotation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate.features.fleet.membership import USED, SharedAccess
from callgate.features.web.access import SHORT_S, Visitor
from tests.memory_store import MemoryStore, Tables


class Servers:
    """Two servers on one store, with one clock."""

    def __init__(self, path: Path) -> None:
        self.now = 1_000.0
        self.tables = Tables()
        self.stores = [MemoryStore(self.tables), MemoryStore(self.tables)]
        self.each = [self.make(path / name, store) for name, store in zip("ab", self.stores, strict=True)]

    def make(self, path: Path, store: MemoryStore) -> SharedAccess:
        async def opened() -> Any:
            return store

        async def find_key(store: Any) -> bytes:
            return bytes(range(32))

        return SharedAccess(str(path), opened, find_key, lambda: self.now)


@asynccontextmanager
async def following(servers: Servers) -> AsyncIterator[tuple[SharedAccess, SharedAccess]]:
    one, other = servers.each
    tasks = [asyncio.ensure_future(each.follow()) for each in servers.each]
    await until(lambda: one.token == other.token)
    yield one, other
    for task in tasks:
        task.cancel()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path)


async def test_every_server_takes_the_token_of_every_other_one(servers: Servers, tmp_path: Path) -> None:
    before = servers.each[0].token
    async with following(servers) as (one, other):
        assert one.is_token(other.token) and other.is_token(one.token)
        assert one.is_token(before) and not other.is_token(before)
        assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == one.token + "\n"
        assert not one.is_token("") and not one.is_token("x")


async def test_a_login_code_of_one_server_is_good_once_at_another(servers: Servers) -> None:
    async with following(servers) as (one, other):
        code = one.new_code()
        cookies = await asyncio.gather(one.log_in(code), other.log_in(code), one.log_in(code))
        [cookie] = [each for each in cookies if each is not None]
        assert one.is_cookie(cookie) and other.is_cookie(cookie)
        assert await other.log_in(code) is None


async def test_codes_run_out_and_what_was_used_is_forgotten(servers: Servers) -> None:
    async with following(servers) as (one, other):
        late, attach = one.new_code(), one.new_attach("sess_1")
        assert await one.log_in(one.new_code()) is not None
        servers.now += SHORT_S + 1
        assert await other.log_in(late) is None
        assert await other.attach(attach) is None
        servers.now += SHORT_S + 60
        assert await other.log_in(other.new_code()) is not None
        assert len(await servers.stores[0].entries(USED)) == 1


async def test_an_attach_token_opens_its_session_once(servers: Servers) -> None:
    async with following(servers) as (one, other):
        token = one.new_attach("sess_1")
        assert await other.log_in(token) is None  # it is no code
        assert await other.attach(token) == Visitor("sess_1")
        assert await one.attach(token) is None
        assert await one.attach(one.new_code()) is None


async def test_a_rotation_at_one_server_voids_everything_at_all(servers: Servers) -> None:
    async with following(servers) as (one, other):
        token, code, attach = one.token, one.new_code(), one.new_attach("sess_1")
        cookie = await one.log_in(one.new_code())
        assert cookie is not None
        heard: list[str] = []
        other.on_rotate(lambda: heard.append("b"))
        await one.rotate()
        await until(lambda: bool(heard) and one.token == other.token)
        assert one.token != token
        for each in (one, other):
            assert not each.is_token(token) and not each.is_cookie(cookie)
            assert await each.log_in(code) is None and await each.attach(attach) is None


async def test_nothing_that_was_changed_or_made_up_is_taken(servers: Servers) -> None:
    async with following(servers) as (one, other):
        cookie = await one.log_in(one.new_code())
        assert cookie is not None
        name, _, signature = cookie.partition(".")
        for bad in ("", ".", name, f"{name}.", f"x{cookie}", f"{name}.{signature[:-2]}", f"{name}x.{signature}", "é.ü"):
            assert not other.is_cookie(bad)
        code = one.new_code()
        for bad in ("", ".", code[1:], code[:-3], code.replace(".", ".x"), "e30." + code.partition(".")[2]):
            assert await other.log_in(bad) is None
        assert await other.log_in(code) is not None
