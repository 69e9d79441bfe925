"""Several homes, one store: what a killed server left is closed once, and by whoever can know how it ended."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from callgate import Answer, Gate, Outcome, Scope
from callgate.audit.keys import read_key
from callgate.audit.verify import verify
from callgate.core.events import CALLED, COMPLETED, FAILED, TERMINAL
from callgate.core.ids import home_of, owner_id
from callgate.core.ops import DeleteSession
from callgate.sessions.audit_comparison import compare
from callgate.sessions.homes import DEAD_OWNER, HOME, HomeIdentity, declare_home, lost_owners
from tests.kernel.gate.lives import mark
from tests.kernel.sessions.sites import LIVES, Site
from tests.kernel.storage.processes import Child, all_events, child, kill_again_and_again
from tests.memory_store import MemoryStore, Tables


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    if request.param == "sqlite":
        return Site(tmp_path)
    return Site(tmp_path, request.getfixturevalue("database").location())


INTERRUPTED = (FAILED, "interrupted")


def test_the_name_of_an_owner_tells_its_home() -> None:
    home = owner_id()[4:]
    assert home_of(owner_id(home)) == home
    assert home_of(owner_id()) is None
    assert [home_of(name) for name in ("", "own_", "own_dead", "x" * 31, "own_" + "x" * 26 + "_")] == [None] * 5


async def test_a_home_keeps_its_id_and_no_file_of_sessions(site: Site) -> None:
    a, b = site.homes
    for home in (a, b, a):
        await site.look(home)
    ids = {(home / "home.id").read_text() for home in (a, b)}
    assert len(ids) == 2
    await site.look(a)
    assert (a / "home.id").read_text() in ids
    assert not (a / "callgate.db").exists()


async def test_a_call_with_effects_of_a_killed_server_ends_at_once_and_has_one_line_at_the_other(site: Site) -> None:
    a, b = site.homes
    said = await site.die("writing", a)
    await site.look(b)
    assert await site.ends(said["session"]) == [INTERRUPTED]
    assert [line.call_id for line in site.lines(b)] == [said["call"]]
    for home in (a, b):
        await site.look(home)
    assert site.lines(a) == []
    assert len(site.lines(b)) == 1


async def test_a_call_that_only_the_log_of_a_dead_server_knows_ended_is_not_closed_by_another(site: Site) -> None:
    a, b = site.homes
    said = await site.die("answered", a)
    for _ in range(2):
        await site.look(b)
        assert await site.ends(said["session"]) == [], "only its home knows how it ended"
    await site.look(a)
    assert await site.ends(said["session"]) == [(COMPLETED, None)]
    await site.look(b)
    assert [line.call_id for home in (a, b) for line in site.lines(home)] == [said["call"]]
    async with site.store() as store:
        assert [*await store.cut_sessions(), *await store.outbox(), *await store.entries(DEAD_OWNER)] == []


async def test_a_call_that_a_kill_cut_off_is_interrupted_by_its_own_home_when_it_comes_back(site: Site) -> None:
    a, b = site.homes
    said = await site.die("hang", a)
    await site.look(b)
    assert await site.ends(said["session"]) == []
    await site.look(a)
    assert await site.ends(said["session"]) == [INTERRUPTED]
    assert [line.call_id for line in site.lines(a)] == [said["call"]]
    await site.look(b)
    assert site.lines(b) == []


async def test_what_a_lost_home_left_open_ends_as_interrupted_and_stays_so(site: Site) -> None:
    a, c, b = site.home("a"), site.home("c"), site.home("b", lost_after_minutes=0)
    hanging, answered = await site.die("hang", c), await site.die("answered", a)
    for _ in range(2):  # the first look notes that they are gone
        await site.look(b)
    assert await site.ends(hanging["session"]) == [INTERRUPTED]
    assert await site.ends(answered["session"]) == [INTERRUPTED]
    assert {line.call_id for line in site.lines(b)} == {hanging["call"], answered["call"]}
    for home in (a, c):  # they come back after all
        await site.look(home)
    assert await site.ends(hanging["session"]) == [INTERRUPTED]
    assert await site.ends(answered["session"]) == [INTERRUPTED], "a call has two ends"
    assert len(site.lines(b)) == 2


async def test_a_line_that_contradicts_the_store_is_reported_for_ever(site: Site) -> None:
    a, b = site.home("a"), site.home("b", lost_after_minutes=0)
    answered = await site.die("answered", a)
    for _ in range(2):  # the first look notes that it is gone
        await site.look(b)

    async def problems() -> list[str]:
        others = [(str(b / "audit.jsonl"), str(b / "run"))]
        async with site.store() as store:
            found = await compare(store, str(a / "audit.jsonl"), str(a / "run"), others=others, is_shared=True)
        return [each.what for each in found.problems]

    otherwise = [f"call {answered['call']} ended otherwise in the store"]
    assert await problems() == otherwise
    for _ in range(2):  # it comes back, and once more
        await site.look(a)
        assert await problems() == otherwise
    async with site.store() as store:
        await store.commit(DeleteSession(session=answered["session"]))
    assert await problems() == otherwise, "the note stays when the rows are gone"
    (line,) = [each for each in site.lines(a) if each.call_id == answered["call"]]
    (a / "audit.jsonl").unlink()
    assert await problems() == [f"line {line.id}, which was dropped, told another end than the store"]


async def test_a_home_that_lives_is_waited_for(site: Site) -> None:
    a, b = site.home("a"), site.home("b", lost_after_minutes=0)
    said = await site.die("answered", a)
    async with child("recover", a, site.ws, module=LIVES) as server:
        await server.hear()
        tables = await site.open_store()
        async with tables as store:
            identity = HomeIdentity(id=(a / "home.id").read_text().strip())
            await declare_home(store, identity)  # as a server of that home does
            for _ in range(3):
                await site.look(b)
            assert await site.ends(said["session"]) == []
    for _ in range(2):
        await site.look(b)
    assert await site.ends(said["session"]) == [INTERRUPTED]


async def test_the_line_of_an_answered_call_is_not_written_by_another_server(site: Site) -> None:
    a, b = site.homes
    said = await site.die("finished", a)
    await site.look(b)
    assert site.lines(b) == []
    assert [line.call_id for line in site.lines(a)] == [said["call"]]
    async with site.store() as store:
        assert [each.call_id for each in await store.outbox()] == [said["call"]], "its home looks for its line"
    await site.look(a)
    assert len(site.lines(a)) == 1
    async with site.store() as store:
        assert list(await store.outbox()) == []


async def test_of_two_servers_that_recover_at_once_each_record_gets_one_line(site: Site) -> None:
    homes = [site.home(name) for name in "bcd"]
    lost: Counter[str] = Counter()
    async with AsyncExitStack() as stack:  # all live until all have begun: none recovers another
        dying = [child("writing", site.home(f"a{n}"), site.ws, module=LIVES) for n in range(4)]
        begun = [await stack.enter_async_context(each) for each in dying]
        lost.update([(await each.hear())["call"] for each in begun])
    servers = [child("recover", home, site.ws, module=LIVES) for home in homes]
    async with servers[0] as one, servers[1] as two, servers[2] as three:
        everyone: list[Child] = [one, two, three]
        for each in everyone:
            await each.hear()
        for each in everyone:
            each.tell("go")
        for each in everyone:
            await each.hear()
    lines = Counter(line.call_id for home in homes for line in site.lines(home))
    assert lines == lost
    async with site.store() as store:
        assert list(await store.outbox()) == []


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kills", "seed"), [(5, 3), pytest.param(200, 4, marks=pytest.mark.soak)])
async def test_after_kills_in_two_homes_each_call_has_one_end_and_one_line(site: Site, kills: int, seed: int) -> None:
    workers = [child("killed", home, site.ws, "mark", "think", module=LIVES) for home in site.homes]
    heard = await asyncio.gather(
        *(kill_again_and_again(each, kills, seed=seed + n, works=10) for n, each in enumerate(workers))
    )
    for home in (*site.homes, *site.homes):
        await site.look(home)
    async with site.store() as store:
        events = [event for some in (await all_events(store)).values() for event in some]
        assert [*await store.outbox(), *await store.cut_sessions(), *await store.open_calls()] == []
    lines = Counter(line.call_id for home in site.homes for line in site.lines(home))
    ends = Counter(e.payload["call_id"] for e in events if e.type in TERMINAL)
    starts = {e.payload["call_id"] for e in events if e.type == CALLED}
    assert set(lines.values()) == {1}, "a call has two lines"
    assert lines == ends, "the store and the audit logs do not have the same calls"
    assert starts <= ends.keys(), "a call has no end"
    answered = {said["call"]: said["ok"] for some in heard for said in some if "call" in said}
    success = {e.payload["call_id"]: e.payload.get("success", False) for e in events if e.type in TERMINAL}
    assert {call: success[call] for call in answered} == answered, "a caller was told otherwise"
    ran = Counter((site.path / "marks").read_text().split())
    assert set(ran.values()) == {1}, "a call ran twice"
    assert all(verify(str(home / "audit.jsonl")).ok for home in site.homes)
    for home in site.homes:
        assert not [name for name in os.listdir(home / "run") if name.endswith(".journal")]


async def test_a_home_is_lost_only_after_its_time_and_only_once() -> None:
    tables = Tables()
    store, other = MemoryStore(tables), MemoryStore(tables)
    home = HomeIdentity(id="0" * 26, lost_after_s=10.0)
    dead = owner_id("1" * 26)
    assert await lost_owners(store, home, [dead, "own_of_nobody", ""], 100.0) == frozenset()
    assert await lost_owners(other, home, [dead], 109.0) == frozenset()
    assert await lost_owners(other, home, [dead], 110.0) == {dead}
    assert await lost_owners(store, home, [dead], 110.0) == {dead}
    assert [each.name for each in await store.entries(DEAD_OWNER)] == [dead]
    await declare_home(store, home)
    await declare_home(other, home)
    assert [(each.name, each.value) for each in await store.entries(HOME)] == [(home.id, store.owner)]
    await store.close()
    await declare_home(other, home)
    assert [each.value for each in await other.entries(HOME)] == [other.owner]


async def test_a_grant_given_at_one_server_counts_at_the_owner_and_after_a_takeover(site: Site) -> None:
    a, b = site.homes
    async with Gate(workspace=site.ws, tools=[mark], home=a, mode="ask") as gate:
        asked = gate.runtime.sessions.events(types=["tool.confirmation_requested"])
        async with gate.turn("mark it"):
            call = asyncio.create_task(gate.call("mark", {"n": 0}))
            question = (await anext(aiter(asked))).payload["confirmation_request_id"]
            answer = Answer(decision=Outcome.ALLOW, scope=Scope.SESSION, principal="ann")
            async with site.gate(b) as other:
                assert (await other.runtime.permission.answer(question, answer)).applied
            async with asyncio.timeout(30):
                assert (await call).ok
                assert (await gate.call("mark", {"n": 1})).ok, "nobody is asked again"
        store = await gate._wired.log.store()
        assert (await store.get_confirmation(question)).principal == "ann"
        assert [each.principal for each in await store.grants(gate.session.id)] == ["ann"]
    async with Gate(tools=[mark], home=b, session=gate.session.id) as taken:
        assert (await taken.call("mark", {"n": 2})).ok, "and nobody where it goes on"
        (grant,) = await (await taken._wired.log.store()).grants(gate.session.id)
        assert (grant.tool, grant.principal) == ("mark", "ann")


async def test_homes_that_start_at_once_have_one_key_for_their_logs(site: Site) -> None:
    a, b = site.homes
    async with site.gate(a) as one, site.gate(b) as two:
        for gate in (one, two):
            assert (await gate.call("mark", {"n": 0})).ok
    assert read_key(str(a / "audit.jsonl")) == read_key(str(b / "audit.jsonl")) is not None
