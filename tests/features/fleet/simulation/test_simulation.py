"""Hundreds of servers in virtual time, on the real meaning of ops: order, fences and caps hold.

A failure names its seed; the same seed is the same schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from msgspec.structs import replace

from callgate.core.ops import CallReceipt, FinishCall, Resolution, ResolveConfirmation
from callgate.core.stored import StoredCall, StoredConfirmation
from callgate.storage import changes
from callgate.storage.views import View
from tests import postgres
from tests.features.fleet.simulation import engines
from tests.features.fleet.simulation.engines import Engine
from tests.features.fleet.simulation.servers import Simulation


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.running() as cluster:
        yield cluster


async def simulate(
    opening: AbstractAsyncContextManager[Engine], *, seed: int, servers: int, sessions: int, seconds: float
) -> Counter[str]:
    async with opening as engine:
        simulation = Simulation(engine, seed, servers, sessions)
        try:
            await simulation.run(seconds)
            await simulation.end()
            await simulation.rules.check_end(engine)
        except AssertionError as error:
            trace = "\n".join(simulation.trace[-12:])
            raise AssertionError(f"seed {seed}, at {simulation.now:.2f} s: {error}\n{trace}") from error
        print(f"seed {seed}: {servers} servers, {dict(simulation.rules.counts)}")
        return simulation.rules.counts


def _says_something(counts: Counter[str]) -> None:
    """A schedule in which nothing went wrong proves nothing."""
    for what in ("takeovers", "fenced off", "interrupted", "finished", "second answers"):
        assert counts[what] > 0, f"no {what}: {counts}"


async def test_two_hundred_servers_keep_order_fences_and_caps() -> None:
    counts = await simulate(engines.memory(), seed=1, servers=200, sessions=150, seconds=25)
    _says_something(counts)
    assert counts["done"] > 5_000


def _without_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_check_fence", lambda op, view: None)


def _whoever_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is not the owner of a call, or was interrupted."""

    def finish(op: FinishCall, view: View) -> CallReceipt:
        call = view.get(StoredCall, op.call)
        assert call is not None
        view.append(op.session, (op.event,))
        return CallReceipt(True, call)

    monkeypatch.setitem(changes._MEANINGS, FinishCall, finish)


def _two_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "alive", lambda view, owner: False)


def _last_answer_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(op: ResolveConfirmation, view: View) -> Resolution:
        question = view.get(StoredConfirmation, op.confirmation)
        assert question is not None
        answered = replace(question, state=op.state, resolved=op.event.id)
        view.put(answered)
        return Resolution(True, answered)

    monkeypatch.setitem(changes._MEANINGS, ResolveConfirmation, resolve)


@pytest.mark.parametrize("sabotage", [_without_fences, _whoever_ends_it, _two_owners, _last_answer_wins])
async def test_a_store_that_breaks_a_rule_is_found_out(
    monkeypatch: pytest.MonkeyPatch, sabotage: Callable[[pytest.MonkeyPatch], None]
) -> None:
    sabotage(monkeypatch)
    with pytest.raises(AssertionError, match="seed 1"):
        await simulate(engines.memory(), seed=1, servers=60, sessions=40, seconds=25)


async def test_two_hundred_servers_keep_order_fences_and_caps_on_a_file(tmp_path: Path) -> None:
    opening = engines.sqlite(str(tmp_path))
    _says_something(await simulate(opening, seed=2, servers=200, sessions=150, seconds=6))


async def test_twenty_servers_keep_order_fences_and_caps_on_postgres(cluster: postgres.Cluster) -> None:
    opening = engines.postgres(cluster.location(grace_s=0.0))
    counts = await simulate(opening, seed=3, servers=20, sessions=10, seconds=20)
    assert counts["fenced off"] + counts["takeovers"] > 0


@pytest.mark.soak
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_a_thousand_servers_keep_order_fences_and_caps(seed: int) -> None:
    _says_something(await simulate(engines.memory(), seed=seed, servers=1_000, sessions=600, seconds=15))


@pytest.mark.soak
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("seed", range(200, 210))
async def test_many_schedules_on_a_file(tmp_path: Path, seed: int) -> None:
    _says_something(await simulate(engines.sqlite(str(tmp_path)), seed=seed, servers=300, sessions=200, seconds=20))


@pytest.mark.soak
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("seed", range(300, 310))
async def test_many_schedules_on_postgres(cluster: postgres.Cluster, seed: int) -> None:
    opening = engines.postgres(cluster.location(grace_s=0.0))
    _says_something(await simulate(opening, seed=seed, servers=40, sessions=25, seconds=40))
