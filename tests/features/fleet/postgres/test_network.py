"""A network that is slow, or gone for a while: every commit is told its outcome in time, and truly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from callgate.core.ops import Acquire
from callgate.core.stores import SessionLocked, Trouble
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from tests.features.fleet.postgres.chaos import Follower, faults, prepare, reap_everything, servers, verify
from tests.features.fleet.postgres.children import process
from tests.features.fleet.postgres.test_living import gone, until
from tests.kernel.contract.stores import new_session
from tests.namespaces import DATABASE_ADDRESS, Network, network
from tests.needs import needs
from tests.postgres import Cluster, installations

ANSWER_S, CONNECT_S = 1.5, 2.0
GIVEN_UP_S = 60.0
"""On a busy machine; without limits of its own the store waits for the network: over two minutes."""


class Link:
    """A proxy before a cluster that delays what it passes on, or passes nothing on."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.open = asyncio.Event()
        self.open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, cluster: Cluster) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            path = f"{cluster.directory}/.s.PGSQL.{cluster.port}"
            to_reader, to_writer = await asyncio.open_unix_connection(path)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(self._pass(reader, to_writer), self._pass(to_reader, writer))
            writer.close()
            to_writer.close()

        self._server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://callgate@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(1 << 16):
            await self.open.wait()
            loop.call_later(self.delay_s, writer.write, data)
        writer.close()

    async def stop(self) -> None:
        assert self._server is not None
        self.open.set()
        self._server.close()


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    link = Link()
    yield link
    await link.stop()


def _place(cluster: Cluster, url: str, **more: Any) -> PostgresLocation:
    return PostgresLocation(
        url=url, schema=cluster.location().schema, answer_s=ANSWER_S, connect_s=CONNECT_S, beat_s=0.3, **more
    )


async def _until_done(probe: Any) -> None:
    """It comes back by itself, a moment later: while it is known to be away nobody waits for it."""
    async with asyncio.timeout(30):
        while True:
            probe.tell("go")
            said = [await probe.hear() for _ in range(2)]
            if {each.get("commit") or each.get("read") for each in said} == {"done"}:
                return


async def test_a_database_that_takes_questions_and_does_not_answer_is_given_up(cluster: Cluster, link: Link) -> None:
    location = _place(cluster, await link.start(cluster))
    async with await PostgresStore.open(PostgresLocation(url=cluster.url, schema=location.schema)) as near:
        session = await new_session(near)
        async with process("probe", location, session) as probe:
            await probe.hear()
            link.open.clear()
            probe.tell("go")
            said = [await probe.hear() for _ in range(2)]
            outcomes = {each.get("commit") or each.get("read") for each in said}
            assert outcomes == {Trouble.UNREACHABLE}
            assert all(each["took_s"] < GIVEN_UP_S for each in said)
            [commit] = [each for each in said if "commit" in each]
            assert commit["unknown"] is True
            link.open.set()
            await _until_done(probe)
        ids = [each.id for each in await near.read_events(session)]
        assert len(ids) == len(set(ids))
        assert len(ids) in (2, 3)  # the unknown one is there or not


async def test_twenty_milliseconds_between_server_and_database_slow_it_and_break_nothing(
    cluster: Cluster, link: Link
) -> None:
    location = _place(cluster, await link.start(cluster))
    near = PostgresLocation(url=cluster.url, schema=location.schema, grace_s=0.5, silent_s=3.0)
    async with await PostgresStore.open(near) as store:
        await prepare(store)
        follower = Follower(store)
        link.delay_s = 0.02
        async with servers(location, 2) as some:
            await some.until_more(60)
            await some.end()
        await reap_everything(store)
        await follower.finish()
        figures = await verify(store, some.heard, follower)
    print(figures)
    assert faults(figures) == {}
    assert figures["troubles"] == 0


async def test_a_process_that_is_cut_off_for_a_moment_keeps_its_sessions(cluster: Cluster, link: Link) -> None:
    """Connections that it gave up end on the other side when the network is back: not all at once."""
    location = _place(cluster, await link.start(cluster))
    near = PostgresLocation(url=cluster.url, schema=location.schema)
    async with await PostgresStore.open(near) as rival:
        session = await new_session(rival)

        async def grab() -> None:
            while True:
                with pytest.raises(SessionLocked):
                    await rival.commit(Acquire(session=session, owner=rival.owner, at=1.0))

        async with process("hold", location, session) as holder:
            await holder.hear()
            grabbing = asyncio.create_task(grab())
            link.open.clear()
            holder.tell("fenced")
            said = await holder.hear()
            assert said["fenced"] == Trouble.UNREACHABLE
            link.open.set()

            async def done() -> bool:
                holder.tell("fenced")
                return (await holder.hear())["fenced"] == "done"

            await until(done)
            assert not grabbing.done(), "a living process lost its session"
            grabbing.cancel()


