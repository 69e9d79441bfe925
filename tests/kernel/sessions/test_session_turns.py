"""The owner of turns: one at a time in a session, whoever starts, stops or leaves it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate import Gate, Message
from callgate.core.events import TURN_CANCELLED, TURN_COMPLETED, TURN_STARTED, Event
from callgate.core.sessions import Session
from callgate.sessions.session_turns import SHUTDOWN, SessionTurn, SessionTurns, TurnInProgress, TurnState

LIMIT_S = 60.0
PROMPT = Message.text("user", "go")
STEPS = range(8)


class Bench:
    """The turns of one session, and what is told of them."""

    def __init__(self, gate: Gate) -> None:
        self.turns: SessionTurns = gate.runtime.sessions.turns
        self.session: Session = gate.session
        self.events: list[Event] = []
        gate.runtime.sessions.listen(self.events.append, gate.session.id)

    @property
    def told(self) -> list[tuple[str, str | None]]:
        """What was told of turns, with the reason of a cancel."""
        kinds = (TURN_STARTED, TURN_COMPLETED, TURN_CANCELLED)
        return [(each.type, each.payload.get("reason")) for each in self.events if each.type in kinds]

    @property
    def is_free(self) -> bool:
        return self.turns.running(self.session.id) is None

    async def hang(self, turn: SessionTurn) -> str | None:
        """Prepare, open, work for ever."""
        await asyncio.sleep(0)
        await turn.begin(PROMPT)
        return await turn.run(self._for_ever)

    async def _for_ever(self) -> str:
        await asyncio.Event().wait()
        return "never"

    async def enter(self, entered: asyncio.Event) -> None:
        entered.set()

    async def answer(self, turn: SessionTurn) -> str | None:
        await turn.begin(PROMPT)

        async def work() -> str:
            turn.end_soon()
            return "done"

        return await turn.run(work)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Gate(tmp_path, [], home=tmp_path / "home") as gate:
        yield Bench(gate)


async def step(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def reached(turn: SessionTurn, state: TurnState) -> None:
    while turn.state is not state:
        await asyncio.sleep(0)


@pytest.mark.parametrize("state", [TurnState.PREPARING, TurnState.OPEN, TurnState.RUNNING])
async def test_a_second_starter_is_refused_in_every_state_and_told_which_turn_there_is(
    bench: Bench, state: TurnState
) -> None:
    first = bench.turns.reserve(bench.session)
    task = first.start(lambda: bench.hang(first))
    await reached(first, state)
    with pytest.raises(TurnInProgress) as refused:
        bench.turns.reserve(bench.session)
    assert refused.value.turn_id == first.id
    assert bench.turns.running(bench.session.id) is first
    first.cancel()
    assert await task is None
    second = bench.turns.reserve(bench.session)
    assert await second.complete(lambda: bench.answer(second)) == "done"


async def test_of_two_who_start_at_once_one_has_the_turn(bench: Bench) -> None:
    async def start() -> str | None:
        turn = bench.turns.reserve(bench.session)
        return await turn.complete(lambda: bench.answer(turn))

    ends = await asyncio.gather(start(), start(), return_exceptions=True)
    assert ends[0] == "done" and isinstance(ends[1], TurnInProgress)
    assert bench.told == [(TURN_STARTED, None), (TURN_COMPLETED, None)]


@pytest.mark.parametrize("later", STEPS)
async def test_a_cancel_at_any_step_ends_the_turn_once_and_frees_the_session(bench: Bench, later: int) -> None:
    turn = bench.turns.reserve(bench.session)
    task = turn.start(lambda: bench.hang(turn))
    await step(later)
    assert bench.turns.cancel(bench.session.id)
    assert turn.cancel("timeout"), "it is being stopped"
    assert await task is None
    assert not turn.cancel() and not bench.turns.cancel(bench.session.id)
    assert (bench.session.turn_id, bench.is_free, turn.state) == (None, True, TurnState.ENDED)
    assert bench.told in ([], [(TURN_STARTED, None), (TURN_CANCELLED, "user_cancel")])


async def test_a_turn_that_is_cancelled_while_its_prompt_is_written_does_no_work(bench: Bench) -> None:
    with bench.turns.reserve(bench.session) as turn:
        begun = asyncio.ensure_future(turn.begin(PROMPT))
        await reached(turn, TurnState.OPEN)
        assert turn.cancel()
        assert await begun == turn.id
        entered = asyncio.Event()
        assert await turn.start(lambda: bench.enter(entered)) is None
    assert not entered.is_set()
    assert bench.told == [(TURN_STARTED, None), (TURN_CANCELLED, "user_cancel")]
    assert bench.is_free


async def test_a_turn_that_was_cancelled_does_not_begin(bench: Bench) -> None:
    with bench.turns.reserve(bench.session) as turn:
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            turn.open(PROMPT)
    assert bench.is_free and bench.told == []


@pytest.mark.parametrize("later", STEPS)
async def test_a_starter_that_goes_away_takes_the_turn_along(bench: Bench, later: int) -> None:
    turn = bench.turns.reserve(bench.session)
    starter = asyncio.ensure_future(turn.complete(lambda: bench.hang(turn)))
    await asyncio.sleep(0)
    await step(later)
    starter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starter
    assert (bench.session.turn_id, bench.is_free) == (None, True)


async def test_a_turn_that_was_only_started_goes_on_without_its_starter(bench: Bench) -> None:
    tasks: list[asyncio.Task[str | None]] = []

    async def start() -> None:
        with bench.turns.reserve(bench.session) as turn:
            await turn.begin(PROMPT)
            tasks.append(turn.start(lambda: turn.run(lambda: end(turn))))

    async def end(turn: SessionTurn) -> str:
        turn.end_soon()
        return "done"

    await asyncio.create_task(start())
    assert await tasks[0] == "done"
    assert bench.told == [(TURN_STARTED, None), (TURN_COMPLETED, None)]


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_turn_that_fails_frees_the_session(bench: Bench, is_open: bool) -> None:
    turn = bench.turns.reserve(bench.session)

    async def fail() -> None:
        if is_open:
            await turn.begin(PROMPT)
            await turn.run(broken)
        await broken()

    async def broken() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        await turn.complete(fail)
    assert (bench.session.turn_id, bench.is_free) == (None, True)
    assert bench.told == ([(TURN_STARTED, None), (TURN_CANCELLED, "error")] if is_open else [])


async def test_a_reservation_that_is_given_up_frees_the_session(bench: Bench) -> None:
    with pytest.raises(RuntimeError), bench.turns.reserve(bench.session):
        raise RuntimeError
    assert bench.is_free


async def test_a_shutdown_does_not_wait_for_a_turn_that_nobody_has_started(bench: Bench) -> None:
    turn = bench.turns.reserve(bench.session)
    await turn.begin(PROMPT)
    await asyncio.wait_for(bench.turns.close(), LIMIT_S)
    assert bench.session.turn_id == turn.id
    assert await turn.start(lambda: bench.hang(turn)) is None
    assert (bench.session.turn_id, bench.told) == (turn.id, [(TURN_STARTED, None)])


@pytest.mark.parametrize("later", STEPS)
async def test_a_shutdown_leaves_an_open_turn_open_and_it_can_be_gone_on_with(bench: Bench, later: int) -> None:
    turn = bench.turns.reserve(bench.session)
    task = turn.start(lambda: bench.hang(turn))
    await step(later)
    was_open = bench.session.turn_id
    await bench.turns.close()
    await task
    assert bench.is_free and turn.reason == SHUTDOWN
    assert (bench.session.turn_id, bench.told) == (was_open, [(TURN_STARTED, None)] if was_open else [])
    if was_open is None:
        assert bench.turns.reserve_open(bench.session) is None
        return
    with pytest.raises(TurnInProgress):
        bench.turns.reserve(bench.session)
    rest = bench.turns.reserve_open(bench.session)
    assert rest is not None and (rest.id, rest.state) == (was_open, TurnState.OPEN)
    with pytest.raises(TurnInProgress):
        bench.turns.reserve_open(bench.session)
    rest.release()
    await bench.turns.end(bench.session, cancelled="interrupted")
    assert bench.told[1:] == [(TURN_CANCELLED, "interrupted")]


async def test_a_second_cancel_does_not_cut_the_wait_until_all_has_stopped(bench: Bench) -> None:
    stopping, may_stop, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
    turn = bench.turns.reserve(bench.session)

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await may_stop.wait()
            stopped.set()

    async def work() -> None:
        await turn.begin(PROMPT)
        await turn.run(slow)

    task = turn.start(work)
    await reached(turn, TurnState.RUNNING)
    await asyncio.sleep(0)
    assert turn.cancel()
    await stopping.wait()
    assert turn.cancel() and not bench.is_free
    may_stop.set()
    await task
    assert stopped.is_set() and bench.is_free


async def test_work_that_stops_in_its_own_way_is_not_cancelled(bench: Bench) -> None:
    turn, asked = bench.turns.reserve(bench.session), asyncio.Event()

    def stop() -> bool:
        asked.set()
        return True

    async def call() -> str:
        await asked.wait()
        await turn.end("user_cancel")
        return "stopped by itself"

    async def work() -> str | None:
        await turn.begin(PROMPT)
        return await turn.run(call, stop)

    task = turn.start(work)
    await reached(turn, TurnState.RUNNING)
    assert turn.cancel()
    assert await task == "stopped by itself"
    assert bench.told == [(TURN_STARTED, None), (TURN_CANCELLED, "user_cancel")]


async def test_nobody_else_stops_a_turn_that_the_program_takes(tmp_path: Path) -> None:
    async with Gate(tmp_path, [], home=tmp_path / "home") as gate, asyncio.timeout(LIMIT_S):
        turns = gate.runtime.sessions.turns
        async with gate.turn("go") as id:
            assert not turns.cancel(gate.session.id)
            await turns.close()
            assert gate.session.turn_id == id
        assert turns.running(gate.session.id) is None
        async with gate.turn("again"):
            await gate.end_turn()
            async with gate.turn("and again") as third:
                assert gate.session.turn_id == third


# --- sessions that clients come back to ------------------------------------------------------


async def test_a_session_is_found_while_it_is_served_and_a_worker_is_not(bench: Bench) -> None:
    bench.turns.serve(bench.session)
    worker = Session(workspace=bench.session.workspace)
    with bench.turns.reserve(worker):
        assert bench.turns.served(worker.id) is None
        assert bench.turns.served(bench.session.id) is bench.session
        assert bench.turns.running(worker.id) is not None
    assert await bench.turns.withdraw(bench.session.id) is bench.session
    assert bench.turns.served(bench.session.id) is None
    assert await bench.turns.withdraw(bench.session.id) is None


@pytest.mark.parametrize("later", STEPS)
async def test_a_session_that_is_withdrawn_has_no_turn_any_more(bench: Bench, later: int) -> None:
    bench.turns.serve(bench.session)
    turn = bench.turns.reserve(bench.session)
    task = turn.start(lambda: bench.hang(turn))
    await step(later)
    await bench.turns.withdraw(bench.session.id)
    assert (bench.session.turn_id, bench.is_free) == (None, True)
    assert await task is None
    assert [kind for kind, _ in bench.told] in ([], [TURN_STARTED, TURN_CANCELLED])


async def test_a_turn_that_is_still_prepared_does_not_hold_up_who_withdraws_its_session(bench: Bench) -> None:
    loaded = asyncio.Event()
    bench.turns.serve(bench.session)
    slow = bench.turns.reserve(bench.session, stop=lambda: True)  # it cannot be interrupted

    async def prepare() -> str | None:
        await loaded.wait()
        return None if slow.is_cancelled else await bench.answer(slow)

    task = slow.start(prepare)
    await asyncio.sleep(0)
    await bench.turns.withdraw(bench.session.id)
    bench.turns.serve(bench.session)
    turn = bench.turns.reserve(bench.session)
    loaded.set()
    assert await task is None
    assert bench.turns.running(bench.session.id) is turn
    assert await turn.complete(lambda: bench.answer(turn)) == "done"
    assert bench.turns.served(bench.session.id) is bench.session


# --- whatever happens ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
async def test_in_any_order_there_is_one_turn_at_a_time_and_each_that_began_ends(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    at_work: list[str] = []
    starters: list[asyncio.Future[None]] = []

    async def take_turn() -> None:
        try:
            turn = bench.turns.reserve(bench.session)
        except TurnInProgress:
            return
        await turn.complete(lambda: whole(turn))

    async def whole(turn: SessionTurn) -> None:
        await step(chance.randrange(4))
        await turn.begin(PROMPT)
        await turn.run(lambda: work(turn))

    async def work(turn: SessionTurn) -> None:
        assert at_work == [], "two at once"
        at_work.append(turn.id)
        try:
            await step(chance.randrange(6))
            if chance.random() < 0.2:
                raise RuntimeError("broken")
            turn.end_soon()
        finally:
            at_work.remove(turn.id)

    for _ in range(60):
        match chance.randrange(5):
            case 0 | 1:
                starters.append(asyncio.ensure_future(take_turn()))
            case 2:
                bench.turns.cancel(bench.session.id)
            case 3 if starters:
                chance.choice(starters).cancel()
        await step(chance.randrange(3))
    await asyncio.gather(*starters, return_exceptions=True)
    assert (at_work, bench.session.turn_id, bench.is_free) == ([], None, True)
    kinds = [kind for kind, _ in bench.told]
    assert kinds[::2] == [TURN_STARTED] * (len(kinds) // 2)
    assert TURN_STARTED not in kinds[1::2]
