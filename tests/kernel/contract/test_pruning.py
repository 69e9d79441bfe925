"""What every store promises of pruning, on whichever engine."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.budgets import (
    EventPruning,
    PruneEvents,
    PruneSessions,
    ReleasePages,
    RowSweep,
    SessionPruning,
    SweepRows,
)
from callgate.core.events import CALLED, EVENTS_PRUNED, FAILED
from callgate.core.ids import ulid
from callgate.core.ops import (
    Acquire,
    Append,
    AppendMessages,
    CloseCutCalls,
    DropOutput,
    Fork,
    NewSession,
    PutGrant,
    Reap,
    Release,
)
from callgate.core.stored import ConfirmationState, StoredGrant, StoredMessage
from callgate.core.stores import SessionNotFound, Store
from tests.kernel.contract.stores import World, answer, append, ask, event, finish, new_session, start, types

LONG_AGO, NOW = 10.0, 1e12
"""Everything in these tests happens between the two."""


async def _prune(store: Store, before: float = NOW, most: int = 100) -> list[str]:
    cursor, gone = None, []
    while True:
        (pruning,) = await store.commit(PruneSessions(before=before, most=most, cursor=cursor))
        gone += [each.id for each in pruning.sessions]
        cursor = pruning.cursor
        if cursor is None:
            return gone


async def _sweep(store: Store, most: int = 100) -> RowSweep:
    events = messages = calls = 0
    while True:
        (swept,) = await store.commit(SweepRows(most=most))
        assert swept.events + swept.messages + swept.calls <= most
        events, messages, calls = events + swept.events, messages + swept.messages, calls + swept.calls
        if not swept.more:
            return RowSweep(events=events, messages=messages, calls=calls)


async def _filled(store: Store) -> str:
    """A session with something of every kind."""
    session = await new_session(store)
    call = start(store, session)
    await store.commit(
        call,
        finish(store, session, call.call),
        PutGrant(session=session, grant=StoredGrant(id=ulid(), session_id=session, tool=None, decision="allow")),
        AppendMessages(session=session, messages=(StoredMessage(id=ulid(), body={}),), at=1.0),
    )
    question = ask(store, session)
    await store.commit(question)
    await store.commit(answer(question, ConfirmationState.DENIED))
    await store.commit(finish(store, session, question.call))
    return session


async def test_a_pruned_session_is_gone_at_once_and_its_rows_are_swept_in_small_steps(store: Store) -> None:
    gone = await _filled(store)
    before = await store.get_session(gone)
    assert await _prune(store) == [gone]
    with pytest.raises(SessionNotFound):
        await store.get_session(gone)
    with pytest.raises(SessionNotFound):
        await store.read_events(gone)
    with pytest.raises(SessionNotFound):
        await append(store, gone, "late")
    assert list((await store.list_sessions(workers=True)).sessions) == []
    assert list((await store.read_all()).events) == []
    assert list((await store.read_last()).events) == []
    assert list(await store.grants(gone)) == []
    swept = await _sweep(store, most=2)
    assert swept == RowSweep(events=before.last_seq, messages=1, calls=2)
    assert await _sweep(store) == RowSweep()


async def test_pruning_again_changes_nothing(store: Store) -> None:
    kept = await _filled(store)
    await append(store, kept, *["note"] * 3)
    events = list(await store.read_events(kept))
    assert await _prune(store, before=LONG_AGO) == []
    assert await store.commit(PruneEvents(before=LONG_AGO)) == (EventPruning(),)
    assert await _sweep(store) == RowSweep()
    assert list(await store.read_events(kept)) == events


async def test_a_session_that_was_used_since_is_kept(store: Store) -> None:
    old, new = await new_session(store), await new_session(store)
    await append(store, old, "a")
    (between,) = await append(store, new, "b")
    assert await _prune(store, before=between.timestamp) == [old]
    assert await types(store, new) == ["b"]


async def test_what_a_living_process_owns_is_kept_until_it_lets_go(world: World) -> None:
    store, other = await world.open(), await world.open()
    session = await new_session(store)
    (fence,) = await other.commit(Acquire(session=session, owner=other.owner, at=1.0))
    assert await _prune(store) == []
    await other.commit(Release(session=session, owner=other.owner, fence=fence))
    assert await _prune(store) == [session]


async def test_what_a_dead_process_owned_is_pruned(world: World) -> None:
    store, other = await world.open(), await world.open()
    session = await new_session(store)
    await other.commit(Acquire(session=session, owner=other.owner, at=1.0))
    await other.close()
    assert await _prune(store) == [session]


async def test_a_session_with_a_running_call_or_an_open_question_is_kept(store: Store) -> None:
    running, asked = await new_session(store), await new_session(store)
    call, question = start(store, running), ask(store, asked)
    await store.commit(call)
    await store.commit(question)
    assert await _prune(store) == []
    assert await store.commit(PruneEvents(before=NOW)) == (EventPruning(),)
    await store.commit(finish(store, running, call.call))
    assert await _prune(store) == [running]
    assert [each.id for each in await store.open_confirmations()] == [question.confirmation]


async def test_a_session_that_a_dead_owner_left_is_kept_until_its_calls_are_closed(world: World) -> None:
    """Of a call without effects the store may know the beginning alone; a line says how it ended."""
    dead, store = await world.open(), await world.open()
    session = await new_session(dead)
    await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0))
    called = event(session, CALLED, call_id="tu_1", tool_use_id="tu_1", tool_name="read_file", side_effects="read")
    await dead.commit(Append(session=session, events=(called,)))
    await dead.close()
    await store.commit(Reap(owner=dead.owner, at=2.0))
    assert [each.session_id for each in await store.cut_sessions()] == [session]
    assert (await store.prunable(NOW, None, 100)).sessions == []
    assert await _prune(store) == []
    assert await store.commit(PruneEvents(before=NOW)) == (EventPruning(),)
    assert await types(store, session) == [CALLED]
    await store.commit(CloseCutCalls(session=session, at=3.0))
    assert await types(store, session) == [CALLED, FAILED]
    assert [each.id for each in (await store.prunable(NOW, None, 100)).sessions] == [session]
    assert await store.commit(PruneEvents(before=NOW)) == (EventPruning(events=2),)
    assert await _prune(store) == [session]


async def test_workers_go_with_the_session_that_they_work_for_and_not_before(store: Store) -> None:
    parent = await new_session(store)
    worker = await new_session(store, parent=parent)
    deeper = await new_session(store, parent=worker)
    (last,) = await append(store, deeper, "a")
    assert await _prune(store, before=last.timestamp) == []
    assert await _prune(store) == [parent, worker, deeper]


async def test_a_worker_whose_session_was_deleted_is_pruned_by_itself(store: Store) -> None:
    parent = await new_session(store)
    await store.commit(NewSession(session="worker", workspace="/w", parent=parent, at=1.0))
    assert set(await _prune(store)) == {parent, "worker"}


async def test_no_more_sessions_are_looked_at_than_asked_for(store: Store) -> None:
    sessions = [await new_session(store) for _ in range(5)]
    (first,) = await store.commit(PruneSessions(before=NOW, most=2))
    assert [each.id for each in first.sessions] == sessions[:2]
    assert await _prune(store, most=2) == sessions[2:]


async def test_no_more_sessions_go_than_are_needed_for_so_many_rows(store: Store) -> None:
    sessions = [await new_session(store) for _ in range(5)]
    for session in sessions:
        await append(store, session, "a", "b")
    (first,) = await store.commit(PruneSessions(before=NOW, rows=3))
    assert [each.id for each in first.sessions] == sessions[:2]
    (second,) = await store.commit(PruneSessions(before=NOW, rows=1, cursor=first.cursor))
    assert [each.id for each in second.sessions] == sessions[2:3]


async def test_an_owned_session_keeps_its_events(world: World) -> None:
    store, other = await world.open(), await world.open()
    session = await new_session(store)
    await append(store, session, "a")
    await other.commit(Acquire(session=session, owner=other.owner, at=1.0))
    assert await store.commit(PruneEvents(before=NOW)) == (EventPruning(),)
    await other.close()
    assert await store.commit(PruneEvents(before=NOW)) == (EventPruning(events=1),)


async def test_sessions_that_stay_do_not_hide_those_behind_them(store: Store) -> None:
    waiting = [await new_session(store) for _ in range(5)]
    for session in waiting:
        await store.commit(ask(store, session))
    behind = await new_session(store)
    assert await _prune(store, most=2) == [behind]


async def test_what_can_be_pruned_is_shown_as_it_is_pruned(world: World) -> None:
    store, other = await world.open(), await world.open()
    gone, used = await _filled(store), await new_session(store)
    await other.commit(Acquire(session=used, owner=other.owner, at=1.0))
    page = await store.prunable(NOW)
    assert ([each.id for each in page.sessions], page.calls, page.cursor) == ([gone], 2, None)
    usage = await store.usage()
    assert (usage.sessions, usage.events, usage.messages) == (2, page.sessions[0].last_seq, 1)
    assert await _prune(store) == [gone]


async def test_numbers_go_on_after_the_newest_session_was_pruned(world: World) -> None:
    store = await world.open()
    kept, gone = await new_session(store), await new_session(store)
    await append(store, kept, "a")
    await append(store, gone, "b")
    cursor = (await store.read_all()).cursor
    await store.commit(Acquire(session=kept, owner=store.owner, at=1.0))
    assert await _prune(store) == [gone]
    await _sweep(store)
    await append(await world.open(), kept, "c")  # by one that knows no more than what is stored
    assert [each.type for each in (await store.read_all(cursor)).events] == ["c"]


# Events of sessions that stay.


async def _lacking(store: Store) -> tuple[str, list[Any]]:
    """A session that has lost the first three of its five events."""
    session = await new_session(store)
    events = await append(store, session, *"abcde")
    (pruning,) = await store.commit(PruneEvents(before=events[3].timestamp))
    assert pruning == EventPruning(events=3)
    return session, events


async def test_where_events_were_pruned_stands_an_event_that_says_so(store: Store) -> None:
    session, events = await _lacking(store)
    found = await store.read_events(session)
    assert [each.type for each in found] == [EVENTS_PRUNED] * 3 + ["d", "e"]
    assert [each.payload for each in found[:3]] == [{"upto": 3}] * 3
    assert list(found[3:]) == events[3:]
    assert (await store.get_session(session)).last_seq == 5


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("limit", [1, 2, 10])
async def test_a_cursor_into_what_was_pruned_keeps_its_number(store: Store, after: int, limit: int) -> None:
    session, _ = await _lacking(store)
    expected = [EVENTS_PRUNED, EVENTS_PRUNED, EVENTS_PRUNED, "d", "e"]
    found = await store.read_events(session, after, limit)
    assert [each.type for each in found] == expected[after : after + limit]


async def test_a_session_that_lost_all_events_goes_on_with_their_numbers(store: Store) -> None:
    session = await new_session(store)
    await append(store, session, "a", "b")
    await store.commit(PruneEvents(before=NOW))
    assert await types(store, session) == [EVENTS_PRUNED] * 2
    (seqs,) = await store.commit(Append(session=session, events=(event(session, "c"),)))
    assert seqs == (3,)
    assert await types(store, session) == [EVENTS_PRUNED, EVENTS_PRUNED, "c"]


async def test_a_fork_has_the_numbers_of_its_source_and_lacks_what_it_lacks(store: Store) -> None:
    session, _ = await _lacking(store)
    await store.commit(Fork(session=session, new="fork", at=1.0))
    assert await types(store, "fork") == [EVENTS_PRUNED] * 3 + ["d", "e"]


async def test_output_is_dropped_behind_events_that_were_pruned(store: Store) -> None:
    session = await new_session(store)
    await append(store, session, "a", "tool.output_delta", "tool.output_delta")
    (pruning,) = await store.commit(PruneEvents(before=NOW, most=1))
    assert pruning.events == 1
    assert await store.commit(DropOutput(session=session, upto=2)) == (1,)
    dropped = [each.payload.get("dropped") for each in await store.read_events(session)]
    assert dropped == [None, True, None]


async def test_the_calls_that_ended_with_pruned_events_go_with_them(store: Store) -> None:
    session = await new_session(store)
    call, question = start(store, session), ask(store, session)
    await store.commit(call, finish(store, session, call.call))
    await store.commit(question, answer(question, ConfirmationState.DENIED))
    await store.commit(finish(store, session, question.call))
    newer = start(store, session)
    await store.commit(newer, finish(store, session, newer.call))
    (pruning,) = await store.commit(PruneEvents(before=newer.event.timestamp))
    assert pruning.calls == 2
    assert await store.get_call(call.call) is None
    assert await store.get_call(question.call) is None
    assert await store.get_call(newer.call) is not None


async def test_whoever_follows_all_sessions_can_tell_that_events_were_pruned(store: Store) -> None:
    session = await new_session(store)
    await append(store, session, "a", "b")
    begin = (await store.read_all(limit=1)).cursor
    end = (await store.read_all()).cursor
    assert not (await store.behind(begin)).pruned
    await store.commit(PruneEvents(before=NOW, most=1))
    assert not (await store.behind(begin)).pruned
    await store.commit(PruneEvents(before=NOW))
    assert (await store.behind(begin)).pruned
    assert not (await store.behind(end)).pruned


async def test_whoever_follows_all_sessions_can_tell_that_a_session_was_pruned(store: Store) -> None:
    begin = (await store.behind()).cursor
    session = await new_session(store)
    await append(store, session, "a")
    assert await _prune(store) == [session]
    assert (await store.behind(begin)).pruned


async def test_an_op_that_prunes_is_a_commit_of_its_own(store: Store) -> None:
    session = await new_session(store)
    for op in (PruneSessions(before=NOW), PruneEvents(before=NOW), SweepRows(), ReleasePages()):
        with pytest.raises(ValueError, match="separate commit"):
            await store.commit(Append(session=session, events=(event(session),)), op)
    assert await types(store, session) == []


async def test_an_empty_store_has_nothing_to_prune(store: Store) -> None:
    assert await store.commit(PruneSessions(before=NOW)) == (SessionPruning(),)
    assert await store.commit(PruneEvents(before=NOW)) == (EventPruning(),)
    assert await store.commit(SweepRows()) == (RowSweep(),)
    assert (await store.usage()).sessions == 0
