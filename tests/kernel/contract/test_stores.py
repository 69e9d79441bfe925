"""What every store promises, on whichever engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from callgate.audit.records import CallRecord
from callgate.core.events import (
    CALLED,
    COMPLETED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    FAILED,
    OUTPUT_DELTA,
    TURN_CANCELLED,
    Event,
)
from callgate.core.ids import call_id, session_id, ulid
from callgate.core.ops import (
    Acquire,
    Append,
    AppendMessages,
    ClaimOutbox,
    ClearOutbox,
    CloseCutCalls,
    DeleteSession,
    DropBlob,
    DropEntry,
    DropOutput,
    EntryReceipt,
    ExpireConfirmations,
    Fork,
    NewSession,
    PutBlob,
    PutEntry,
    PutGrant,
    Reap,
    Reaped,
    Release,
    RevokeGrants,
    UpdateSession,
    UseGrant,
)
from callgate.core.sessions import Mode, Root
from callgate.core.stored import (
    CallState,
    ConfirmationState,
    CutSession,
    OutboxRecord,
    SharedEntry,
    StoredCall,
    StoredGrant,
    StoredMessage,
    StoredSession,
    entries_key,
)
from callgate.core.stores import (
    AnswerMismatch,
    CallMismatch,
    ConfirmationNotFound,
    SessionLocked,
    SessionNotFound,
    StaleOwner,
    Store,
    StoreClosed,
    reap_dead,
    tail,
)
from callgate.storage.encoding import decode
from tests.kernel.contract.stores import (
    World,
    answer,
    append,
    ask,
    event,
    finish,
    new_session,
    start,
    types,
    within,
)

ALLOWED = ConfirmationState.ALLOWED
DENIED = ConfirmationState.DENIED


# Events.


@pytest.mark.spec("S4-78")
async def test_events_come_back_whole_and_in_order(store: Store) -> None:
    session = await new_session(store)
    first = [event(session, "one", text="ä\n\u0000", deep={"list": [1, 2.5, None, True]})]
    second = [event(session, "two", turn="turn_1", parent=first[0].id), event(session, "three")]
    assert await store.commit(Append(session=session, events=tuple(first))) == ((1,),)
    assert await store.commit(Append(session=session, events=tuple(second))) == ((2, 3),)
    assert list(await store.read_events(session)) == [*first, *second]
    stored = await store.get_session(session)
    assert (stored.last_seq, stored.updated_at) == (3, second[-1].timestamp)


async def test_numbers_have_no_gap_with_many_writers(world: World) -> None:
    stores = [await world.open() for _ in range(3)]
    session = await new_session(stores[0])

    async def write(store: Store) -> list[int]:
        seqs: list[int] = []
        for _ in range(20):
            (some,) = await store.commit(Append(session=session, events=(event(session),)))
            seqs += some
        return seqs

    seqs = await asyncio.gather(*(write(store) for store in stores for _ in range(3)))
    assert sorted(seq for some in seqs for seq in some) == list(range(1, 181))
    assert all(some == sorted(some) for some in seqs)
    assert len(await stores[0].read_events(session)) == 180


async def test_pages_continue_where_the_last_one_ended(store: Store) -> None:
    session = await new_session(store)
    written = await append(store, session, *(str(n) for n in range(25)))
    read: list[Event] = []
    while page := await store.read_events(session, after=len(read), limit=10):
        assert len(page) <= 10
        read += page
    assert read == written


async def test_a_page_of_large_events_is_short_but_never_empty(store: Store) -> None:
    session = await new_session(store)
    large = [event(session, text="x" * 3_000_000) for _ in range(4)]
    await store.commit(Append(session=session, events=tuple(large)))
    read: list[Event] = []
    while page := await store.read_events(session, after=len(read)):
        read += page
    assert read == large


async def test_commits_that_nobody_waits_for_are_written_in_their_order(store: Store) -> None:
    session = await new_session(store)
    for n in range(10):
        store.commit(Append(session=session, events=(event(session, str(n)),)))
    await append(store, session, "last")
    assert await types(store, session) == [*(str(n) for n in range(10)), "last"]


async def test_the_same_event_committed_again_is_there_once(store: Store) -> None:
    session = await new_session(store)
    first, second, third = event(session), event(session), event(session)
    both = Append(session=session, events=(first, second))
    assert await store.commit(both) == ((1, 2),)
    assert await store.commit(both) == ((1, 2),)
    # Also in one batch with itself, and beside an event that is new.
    results = await asyncio.gather(
        store.commit(Append(session=session, events=(second, third))),
        store.commit(Append(session=session, events=(third, first))),
    )
    assert results == [((2, 3),), ((3, 1),)]
    assert list(await store.read_events(session)) == [first, second, third]


async def test_what_a_caller_changes_afterwards_does_not_change_the_store(store: Store) -> None:
    session = await new_session(store)
    payload: dict[str, Any] = {"text": "as it was"}
    said = replace(event(session), payload=payload)
    written = store.commit(Append(session=session, events=(said,)))
    payload["text"] = "changed"
    await written
    [kept] = await store.read_events(session)
    assert kept.payload == {"text": "as it was"}


@pytest.mark.spec("T40")
async def test_a_lone_surrogate_is_kept_as_a_replacement_character(store: Store) -> None:
    session = await new_session(store, title="a \ud800 title")
    said = event(session, text="x\udfffy", **{"\ud800": ["\ud83d\ude00"]})
    await store.commit(Append(session=session, events=(said,)))
    [kept] = await store.read_events(session)
    assert kept.payload == {"text": "x\ufffdy", "\ufffd": ["\U0001f600"]}
    assert (await store.get_session(session)).title == "a \ufffd title"


async def test_what_is_no_data_is_refused_at_once_and_harms_nobody_else(store: Store) -> None:
    session = await new_session(store)
    beside = store.commit(Append(session=session, events=(event(session),)))
    with pytest.raises(TypeError):
        store.commit(Append(session=session, events=(event(session, object=object()),)))
    await beside
    assert len(await store.read_events(session)) == 1


async def test_an_event_belongs_to_the_session_of_its_op(store: Store) -> None:
    session, other = await new_session(store), await new_session(store)
    [known] = await append(store, session, "known")
    for wrong in (event(other), replace(known, session_id=other)):
        with pytest.raises(ValueError):
            await store.commit(Append(session=session, events=(event(session), wrong)))
    with pytest.raises(ValueError):
        await store.commit(Append(session=other, events=(replace(known, session_id=other),)))
    assert list(await store.read_events(session)) == [known]
    assert list(await store.read_events(other)) == []


async def test_all_of_a_commit_is_written_or_nothing(store: Store) -> None:
    session = await new_session(store)
    grant = StoredGrant(id=ulid(), session_id=session, tool="shell", decision="allow")
    whole = (
        Append(session=session, events=(event(session),)),
        PutGrant(session=session, grant=grant),
        start(store, session),
        Acquire(session=session, owner=store.owner, at=1.0),
        NewSession(session=session_id(), workspace="/other", at=1.0),
        PutEntry(kind="pin", name="t", value="1"),
        Append(session="sess_missing", events=()),
    )
    before = await store.snapshot(session)
    with pytest.raises(SessionNotFound):
        await store.commit(*whole)
    assert await store.snapshot(session) == before
    assert [each.id for each in (await store.list_sessions()).sessions] == [session]
    assert list(await store.entries("pin")) == []


async def test_a_commit_that_fails_harms_none_beside_it(store: Store) -> None:
    session = await new_session(store)
    results = await asyncio.gather(
        store.commit(Append(session=session, events=(event(session, "a"),))),
        store.commit(Append(session="sess_missing", events=(event("sess_missing"),))),
        store.commit(Append(session=session, events=(event(session, "b"),))),
        return_exceptions=True,
    )
    assert results[0] == ((1,),)
    assert isinstance(results[1], SessionNotFound)
    assert results[2] == ((2,),)
    assert await types(store, session) == ["a", "b"]


async def test_a_commit_whose_waiter_was_cancelled_is_written_all_the_same(store: Store) -> None:
    session = await new_session(store)

    async def write() -> None:
        await store.commit(Append(session=session, events=(event(session, "cancelled"),)))

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    task.cancel()
    await append(store, session, "after")
    assert await types(store, session) == ["cancelled", "after"]


async def test_all_sessions_are_one_stream_whose_cursor_skips_nothing(world: World) -> None:
    one, two = await world.open(), await world.open()
    first, second = await new_session(one), await new_session(one)
    seen: list[Event] = []
    cursor: str | None = None
    written: list[Event] = []
    for round in range(6):
        written += await append(one, first, f"a{round}")
        written += await append(two, second, f"b{round}", f"c{round}")
        page = await two.read_all(cursor, limit=2)
        seen, cursor = [*seen, *page.events], page.cursor
    while (page := await two.read_all(cursor, limit=2)).events:
        seen, cursor = [*seen, *page.events], page.cursor
    assert seen == written
    assert (await two.read_all(cursor)).cursor == cursor


async def test_the_stream_of_all_sessions_goes_on_after_a_deletion(world: World) -> None:
    store = await world.open()
    kept, gone = await new_session(store), await new_session(store)
    await append(store, kept, "one")
    await append(store, gone, "two", "three")
    cursor = (await store.read_all()).cursor
    await store.commit(DeleteSession(session=gone))
    [after] = await append(await world.open(), kept, "four")
    assert list((await store.read_all(cursor)).events) == [after]
    assert [each.type for each in (await store.read_all()).events] == ["one", "four"]


async def test_how_much_is_behind_a_cursor_is_known_without_reading_it(world: World) -> None:
    store = await world.open()
    empty = await store.behind()
    assert (empty.most, (await store.read_all(empty.cursor)).events) == (0, [])
    first, second = await new_session(store), await new_session(store)
    await append(store, first, "a", "b")
    await append(store, second, "c")
    await append(store, first, "d")
    page = await store.read_all()
    assert [*zip((each.type for each in page.events), page.seqs, strict=True)] == [
        ("a", 1),
        ("b", 2),
        ("c", 1),
        ("d", 3),
    ]
    assert [(await store.behind(cursor)).most for cursor in (None, empty.cursor, *page.cursors)] == [4, 4, 3, 2, 1, 0]
    assert (await store.behind()).cursor == page.cursor == (await store.behind(page.cursor)).cursor
    await store.commit(DeleteSession(session=first))
    await append(store, second, "e")
    after = await store.behind(page.cursor)
    assert after.most >= 1 and [each.type for each in (await store.read_all(page.cursor)).events] == ["e"]
    with pytest.raises(ValueError):
        await store.behind("zzz")


async def test_the_last_events_are_read_backwards_page_by_page(world: World) -> None:
    store = await world.open()
    assert (await store.read_last()).events == []
    first, second = await new_session(store), await new_session(store)
    written = []
    for round in range(4):
        written += await append(store, first, f"a{round}")
        written += await append(await world.open(), second, f"b{round}", f"c{round}")
    whole = await store.read_all()
    last = await store.read_last(limit=5)
    assert [*last.events] == written[-5:]
    assert (last.cursors, last.seqs, last.cursor) == (whole.cursors[-5:], whole.seqs[-5:], whole.cursor)
    before = await store.read_last(upto=last.begin, limit=5)
    assert [*before.events] == written[-10:-5]
    assert [*(await store.read_last(upto=before.begin, limit=5)).events] == written[:2]
    after = await store.read_last(after=whole.cursors[1], upto=before.begin, limit=5)
    assert (after.events, after.cursor) == ([], before.begin)
    assert [*(await store.read_last(after=whole.cursors[8], limit=50)).events] == written[9:]


async def test_the_last_events_skip_those_of_deleted_sessions(store: Store) -> None:
    kept, gone = await new_session(store), await new_session(store)
    await append(store, kept, "one")
    await append(store, gone, "two", "three")
    await append(store, kept, "four")
    await append(store, gone, "five")
    await store.commit(DeleteSession(session=gone))
    page = await store.read_last(limit=1)
    assert [each.type for each in page.events] == ["four"]
    assert [each.type for each in (await store.read_last(upto=page.begin)).events] == ["one"]


async def test_a_page_of_large_last_events_is_short_but_never_empty(store: Store) -> None:
    session = await new_session(store)
    for number in range(3):
        await store.commit(Append(session=session, events=(event(session, f"e{number}", text="x" * (3 << 20)),)))
    types, upto = [], None
    while (page := await store.read_last(upto=upto)).events:
        types = [*(each.type for each in page.events), *types]
        upto = page.begin
    assert types == ["e0", "e1", "e2"]


@pytest.mark.parametrize("cursor", ["", "zzz", "!", "c3g", "\ud800", "e1", "ZTk5OTk5OTk5OTk5OTk5OTk5OTk5"])
async def test_a_cursor_that_is_not_ours_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(ValueError):
        await store.read_all(cursor)
    for name in ("after", "upto"):
        with pytest.raises(ValueError):
            await store.read_last(**{name: cursor})
    with pytest.raises(ValueError):
        await store.list_sessions(cursor=cursor)


async def test_a_page_that_makes_no_sense_is_refused(store: Store) -> None:
    await append(store, await new_session(store), "of another")
    session = await new_session(store)
    for read in (store.read_events, store.read_messages):
        for after, limit in ((-1, 10), (0, 0), (0, -1)):
            with pytest.raises(ValueError):
                await read(session, after, limit)
    with pytest.raises(ValueError):
        await store.read_all(limit=0)
    with pytest.raises(ValueError):
        await store.read_last(limit=0)
    with pytest.raises(ValueError):
        await store.list_sessions(limit=0)


async def test_output_is_emptied_and_the_numbers_stay(store: Store) -> None:
    session = await new_session(store)
    call = call_id()
    output = [event(session, OUTPUT_DELTA, text=f"line {n}", call_id=call) for n in range(4)]
    await store.commit(Append(session=session, events=(event(session, CALLED), *output)))
    assert await store.commit(DropOutput(session=session, after=0, upto=4)) == (3,)
    assert await store.commit(DropOutput(session=session, after=0, upto=4)) == (0,)
    read = await store.read_events(session)
    dropped = {"call_id": call, "dropped": True}
    assert [each.payload for each in read[1:]] == [dropped, dropped, dropped, output[3].payload]
    assert [each.id for each in read[1:]] == [each.id for each in output]
    assert list((await store.read_all()).events) == list(read)


# Messages and blobs.


async def test_messages_have_numbers_of_their_own(store: Store) -> None:
    session = await new_session(store)
    await append(store, session, "an event")
    said = [StoredMessage(id=ulid(), turn_id="t1", body={"role": "user", "n": n}) for n in range(3)]
    op = AppendMessages(session=session, messages=tuple(said), at=5.0)
    assert await store.commit(op) == ((1, 2, 3),)
    assert await store.commit(op) == ((1, 2, 3),)
    assert list(await store.read_messages(session)) == said
    assert list(await store.read_messages(session, after=1, limit=1)) == said[1:2]
    assert (await store.get_session(session)).messages == 3


async def test_a_blob_is_found_by_its_digest(store: Store) -> None:
    data = bytes(range(256)) * 500
    (sha256,) = await store.commit(PutBlob(data=data))
    assert (sha256,) == await store.commit(PutBlob(data=data))
    assert await store.get_blob(sha256) == data
    assert await store.commit(DropBlob(sha256=sha256)) == (True,)
    assert await store.get_blob(sha256) is None
    assert await store.commit(DropBlob(sha256=sha256)) == (False,)


# Sessions.


async def test_a_session_keeps_what_was_said_of_it(store: Store) -> None:
    id = session_id()
    op = NewSession(
        session=id,
        workspace="/w",
        mode=Mode.READ,
        title="First",
        extra_roots=(Root("/more", writable=True),),
        tags=frozenset({"x"}),
        meta={"model": "m", "nested": {"a": [1]}},
        at=10.0,
    )
    made = StoredSession(
        id=id,
        workspace="/w",
        mode=Mode.READ,
        title="First",
        extra_roots=(Root("/more", writable=True),),
        tags=frozenset({"x"}),
        meta={"model": "m", "nested": {"a": [1]}},
        created_at=10.0,
        updated_at=10.0,
    )
    assert await store.commit(op) == (made,)
    assert await store.commit(replace(op, title="Again")) == (made,)
    assert await store.get_session(id) == made


async def test_an_update_changes_what_it_names_and_nothing_else(store: Store) -> None:
    session = await new_session(store, title="First", mode=Mode.READ)
    before = await store.get_session(session)
    (after,) = await store.commit(
        UpdateSession(session=session, mode=Mode.WRITE, title=None, turn_id="turn_1", at=20.0)
    )
    expected = replace(before, mode=Mode.WRITE, title=None, turn_id="turn_1", updated_at=20.0)
    assert after == expected
    assert await store.get_session(session) == expected


async def test_a_missing_session_is_named_by_every_read_and_op(store: Store) -> None:
    gone = "sess_gone"
    for read in (store.get_session, store.read_events, store.read_messages, store.snapshot):
        with pytest.raises(SessionNotFound):
            await read(gone)
    for op in (
        Append(session=gone, events=(event(gone),)),
        UpdateSession(session=gone, at=1.0),
        Acquire(session=gone, owner=store.owner, at=1.0),
        start(store, gone),
        finish(store, gone, call_id()),
        ask(store, gone),
        Fork(session=gone, new=session_id(), at=1.0),
        NewSession(session=session_id(), workspace="/w", parent=gone, at=1.0),
    ):
        with pytest.raises(SessionNotFound):
            await store.commit(op)
    assert list(await store.open_confirmations(gone)) == []
    assert list(await store.open_calls(gone)) == []
    assert list(await store.grants(gone)) == []


async def test_sessions_are_listed_last_used_first(store: Store) -> None:
    sessions = [await new_session(store) for _ in range(3)]
    await append(store, sessions[0], "used")
    listed = (await store.list_sessions()).sessions
    assert [each.id for each in listed] == [sessions[0], sessions[2], sessions[1]]
    assert listed[0] == await store.get_session(sessions[0])


async def test_sessions_that_change_together_are_listed_in_the_order_of_their_changes(store: Store) -> None:
    described, counted = await new_session(store), await new_session(store)
    made = [session_id(), session_id()]
    await store.commit(
        UpdateSession(session=described, at=2.0, title="first"),
        NewSession(session=made[0], workspace="/w", at=2.0),
        Append(session=counted, events=(event(counted),)),
        NewSession(session=made[1], workspace="/w", at=2.0),
    )
    listed = [each.id for each in (await store.list_sessions()).sessions]
    assert listed == [made[1], counted, made[0], described]


async def test_sessions_are_listed_by_workspace_without_their_workers(store: Store) -> None:
    here, there = await new_session(store, "/here"), await new_session(store, "/there")
    worker = await new_session(store, "/here", parent=here, parent_call="tu_1")
    assert [s.id for s in (await store.list_sessions("/here")).sessions] == [here]
    assert [s.id for s in (await store.list_sessions()).sessions] == [there, here]
    with_workers = (await store.list_sessions("/here", workers=True)).sessions
    assert [s.id for s in with_workers] == [worker, here]
    assert (await store.get_session(worker)).parent == here


async def test_the_workers_of_a_session_are_those_that_it_started_itself(store: Store) -> None:
    parent = await new_session(store)
    workers = [await new_session(store, parent=parent) for _ in range(2)]
    await new_session(store, parent=workers[0])
    assert [each.id for each in await store.workers_of(parent)] == workers
    assert await store.workers_of(workers[1]) == []
    assert await store.workers_of("sess_none") == []


async def test_sessions_are_found_by_a_part_of_their_id_whatever_its_case(store: Store) -> None:
    first, second = await new_session(store), await new_session(store)
    assert await store.find_sessions(first[-10:].lower()) == [first]
    assert await store.find_sessions("SESS_") == [second, first]
    assert await store.find_sessions("%") == []
    await append(store, first, "used last")
    assert await store.find_sessions("") == [first, second]


async def test_pages_list_each_session_once_while_others_are_added(store: Store) -> None:
    there = [await new_session(store) for _ in range(23)]
    listed: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.list_sessions(cursor=cursor, limit=5)
        listed += [each.id for each in page.sessions]
        await new_session(store)
        await append(store, listed[0], "used again")
        if page.cursor is None:
            break
        cursor = page.cursor
    assert listed == there[::-1]


async def test_a_page_that_ends_the_list_has_no_cursor(store: Store) -> None:
    for _ in range(4):
        await new_session(store)
    assert (await store.list_sessions(limit=4)).cursor is None
    page = await store.list_sessions(limit=2)
    assert page.cursor is not None
    assert (await store.list_sessions(limit=2, cursor=page.cursor)).cursor is None
    assert (await store.list_sessions("/nowhere")).sessions == []


async def test_a_deleted_session_leaves_nothing(store: Store) -> None:
    kept, gone = await new_session(store), await new_session(store)
    worker = await new_session(store, parent=gone)
    await append(store, gone, "a", "b")
    await append(store, worker, "c")
    question = ask(store, gone)
    await store.commit(
        question,
        PutGrant(session=gone, grant=StoredGrant(id="g", session_id=gone, tool=None, decision="allow")),
        AppendMessages(session=gone, messages=(StoredMessage(id=ulid(), body={}),), at=1.0),
        Append(session=kept, events=(event(kept),)),
    )
    assert await store.commit(DeleteSession(session=gone)) == (True,)
    assert await store.commit(DeleteSession(session=gone)) == (False,)
    for session in (gone, worker):
        with pytest.raises(SessionNotFound):
            await store.read_events(session)
    with pytest.raises(ConfirmationNotFound):
        await store.get_confirmation(question.confirmation)
    assert await store.get_call(question.call) is None
    assert list(await store.open_confirmations()) == []
    assert list(await store.grants(gone)) == []
    assert await types(store, kept) == ["note"]
    assert [s.id for s in (await store.list_sessions(workers=True)).sessions] == [kept]


async def test_a_session_that_is_created_and_deleted_at_once_was_never_there(store: Store) -> None:
    other, session = await new_session(store), "created-and-deleted"
    question = ask(store, session)
    await store.commit(
        NewSession(session=session, workspace="/w", at=1.0),
        NewSession(session="its-worker", workspace="/w", parent=session, at=1.0),
        Append(session=session, events=(event(session),)),
        question,
        AppendMessages(session=session, messages=(StoredMessage(id=ulid(), body={}),), at=1.0),
        Append(session=other, events=(event(other),)),
        DeleteSession(session=session),
    )
    for gone in (session, "its-worker"):
        with pytest.raises(SessionNotFound):
            await store.read_events(gone)
    assert await store.get_call(question.call) is None
    assert await types(store, other) == ["note"]
    assert [s.id for s in (await store.list_sessions(workers=True)).sessions] == [other]


async def test_a_session_in_use_elsewhere_is_not_deleted(world: World) -> None:
    store, other = await world.open(), await world.open()
    session = await new_session(store)
    worker = await new_session(store, parent=session)
    (fence,) = await other.commit(Acquire(session=session, owner=other.owner, at=1.0))
    await other.commit(Acquire(session=worker, owner=other.owner, at=1.0))
    with pytest.raises(SessionLocked):
        await store.commit(DeleteSession(session=session))
    assert await other.commit(DeleteSession(session=session, fence=fence)) == (True,)
    with pytest.raises(SessionNotFound):
        await store.get_session(worker)


# Forks.


async def test_a_fork_copies_up_to_the_end_of_a_turn(store: Store) -> None:
    session = await new_session(store, title="First", tags=frozenset({"x"}))
    first = event(session, "turn.started", turn="t1")
    events = [
        first,
        event(session, "turn.completed", turn="t1", parent=first.id),
        event(session, "turn.started", turn="t2"),
    ]
    said = [StoredMessage(id=ulid(), turn_id=turn, body={"of": turn}) for turn in ("t1", "t1", "t2")]
    await store.commit(
        Append(session=session, events=tuple(events)),
        AppendMessages(session=session, messages=tuple(said), at=1.0),
    )
    op = Fork(session=session, new=session_id(), turn="t1", at=50_000.0)
    (fork,) = await store.commit(op)
    assert fork == replace(
        await store.get_session(session),
        id=op.new,
        forked_from=session,
        created_at=50_000.0,
        updated_at=50_000.0,
        last_seq=2,
        messages=2,
    )
    assert await store.commit(op) == (fork,)
    one, two = await store.read_events(op.new)
    assert (one.id, two.id) != (events[0].id, events[1].id)
    assert one == replace(events[0], id=one.id, session_id=op.new)
    assert two == replace(events[1], id=two.id, session_id=op.new, parent_event_id=one.id)
    copied = await store.read_messages(op.new)
    assert [each.body for each in copied] == [{"of": "t1"}, {"of": "t1"}]
    assert list(await store.read_events(session)) == events
    await append(store, op.new, "goes on")
    assert len(await store.read_events(session)) == 3


async def test_a_fork_ends_the_calls_that_were_under_way(store: Store) -> None:
    session = await new_session(store)
    done, active = start(store, session), start(store, session, turn_id="t1")
    await store.commit(done, finish(store, session, done.call), active)
    (fork,) = await store.commit(Fork(session=session, new=session_id(), at=60_000.0))
    assert await types(store, fork.id) == [CALLED, COMPLETED, CALLED, FAILED]
    end = (await store.read_events(fork.id))[-1]
    assert end.payload["reason"] == "interrupted"
    assert end.payload["call_id"] == active.call
    assert end.turn_id == "t1"
    assert await types(store, session) == [CALLED, COMPLETED, CALLED]
    assert [call.id for call in await store.open_calls()] == [active.call]


async def test_a_fork_at_an_unknown_turn_makes_nothing(store: Store) -> None:
    session, other = await new_session(store), await new_session(store)
    with pytest.raises(ValueError):
        await store.commit(Fork(session=session, new=other, at=1.0))
    with pytest.raises(ValueError):
        await store.commit(Fork(session=session, new="sess_new", turn="t9", at=1.0))
    with pytest.raises(SessionNotFound):
        await store.get_session("sess_new")


# The session's lock.


async def test_a_session_has_one_owner_at_a_time(world: World) -> None:
    one, two = await world.open(), await world.open()
    session = await new_session(one)
    acquire = Acquire(session=session, owner=one.owner, at=1.0)
    assert await one.commit(acquire) == (1,)
    assert await one.commit(acquire) == (1,)
    with pytest.raises(SessionLocked) as locked:
        await two.commit(Acquire(session=session, owner=two.owner, at=1.0))
    assert locked.value.owner == one.owner
    release = Release(session=session, owner=one.owner, fence=1)
    assert await one.commit(release) == (True,)
    assert await one.commit(release) == (False,)
    assert await two.commit(Acquire(session=session, owner=two.owner, at=1.0)) == (2,)
    assert await one.commit(release) == (False,)
    assert (await one.get_session(session)).owner == two.owner


async def test_of_many_who_want_a_session_one_gets_it(world: World) -> None:
    stores = [await world.open() for _ in range(3)]
    session = await new_session(stores[0])
    wants = [Acquire(session=session, owner=store.owner, at=1.0) for store in stores]
    results = await asyncio.gather(
        *(store.commit(want) for store, want in zip(stores, wants, strict=True)),
        return_exceptions=True,
    )
    assert results.count((1,)) == 1
    assert sum(isinstance(each, SessionLocked) for each in results) == 2


async def test_a_session_is_free_once_its_owner_is_gone(world: World) -> None:
    one, two = await world.open(), await world.open()
    session = await new_session(one)
    await one.commit(Acquire(session=session, owner=one.owner, at=1.0))
    await one.close()
    assert await two.commit(Acquire(session=session, owner=two.owner, at=1.0)) == (2,)


async def test_an_owner_that_lost_its_session_changes_nothing(world: World) -> None:
    one, two = await world.open(), await world.open()
    session = await new_session(one)
    (old,) = await one.commit(Acquire(session=session, owner=one.owner, at=1.0))
    await one.commit(Release(session=session, owner=one.owner))
    await two.commit(Acquire(session=session, owner=two.owner, at=1.0))
    before = await two.snapshot(session)
    for op in (
        Append(session=session, fence=old, events=(event(session),)),
        UpdateSession(session=session, fence=old, title="mine", at=1.0),
        start(one, session, fence=old),
        ask(one, session, fence=old),
        DeleteSession(session=session, fence=old),
    ):
        with pytest.raises(StaleOwner):
            await one.commit(op)
    assert await two.snapshot(session) == before


# Calls.


async def test_a_call_is_started_by_one_and_ended_once(world: World) -> None:
    one, two = await world.open(), await world.open()
    session = await new_session(one)
    first = start(one, session)
    (receipt,) = await one.commit(first)
    running = StoredCall(
        id=first.call,
        session_id=session,
        state=CallState.RUNNING,
        owner=one.owner,
        tool="write_file",
        tool_use_id=first.tool_use_id,
        side_effects=first.side_effects,
        arguments_sha256="a" * 64,
        called=first.event.id,
    )
    assert (receipt.applied, receipt.call) == (True, running)
    assert await one.commit(first) == (receipt,)  # the same attempt, told twice
    (late,) = await two.commit(start(two, session, first.call))
    assert (late.applied, late.call) == (False, running)
    (wrong,) = await two.commit(finish(two, session, first.call))
    assert not wrong.applied
    (wrong,) = await one.commit(finish(one, session, first.call, attempt=2))
    assert not wrong.applied
    end = finish(one, session, first.call)
    (ended,) = await one.commit(end)
    assert (ended.applied, ended.call.state) == (True, CallState.ENDED)
    assert await one.commit(end) == (ended,)
    (again,) = await one.commit(finish(one, session, first.call))
    assert not again.applied
    (again,) = await one.commit(start(one, session, first.call))
    assert not again.applied
    assert await types(one, session) == [CALLED, COMPLETED]
    assert list(await one.open_calls()) == []
    assert await two.get_call(first.call) == ended.call


async def test_a_hundred_who_start_the_same_call_start_it_once(world: World) -> None:
    stores = [await world.open(), await world.open()]
    session = await new_session(stores[0])
    call = call_id()
    receipts = await asyncio.gather(*(stores[n % 2].commit(start(stores[n % 2], session, call)) for n in range(100)))
    assert sum(receipt.applied for (receipt,) in receipts) == 1
    assert await types(stores[0], session) == [CALLED]


async def test_a_call_that_never_started_ends_once_too(store: Store) -> None:
    session = await new_session(store)
    refused = finish(store, session, call_id())
    (receipt,) = await store.commit(refused)
    assert receipt.applied
    (again,) = await store.commit(finish(store, session, refused.call))
    assert not again.applied
    (started,) = await store.commit(start(store, session, refused.call))
    assert not started.applied
    assert await types(store, session) == [COMPLETED]


async def test_a_call_starts_and_ends_with_the_events_for_it(store: Store) -> None:
    session = await new_session(store)
    with pytest.raises(ValueError):
        await store.commit(replace(start(store, session), event=event(session, COMPLETED)))
    with pytest.raises(ValueError):
        await store.commit(replace(finish(store, session, "c"), event=event(session, CALLED)))
    assert await types(store, session) == []


async def test_open_calls_are_found_by_session_and_owner(world: World) -> None:
    one, two = await world.open(), await world.open()
    first, second = await new_session(one), await new_session(one)
    a, b, c = start(one, first), start(two, first), start(one, second)
    for store, op in ((one, a), (two, b), (one, c)):
        await store.commit(op)
    assert [each.id for each in await one.open_calls()] == sorted([a.call, b.call, c.call])
    assert [each.id for each in await one.open_calls(first)] == sorted([a.call, b.call])
    assert [each.id for each in await one.open_calls(owner=two.owner)] == [b.call]
    assert [each.id for each in await one.open_calls(second, one.owner)] == [c.call]


# Questions.


@pytest.mark.spec("T18")
async def test_of_a_hundred_answers_one_stands_and_the_others_learn_it(world: World) -> None:
    stores = [await world.open(), await world.open()]
    session = await new_session(stores[0])
    question = ask(stores[0], session)
    await stores[0].commit(question)
    answers = [answer(question, ALLOWED if n % 3 else DENIED, by=f"client {n}") for n in range(100)]
    resolutions = await asyncio.gather(*(stores[n % 2].commit(each) for n, each in enumerate(answers)))
    applied = [n for n, (each,) in enumerate(resolutions) if each.applied]
    assert len(applied) == 1
    standing = await stores[1].get_confirmation(question.confirmation)
    assert standing.by == f"client {applied[0]}"
    assert all(each.confirmation == standing for (each,) in resolutions)
    assert await types(stores[0], session) == [CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED]
    # The winner, not knowing that it won, asks again.
    assert await stores[0].commit(answers[applied[0]]) == resolutions[applied[0]]


@pytest.mark.spec("T18")
async def test_an_answer_covers_only_the_arguments_that_were_shown(store: Store) -> None:
    session = await new_session(store)
    question = ask(store, session)
    await store.commit(question)
    with pytest.raises(AnswerMismatch):
        await store.commit(answer(question, ALLOWED, arguments_sha256="b" * 64))
    assert len(await store.open_confirmations(session)) == 1
    (resolution,) = await store.commit(answer(question, ALLOWED, arguments_sha256="a" * 64))
    assert resolution.applied


async def test_an_answer_to_no_question_is_refused(store: Store) -> None:
    session, other = await new_session(store), await new_session(store)
    question = ask(store, session)
    with pytest.raises(ConfirmationNotFound):
        await store.commit(answer(question, ALLOWED))
    await store.commit(question)
    with pytest.raises(ConfirmationNotFound):
        await store.commit(answer(replace(question, session=other), ALLOWED))
    with pytest.raises(ValueError):
        await store.commit(answer(question, ConfirmationState.PENDING))
    with pytest.raises(ConfirmationNotFound):
        await store.get_confirmation("nothing")


async def test_open_questions_are_listed_until_they_are_answered(store: Store) -> None:
    session, other = await new_session(store), await new_session(store)
    one, two = ask(store, session), ask(store, other)
    (asked,) = await store.commit(one)
    assert await store.commit(one) == (asked,)
    await store.commit(two)
    assert asked.question == {"tool": "write_file", "why": "it writes"}
    assert list(await store.open_confirmations(session)) == [asked]
    assert len(await store.open_confirmations()) == 2
    await store.commit(answer(one, DENIED))
    assert [each.id for each in await store.open_confirmations()] == [two.confirmation]


async def test_a_call_that_waits_starts_only_when_it_was_allowed(store: Store) -> None:
    session = await new_session(store)
    denied, allowed = ask(store, session), ask(store, session)
    await store.commit(denied, allowed)
    for question in (denied, allowed):
        (receipt,) = await store.commit(start(store, session, question.call))
        assert (receipt.applied, receipt.call.state) == (False, CallState.WAITING)
    await store.commit(answer(denied, DENIED))
    await store.commit(answer(allowed, ALLOWED))
    (receipt,) = await store.commit(start(store, session, denied.call))
    assert not receipt.applied
    (receipt,) = await store.commit(start(store, session, allowed.call))
    assert (receipt.applied, receipt.call.confirmation) == (True, allowed.confirmation)


async def test_a_call_that_is_stopped_takes_its_question_with_it(store: Store) -> None:
    session = await new_session(store)
    question = ask(store, session)
    await store.commit(question)
    await store.commit(finish(store, session, question.call))
    assert await types(store, session) == [
        CONFIRMATION_REQUESTED,
        CONFIRMATION_RESOLVED,
        COMPLETED,
    ]
    (resolution,) = await store.commit(answer(question, ALLOWED))
    assert not resolution.applied
    assert resolution.confirmation.state is ConfirmationState.WITHDRAWN


async def test_a_question_may_be_asked_again_and_only_the_last_counts(store: Store) -> None:
    session = await new_session(store)
    first = ask(store, session)
    await store.commit(first)
    await store.commit(answer(first, ALLOWED))
    second = ask(store, session, call=first.call)
    third = ask(store, session, call=first.call)
    await store.commit(second)
    await store.commit(third)
    assert [each.id for each in await store.open_confirmations()] == [third.confirmation]
    (late,) = await store.commit(answer(second, ALLOWED))
    assert late.confirmation.state is ConfirmationState.WITHDRAWN
    (receipt,) = await store.commit(start(store, session, first.call))
    assert not receipt.applied
    await store.commit(answer(third, ALLOWED))
    (receipt,) = await store.commit(start(store, session, first.call))
    assert receipt.applied
    with pytest.raises(CallMismatch):
        await store.commit(ask(store, session, call=first.call))


@pytest.mark.spec("T18")
@pytest.mark.parametrize("amended", [None, "c" * 64])
async def test_an_allowed_call_starts_with_the_arguments_of_the_answer_only(store: Store, amended: str | None) -> None:
    session = await new_session(store)
    question = ask(store, session)
    await store.commit(question)
    await store.commit(answer(question, ALLOWED, amended_sha256=amended))
    op = start(store, session, question.call)
    for wrong in ("b" * 64, "a" * 64 if amended else "c" * 64):
        (receipt,) = await store.commit(replace(op, arguments_sha256=wrong))
        assert not receipt.applied
    (receipt,) = await store.commit(replace(op, arguments_sha256=amended or "a" * 64))
    assert receipt.applied


async def test_a_call_stays_in_its_session(store: Store) -> None:
    session, other = await new_session(store), await new_session(store)
    question, running = ask(store, session), start(store, session)
    await store.commit(question, running)
    await store.commit(answer(question, ALLOWED))
    for op in (
        start(store, other, question.call),
        finish(store, other, running.call),
        ask(store, other, call=question.call),
    ):
        with pytest.raises(CallMismatch):
            await store.commit(op)
    with pytest.raises(ValueError):
        await store.commit(replace(ask(store, session), confirmation=question.confirmation))
    assert await types(store, other) == []


async def test_an_answer_that_comes_too_late_is_none(store: Store) -> None:
    session = await new_session(store)
    question = ask(store, session, expires_at=2_000.0)
    await store.commit(question)
    (late,) = await store.commit(answer(question, ALLOWED))
    assert (late.applied, late.confirmation.state) == (False, ConfirmationState.EXPIRED)
    (receipt,) = await store.commit(start(store, session, question.call))
    assert not receipt.applied


async def test_only_the_answer_that_counts_leaves_its_grant(store: Store) -> None:
    session = await new_session(store)
    question = ask(store, session)
    await store.commit(question)
    grants = [StoredGrant(id=f"g{n}", session_id=session, tool="write_file", decision="allow") for n in range(2)]
    await store.commit(answer(question, ALLOWED, grants=(grants[0],)))
    await store.commit(answer(question, ALLOWED, grants=(grants[1],)))
    assert list(await store.grants(session)) == [grants[0]]


async def test_questions_expire_once_and_at_their_time(store: Store) -> None:
    session = await new_session(store)
    soon, later = ask(store, session, expires_at=100.0), ask(store, session, expires_at=300.0)
    await store.commit(soon, later)
    assert await store.commit(ExpireConfirmations(at=99.9)) == ((),)
    ((expired,),) = await store.commit(ExpireConfirmations(at=100.0))
    assert (expired.id, expired.state) == (soon.confirmation, ConfirmationState.EXPIRED)
    assert await store.commit(ExpireConfirmations(at=200.0)) == ((),)
    (late,) = await store.commit(answer(soon, ALLOWED))
    assert (late.applied, late.confirmation) == (False, expired)
    resolved = (await store.read_events(session))[-1]
    assert (resolved.type, resolved.actor) == (CONFIRMATION_RESOLVED, "system")
    assert resolved.payload["decision"] == "timeout"
    assert resolved.payload["confirmation_request_id"] == soon.confirmation
    # Its call is not ended here: the process that asked lives and will say so itself.
    assert [call.id for call in await store.open_calls(session)] == sorted([soon.call, later.call])


# Grants.


async def test_a_grant_is_used_as_often_as_it_says(world: World) -> None:
    stores = [await world.open(), await world.open()]
    session = await new_session(stores[0])
    grant = StoredGrant(id="g", session_id=session, tool="shell", decision="allow", uses=2)
    await stores[0].commit(PutGrant(session=session, grant=grant))
    uses = [UseGrant(session=session, grant="g", call=f"tu_{n}", at=1.0) for n in range(10)]
    used = await asyncio.gather(*(stores[n % 2].commit(use) for n, use in enumerate(uses)))
    assert sum(applied for (applied,) in used) == 2
    first = next(n for n, (applied,) in enumerate(used) if applied)
    assert await stores[0].commit(uses[first]) == (True,)  # told twice, used once
    await stores[0].commit(PutGrant(session=session, grant=grant))  # and not made new
    assert await stores[0].commit(replace(uses[0], call="tu_more")) == (False,)


async def test_a_grant_ends_at_its_time_and_when_it_is_revoked(store: Store) -> None:
    session, other = await new_session(store), await new_session(store)
    timed = StoredGrant(id="timed", session_id=session, tool=None, decision="allow", expires_at=50.0)
    free = StoredGrant(id="free", session_id=session, tool="shell", decision="deny")
    kept = StoredGrant(id="kept", session_id=other, tool=None, decision="allow")
    for grant in (timed, free, kept):
        await store.commit(PutGrant(session=grant.session_id, grant=grant))
    use = UseGrant(session=session, grant="timed", call="c", at=49.0)
    assert await store.commit(use) == (True,)
    assert await store.commit(replace(use, at=50.0)) == (False,)
    assert await store.commit(replace(use, session=other)) == (False,)
    assert await store.commit(RevokeGrants(session=session, grant="timed")) == (1,)
    assert list(await store.grants(session)) == [free]
    assert await store.commit(RevokeGrants(session=session)) == (1,)
    assert await store.commit(RevokeGrants(session=session)) == (0,)
    assert list(await store.grants(other)) == [kept]


async def test_a_snapshot_shows_what_is_open_at_one_moment(store: Store) -> None:
    session = await new_session(store)
    running, pending, allowed, denied = (
        start(store, session),
        ask(store, session),
        ask(store, session),
        ask(store, session),
    )
    grant = StoredGrant(id="g", session_id=session, tool=None, decision="allow")
    await store.commit(running, pending, allowed, denied, PutGrant(session=session, grant=grant))
    await store.commit(answer(allowed, ALLOWED), answer(denied, DENIED))
    await store.commit(finish(store, session, denied.call))
    snapshot = await store.snapshot(session)
    assert snapshot.session == await store.get_session(session)
    assert snapshot.session.last_seq == 7
    assert {call.id: call.state for call in snapshot.calls} == {
        running.call: CallState.RUNNING,
        pending.call: CallState.WAITING,
        allowed.call: CallState.WAITING,
    }
    assert {each.id: each.state for each in snapshot.confirmations} == {
        pending.confirmation: ConfirmationState.PENDING,
        allowed.confirmation: ConfirmationState.ALLOWED,
    }
    assert list(snapshot.grants) == [grant]


# Processes that are gone.


async def test_what_a_dead_process_ran_is_ended_as_interrupted_once(world: World) -> None:
    dead, living = await world.open(), await world.open()
    session = await new_session(dead)
    await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0))
    lost, done = start(dead, session, turn_id="t1"), start(dead, session)
    await dead.commit(lost, done, finish(dead, session, done.call))
    ours = start(living, session)
    await living.commit(ours)
    await dead.close()

    others = [living, await world.open(), await world.open()]
    reaped = await asyncio.gather(*(reap_dead(store, 70_000.0) for store in others))
    interrupted = [call for some in reaped for each in some for call in each.interrupted]
    assert [call.id for call in interrupted] == [lost.call]
    end = (await living.read_events(session))[-1]
    assert end == Event(
        id=end.id,
        timestamp=70_000.0,
        session_id=session,
        turn_id="t1",
        parent_event_id=lost.event.id,
        type=FAILED,
        actor="tool",
        payload={
            "tool_name": "write_file",
            "error_class": "execution_error",
            "message": end.payload["message"],
            "error_message": end.payload["message"],
            "latency_ms": 0.0,
            "tool_use_id": lost.tool_use_id,
            "call_id": lost.call,
            "reason": "interrupted",
        },
    )
    assert await types(living, session) == [CALLED, CALLED, COMPLETED, CALLED, FAILED]
    assert (await living.get_session(session)).owner is None
    assert [call.id for call in await living.open_calls()] == [ours.call]
    assert list(await living.dead_owners()) == []
    (again,) = await living.commit(start(living, session, lost.call))
    assert not again.applied
    assert await reap_dead(living, 80_000.0) == []


async def test_the_record_of_an_end_is_committed_with_it_and_cleared_once_it_is_written(store: Store) -> None:
    session = await new_session(store)
    calls = [call_id() for _ in range(3)]
    ends = [finish(store, session, call, record=f'{{"id":"{call}"}}') for call in calls]
    await store.commit(ends[0])
    await store.commit(*ends)  # again, because nobody knows whether the first time counted
    owed = [OutboxRecord(call_id=call, owner=store.owner, record=f'{{"id":"{call}"}}') for call in sorted(calls)]
    assert list(await store.outbox()) == owed
    assert list(await store.outbox(of_dead=True)) == []
    assert await store.commit(ClearOutbox(calls=(*calls[:2], "tu_unknown"))) == (2,)
    await store.commit(*ends)
    assert [record.call_id for record in await store.outbox()] == calls[2:]
    await store.commit(DeleteSession(session=session))
    assert [record.call_id for record in await store.outbox()] == calls[2:], "what happened is owed all the same"


async def test_an_end_that_is_not_applied_puts_nothing_into_the_outbox(world: World) -> None:
    first, second = await world.open(), await world.open()
    session = await new_session(first)
    call = start(first, session)
    await first.commit(call)
    (receipt,) = await second.commit(finish(second, session, call.call, record="{}"))
    assert not receipt.applied
    assert list(await first.outbox()) == []


@pytest.mark.parametrize("by", [Reap, Acquire])
async def test_the_records_of_interrupted_calls_are_in_the_outbox_at_once(world: World, by: Any) -> None:
    dead, living = await world.open(), await world.open()
    session = await new_session(dead)
    await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0))
    lost = start(dead, session, turn_id="t1", caller="cli", summary='{"a":1}', principal="local")
    await dead.commit(lost)
    await dead.close()
    if by is Reap:
        await living.commit(Reap(owner=dead.owner, at=70.5))
    else:
        await living.commit(Acquire(session=session, owner=living.owner, at=70.5))
    (owed,) = await living.outbox(of_dead=True)
    assert (owed.call_id, owed.owner) == (lost.call, ""), "nobody has begun to write its line"
    end = (await living.read_events(session))[-1]
    assert decode(owed.record, CallRecord) == CallRecord(
        id=f"audit_{end.id}",
        ts=70_500,
        caller="cli",
        principal="local",
        tool="write_file",
        decision="allow",
        call_id=lost.call,
        session=session,
        cwd="/w",
        args='{"a":1}',
        args_hash="a" * 64,
        result=end.payload["message"],
        error_class="execution_error",
        reason="interrupted",
        side_effects="write",
        turn_id="t1",
        called=lost.event.id,
        tool_use_id=lost.tool_use_id,
    )


async def test_a_question_that_closes_with_its_process_leaves_a_record(world: World) -> None:
    dead, living = await world.open(), await world.open()
    session = await new_session(dead)
    question = ask(dead, session, turn_id=None, summary="{}", expires_at=50.0)
    late = ask(dead, session, turn_id="t1", expires_at=50.0)
    await dead.commit(question, late)
    await dead.close()
    await reap_dead(living, 10.0)
    await living.commit(ExpireConfirmations(at=60.0))
    records = [decode(each.record, CallRecord) for each in await living.outbox(of_dead=True)]
    ends = {record.call_id: (record.decision, record.error_class) for record in records}
    assert ends == {
        question.call: ("allow", "cancelled"),
        late.call: ("deny", "confirmation_timeout"),
    }


async def test_calls_without_effects_that_a_dead_owner_left_open_are_closed_on_request(world: World) -> None:
    dead, heir = await world.open(), await world.open()
    session = await new_session(dead)
    await append(dead, session, "note")
    await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0))
    cut, done, follow, ours = (call_id() for _ in range(4))
    called = event(session, CALLED, call_id=cut, tool_use_id=cut, tool_name="read_file", side_effects="read")
    effects = start(dead, session)
    events = (
        called,
        event(session, CALLED, call_id=done),
        event(session, COMPLETED, call_id=done),
        event(session, CALLED, call_id=follow),
    )
    await dead.commit(Append(session=session, events=events), effects)
    assert list(await heir.cut_sessions()) == []
    await dead.close()
    await heir.commit(Acquire(session=session, owner=heir.owner, at=2.0))
    expected = CutSession(session_id=session, owners=(dead.owner,), after=1, upto=6)
    assert list(await heir.cut_sessions()) == [expected]
    # What the heir starts meanwhile is its own, and what a line says has ended is not cut.
    later = (event(session, CALLED, call_id=ours), event(session, COMPLETED, call_id=follow))
    await heir.commit(Append(session=session, events=later))
    assert await heir.commit(CloseCutCalls(session=session, at=3.0)) == ((cut,),)
    assert await heir.commit(CloseCutCalls(session=session, at=4.0)) == ((),)
    assert list(await heir.cut_sessions()) == []
    end = (await heir.read_events(session))[-1]
    assert (end.type, end.payload["call_id"], end.payload["reason"]) == (FAILED, cut, "interrupted")
    owed = {each.call_id: each for each in await heir.outbox(of_dead=True)}
    assert owed.keys() == {cut, effects.call}
    record = decode(owed[cut].record, CallRecord)
    assert (record.id, record.called) == (f"audit_{end.id}", called.id)
    assert (record.tool, record.side_effects, record.reason) == ("read_file", "read", "interrupted")


async def test_a_cut_session_is_closed_once_the_lines_of_each_owner_were_read(world: World) -> None:
    one, two, heir = [await world.open() for _ in range(3)]
    session = await new_session(one)
    calls = [call_id(), call_id()]
    for store, call in zip((one, two), calls, strict=True):
        await store.commit(Acquire(session=session, owner=store.owner, at=1.0))
        await store.commit(Append(session=session, events=(event(session, CALLED, call_id=call),)))
        await store.close()
    await reap_dead(heir, 2.0)
    (cut,) = await heir.cut_sessions()
    assert cut.owners == (one.owner, two.owner)
    partly = CloseCutCalls(session=session, at=3.0, owners=(one.owner, "own_other"))
    assert await heir.commit(partly, partly) == ((), ())
    (cut,) = await heir.cut_sessions()
    assert cut.owners == (two.owner,)
    assert await types(heir, session) == [CALLED, CALLED]
    (closed,) = await heir.commit(CloseCutCalls(session=session, at=3.0, owners=(two.owner,)))
    assert sorted(closed) == sorted(calls)
    assert list(await heir.cut_sessions()) == []


async def test_of_several_who_claim_a_record_of_the_dead_one_gets_it(world: World) -> None:
    dead, *others = [await world.open() for _ in range(4)]
    session = await new_session(dead)
    await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0))
    lost, done = start(dead, session), call_id()
    await dead.commit(lost, finish(dead, session, done, record="{}"))
    both = (lost.call, done)
    assert await others[0].commit(ClaimOutbox(calls=both, owner=others[0].owner)) == ((),), "its owner lives"
    await dead.close()
    await reap_dead(others[0], 2.0)
    assert {each.call_id: each.owner for each in await others[0].outbox()} == {lost.call: "", done: dead.owner}
    claims = [each.commit(ClaimOutbox(calls=(*both, "tu_unknown"), owner=each.owner)) for each in others]
    claimed = [set(ids) for (ids,) in await asyncio.gather(*claims)]
    assert sorted(map(len, claimed)) == [0, 0, 2]
    winner = others[claimed.index(set(both))]
    assert {each.owner for each in await winner.outbox()} == {winner.owner}
    assert list(await winner.outbox(of_dead=True)) == []
    again = ClaimOutbox(calls=both, owner=winner.owner)
    assert await winner.commit(again) == (both,), "applying it again changes nothing"
    loser = next(each for each in others if each is not winner)
    theirs = ClaimOutbox(calls=both, owner=loser.owner, expected=loser.owner)
    assert await loser.commit(theirs) == ((),)
    back = ClaimOutbox(calls=(done,), owner="", expected=winner.owner)
    assert await winner.commit(back) == ((done,),)
    assert await loser.commit(ClaimOutbox(calls=both, owner=loser.owner)) == ((done,),)


async def test_nothing_of_a_living_process_is_reaped(world: World) -> None:
    one, two = await world.open(), await world.open()
    session = await new_session(one)
    await one.commit(Acquire(session=session, owner=one.owner, at=1.0), start(one, session))
    assert list(await two.dead_owners()) == []
    assert await two.commit(Reap(owner=one.owner, at=1.0)) == (Reaped(owner=one.owner),)
    assert await types(two, session) == [CALLED]


async def test_taking_a_dead_process_s_session_ends_what_it_ran(world: World) -> None:
    dead, living = await world.open(), await world.open()
    session = await new_session(dead)
    await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0), start(dead, session))
    await dead.close()
    await living.commit(Acquire(session=session, owner=living.owner, at=70_000.0))
    assert await types(living, session) == [CALLED, FAILED]
    assert await reap_dead(living, 80_000.0) == []


async def test_a_question_of_a_turn_outlives_its_process_and_runs_once(world: World) -> None:
    dead = await world.open()
    session = await new_session(dead)
    await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0))
    question = ask(dead, session, turn_id="t1")
    await dead.commit(question)
    await dead.close()

    answering, resuming = await world.open(), await world.open()
    assert [each.closed for each in await reap_dead(answering, 70_000.0)] == [()]
    (open,) = await answering.open_confirmations(session)
    (resolution,) = await answering.commit(answer(question, ALLOWED))
    assert (resolution.applied, open.id) == (True, question.confirmation)
    (fence,) = await resuming.commit(Acquire(session=session, owner=resuming.owner, at=70_001.0))
    snapshot = await resuming.snapshot(session)
    assert [each.id for each in snapshot.confirmations] == [question.confirmation]
    (receipt,) = await resuming.commit(start(resuming, session, question.call, fence=fence))
    assert receipt.applied
    (second,) = await resuming.commit(start(resuming, session, question.call, fence=fence))
    assert not second.applied


async def test_a_worker_s_turn_and_its_questions_close_with_its_process(world: World) -> None:
    dead, living = await world.open(), await world.open()
    session = await new_session(dead)
    await dead.commit(
        NewSession(session="worker", workspace="/ws", parent=session, at=1.0),
        Acquire(session="worker", owner=dead.owner, at=1.0),
        UpdateSession(session="worker", turn_id="t1", at=1.0),
    )
    pending, allowed = (ask(dead, "worker", turn_id="t1") for _ in range(2))
    await dead.commit(pending, allowed)
    await dead.commit(answer(allowed, ALLOWED))
    await dead.close()
    [reaped] = await reap_dead(living, 70_000.0)
    assert {call.id for call in reaped.closed} == {pending.call, allowed.call}
    assert list(await living.open_confirmations()) == []
    worker = await living.get_session("worker")
    assert (worker.turn_id, worker.owner) == (None, None)
    ends = [e for e in await living.read_events("worker") if e.type == TURN_CANCELLED]
    assert [(end.turn_id, end.payload) for end in ends] == [("t1", {"reason": "interrupted"})]
    assert await reap_dead(living, 80_000.0) == []


async def test_a_question_of_a_direct_call_closes_with_its_process(world: World) -> None:
    dead, living = await world.open(), await world.open()
    session = await new_session(dead)
    pending, allowed = (ask(dead, session, turn_id=None) for _ in range(2))
    await dead.commit(pending, allowed)
    await dead.commit(answer(allowed, ALLOWED))
    await dead.close()
    [reaped] = await reap_dead(living, 70_000.0)
    assert {call.id for call in reaped.closed} == {pending.call, allowed.call}
    assert list(await living.open_confirmations()) == []
    assert list(await living.open_calls()) == []
    events = await living.read_events(session)
    ends = [each.payload for each in events if each.type == FAILED]
    assert {end["error_class"] for end in ends} == {"cancelled"}
    assert {end["call_id"] for end in ends} == {pending.call, allowed.call}


@pytest.mark.parametrize(("close", "error_class"), [("deny", "user_denied"), ("expire", "confirmation_timeout")])
async def test_a_refusal_that_nobody_is_left_to_report_ends_the_call(
    world: World, close: str, error_class: str
) -> None:
    dead, living = await world.open(), await world.open()
    session = await new_session(dead)
    question = ask(dead, session, expires_at=2_001.0)
    await dead.commit(question)
    await dead.close()
    if close == "deny":
        await living.commit(answer(question, DENIED))
    else:
        await living.commit(ExpireConfirmations(at=2_001.0))
    assert await types(living, session) == [CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED, FAILED]
    assert (await living.read_events(session))[-1].payload["error_class"] == error_class
    assert list(await living.open_calls()) == []


async def test_the_owner_of_a_session_reports_on_the_questions_it_took_over(
    world: World,
) -> None:
    asking, owning, answering = await world.open(), await world.open(), await world.open()
    session = await new_session(asking)
    question = ask(asking, session, turn_id="t1")
    await asking.commit(question)
    await asking.close()
    await owning.commit(Acquire(session=session, owner=owning.owner, at=1.0))
    await answering.commit(answer(question, DENIED))
    assert (await types(answering, session))[-1] == CONFIRMATION_RESOLVED
    # It is gone before it could: then the reaper does.
    await owning.close()
    [first, *more] = await reap_dead(answering, 70_000.0)
    closed = [call.id for each in (first, *more) for call in each.closed]
    assert closed == [question.call]
    assert (await types(answering, session))[-1] == FAILED


# Waiting.


async def test_whoever_waits_is_woken_by_a_change(world: World) -> None:
    here, there = await world.open(), await world.open()
    session, other = await new_session(here), await new_session(here)
    for writer in (here, there):
        with here.wake(session) as hint, here.wake() as any_hint:
            while await hint.wait(0.2):  # until the past is past
                pass
            await append(writer, other, "elsewhere")
            assert await any_hint.wait(60)
            assert not await hint.wait(0.2)
            waiting = asyncio.create_task(hint.wait(60))
            await append(writer, session, "here")
            assert await waiting


async def test_a_tail_sees_what_was_and_what_comes(world: World) -> None:
    writer, reader = await world.open(), await world.open()
    session = await new_session(writer)
    await append(writer, session, "1", "2")
    seen: list[tuple[int, str]] = []
    enough = asyncio.Event()

    async def follow() -> None:
        async for seq, each in tail(reader, session, after=1):
            seen.append((seq, each.type))
            if len(seen) == 21:
                enough.set()

    following = asyncio.create_task(follow())
    for n in range(3, 23):
        await append(writer, session, str(n))
    await within(10, enough.wait())
    following.cancel()
    assert seen == [(n, str(n)) for n in range(2, 23)]


async def test_an_answer_in_one_process_reaches_the_one_that_waits(world: World) -> None:
    asking, answering = await world.open(), await world.open()
    session = await new_session(asking)
    question = ask(asking, session)
    await asking.commit(question)

    async def wait() -> Any:
        with asking.wake(session) as hint:
            while True:
                stored = await asking.get_confirmation(question.confirmation)
                if stored.state is not ConfirmationState.PENDING:
                    return stored
                await hint.wait()

    waiting = asyncio.create_task(wait())
    await answering.commit(answer(question, DENIED))
    assert (await within(10, waiting)).state is DENIED


# The end.


async def test_what_was_committed_before_the_close_is_there_after_it(world: World) -> None:
    store = await world.open()
    session = await new_session(store)
    written = store.commit(Append(session=session, events=(event(session, "last"),)))
    await store.close()
    assert await written == ((1,),)
    assert await types(await world.open(), session) == ["last"]


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        store.commit(PutBlob(data=b""))
    with pytest.raises(StoreClosed):
        await store.entries("rule")


# Entries that all processes share.


async def test_an_entry_is_set_read_and_dropped(store: Any) -> None:
    [first] = await store.commit(PutEntry(kind="rule", name="b", value='{"x":1}'))
    [second] = await store.commit(PutEntry(kind="rule", name="a", value="2"))
    await store.commit(PutEntry(kind="other", name="a", value="3"))
    assert first == EntryReceipt(True, SharedEntry(kind="rule", name="b", value='{"x":1}', version=1))
    assert [*await store.entries("rule")] == [second.entry, first.entry]
    [gone] = await store.commit(DropEntry(kind="rule", name="b"))
    assert gone == EntryReceipt(True, None)
    assert [*await store.entries("rule")] == [second.entry]
    assert [each.value for each in await store.entries("other")] == ["3"]


async def test_of_two_who_change_one_version_of_an_entry_one_does(world: World) -> None:
    one, other = await world.open(), await world.open()
    results = await asyncio.gather(
        *(each.commit(PutEntry(kind="k", name="n", value=each.owner, expected=0)) for each in (one, other))
    )
    assert sorted(receipt.applied for (receipt,) in results) == [False, True]
    [stands] = await one.entries("k")
    assert {receipt.entry for (receipt,) in results} == {stands}
    [late] = await one.commit(DropEntry(kind="k", name="n", expected=7))
    assert late == EntryReceipt(False, stands)
    [changed] = await other.commit(PutEntry(kind="k", name="n", value="new", expected=stands.version))
    assert (changed.applied, changed.entry.version) == (True, stands.version + 1)


async def test_a_change_of_one_version_that_is_sent_again_is_applied_as_the_first_time(world: World) -> None:
    one, other = await world.open(), await world.open()
    put = PutEntry(kind="k", name="n", value="v", expected=0)
    [first] = await one.commit(put)
    [again] = await one.commit(put)
    [elsewhere] = await other.commit(put)  # which remembers nothing of it
    assert first.applied and first == again == elsewhere
    [alike] = await other.commit(PutEntry(kind="k", name="n", value="v", expected=0))
    assert alike == EntryReceipt(False, first.entry), "somebody else who wants the same"
    [changed] = await other.commit(PutEntry(kind="k", name="n", value="w", expected=first.entry.version))
    [late] = await one.commit(put)
    assert late == EntryReceipt(False, changed.entry)
    assert [*await one.entries("k")] == [changed.entry]


async def test_an_entry_that_is_set_to_its_value_stays_as_it_is(store: Any) -> None:
    [first] = await store.commit(PutEntry(kind="k", name="n", value="v"))
    assert await store.commit(PutEntry(kind="k", name="n", value="v")) == (first,)


async def test_a_change_of_entries_wakes_those_who_wait_for_their_kind(world: World) -> None:
    one, other = await world.open(), await world.open()
    await one.commit(PutEntry(kind="rule", name="a", value="0"))
    with other.wake(entries_key("rule")) as rules, other.wake(entries_key("pin")) as pins:
        while await rules.wait(0.3):
            pass  # the first look of a watcher tells everyone
        while await pins.wait(0.3):
            pass
        await one.commit(PutEntry(kind="rule", name="a", value="1"))
        assert await rules.wait(5.0)
        assert [each.value for each in await other.entries("rule")] == ["1"]
        assert not await pins.wait(0.1)


async def test_a_process_is_alive_until_its_store_is_closed(world: World) -> None:
    one, other = await world.open(), await world.open()
    await new_session(one)
    await new_session(other)
    assert await one.alive(one.owner) and await one.alive(other.owner)
    await other.close()
    assert not await one.alive(other.owner)
    assert not await one.alive("own_never")


async def test_who_made_a_session_and_who_answered_are_kept(store: Any) -> None:
    session = await new_session(store, principal="ada")
    assert (await store.get_session(session)).principal == "ada"
    question = ask(store, session)
    await store.commit(question)
    await store.commit(answer(question, ConfirmationState.ALLOWED, principal="grace"))
    assert (await store.get_confirmation(question.confirmation)).principal == "grace"


async def test_what_a_dead_process_left_is_ended_in_portions(world: World) -> None:
    dead, living = await world.open(), await world.open()
    sessions = [await new_session(dead) for _ in range(5)]
    for session in sessions:
        await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0), start(dead, session))
    await dead.close()
    (first,) = await living.commit(Reap(owner=dead.owner, at=9.0, most=2))
    assert (len(first.interrupted), first.more) == (2, True)
    rest = await reap_dead(living, 9.0)
    assert sum(len(each.interrupted) for each in rest) == 3
    assert {(await living.get_session(each)).owner for each in sessions} == {None}


async def test_who_acquires_a_session_of_a_dead_process_leaves_its_others_alone(world: World) -> None:
    dead, living = await world.open(), await world.open()
    wanted, other = await new_session(dead), await new_session(dead)
    for session in (wanted, other):
        await dead.commit(Acquire(session=session, owner=dead.owner, at=1.0), start(dead, session))
    await dead.close()
    await living.commit(Acquire(session=wanted, owner=living.owner, at=9.0))
    assert await types(living, wanted) == [CALLED, FAILED]
    assert await types(living, other) == [CALLED]
    assert (await living.get_session(other)).owner == dead.owner
    assert [*await living.dead_owners()] == [dead.owner]