@pytest.fixture
def far() -> Iterator[tuple[Network, Cluster]]:
    """A database on another machine."""
    with network() as between:
        found = installations()
        settings = {"listen_addresses": DATABASE_ADDRESS}
        cluster = Cluster(found[min(found)], durable=True, namespace=between.database, **settings)
        try:
            rules = cluster.data / "pg_hba.conf"
            rules.write_text(rules.read_text() + "host all all 10.77.0.0/16 trust\n")
            cluster.start()
            yield between, cluster
        finally:
            cluster.remove()


def _far(cluster: Cluster, **more: Any) -> PostgresLocation:
    url = f"postgresql://callgate@{DATABASE_ADDRESS}:{cluster.port}/postgres?sslmode=disable&gssencmode=disable"
    return _place(cluster, url, **more)


@needs("root", "ip", "setpriv")
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("cuts", [1, pytest.param(20, marks=pytest.mark.soak)])
async def test_a_cut_cable_loses_nothing_and_doubles_nothing(far: tuple[Network, Cluster], cuts: int) -> None:
    between, cluster = far
    # Longer than any cut, as long as a busy machine makes it.
    location = _far(cluster, silent_s=300.0, stopped_s=300.0)
    near = PostgresLocation(url=cluster.url, schema=location.schema, grace_s=0.5, silent_s=5.0)
    async with await PostgresStore.open(near) as store:
        await prepare(store)
        session = await new_session(store)
        follower = Follower(store)
        prefix = between.on_server()
        async with servers(location, 2, prefix) as some, process("probe", location, session, prefix=prefix) as probe:
            await probe.hear()
            for _ in range(cuts):
                await some.until_more(20)
                before = len(some.heard)
                between.cut()
                probe.tell("go")
                said = [await probe.hear() for _ in range(2)]
                assert {each.get("commit") or each.get("read") for each in said} == {Trouble.UNREACHABLE}
                assert all(each["took_s"] < GIVEN_UP_S for each in said)
                await some.until(lambda before=before: False in _unknown(some.heard[before:]))  # type: ignore[misc]
                between.mend()
                await some.until_more(20)  # by itself
                await _until_done(probe)
            troubles = [each for each in some.heard if "trouble" in each]
            assert cuts == 1 or _unknown(troubles) == {True, False}
            reasons = {each["trouble"] for each in troubles}
            # After the cut, the server may for a moment hold what it got half of.
            assert Trouble.UNREACHABLE in reasons
            assert reasons <= {Trouble.UNREACHABLE, Trouble.BUSY}
            assert all(each["after_s"] < GIVEN_UP_S for each in troubles)
            await some.end()
        await reap_everything(store)
        await follower.finish()
        heard = [each for each in some.heard if not {"told_dead", "stale"} & set(each)]
        assert heard == some.heard, "a cut shorter than `stopped_s` made somebody dead"
        figures = await verify(store, some.heard, follower)
    print(figures)
    assert faults(figures) == {}


def _unknown(heard: list[dict[str, Any]]) -> set[bool]:
    """Of commits that were on their way when the cable was cut it is not known whether they arrived;
    of those that did not find a connection it is."""
    return {each["unknown"] for each in heard if "trouble" in each}


@needs("root", "ip", "setpriv")
async def test_a_process_that_is_cut_off_for_long_is_fenced(far: tuple[Network, Cluster]) -> None:
    between, cluster = far
    location = _far(cluster, silent_s=2.0)
    near = PostgresLocation(url=cluster.url, schema=location.schema, silent_s=2.0, beat_s=0.3)
    async with await PostgresStore.open(near) as store:
        session = await new_session(store)
        acquire = Acquire(session=session, owner=store.owner, at=1.0)
        async with process("hold", location, session, prefix=between.on_server()) as holder:
            held = await holder.hear()
            between.cut()
            with pytest.raises(SessionLocked):
                await store.commit(acquire)
            await until(lambda: gone(store, held["owner"]))
            await store.commit(acquire)
            before = [each.id for each in await store.read_events(session)]
            between.mend()
            holder.tell("go on")
            said = await holder.hear()
            assert said.pop("is_dead")
            assert set(said.values()) == {Trouble.TAKEN_FOR_DEAD}
            assert [each.id for each in await store.read_events(session)] == before


@needs("root", "ip", "setpriv", "tc")
async def test_a_slow_network_breaks_nothing(far: tuple[Network, Cluster]) -> None:
    between, cluster = far
    if not between.delay(10):
        pytest.skip("needs netem: the kernel has no such module")
    location = _far(cluster)
    near = PostgresLocation(url=cluster.url, schema=location.schema, grace_s=0.5)
    async with await PostgresStore.open(near) as store:
        await prepare(store)
        async with servers(location, 2, between.on_server()) as some:
            await some.until_more(40)
            await some.end()
        await reap_everything(store)
        assert faults(await verify(store, some.heard)) == {}
