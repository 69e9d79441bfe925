"""Whatever is done to both stores, in whatever order, they answer and end up the same."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.core.budgets import (
    Amount,
    Charge,
    EventPruning,
    PruneEvents,
    PruneSessions,
    ReturnBudget,
    SessionPruning,
    SweepRows,
    UseBudget,
    ledger_kind,
)
from callgate.core.effects import SideEffects
from callgate.core.events import (
    CALLED,
    COMPLETED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    OUTPUT_DELTA,
    Event,
)
from callgate.core.ops import (
    Acquire,
    Append,
    AppendMessages,
    ClearOutbox,
    CloseCutCalls,
    DeleteSession,
    DropBlob,
    DropOutput,
    ExpireConfirmations,
    FinishCall,
    Fork,
    NewSession,
    Op,
    PutBlob,
    PutConfirmation,
    PutGrant,
    Reap,
    Release,
    ResolveConfirmation,
    RevokeGrants,
    StartCall,
    UpdateSession,
    UseGrant,
)
from callgate.core.stored import ConfirmationState, StoredGrant, StoredMessage
from callgate.core.stores import StoreError
from callgate.storage.sqlite.store import SqliteStore
from tests.memory_store import MemoryStore, Tables

_sessions = st.sampled_from(["s1", "s2", "s3"])
_calls = st.sampled_from(["c1", "c2", "c3"])
_owners = st.sampled_from(["own_0", "own_1", "own_dead"])
_fences = st.sampled_from([None, None, None, 1, 2])
_turns = st.sampled_from([None, "t1", "t2"])
_times = st.integers(0, 9).map(float)
_ids = st.integers(0, 30)


def _event(type: st.SearchStrategy[str] | str, session: str) -> st.SearchStrategy[Event]:
    kind = type if isinstance(type, st.SearchStrategy) else st.just(type)
    return st.builds(
        lambda id, type, at, turn, call: Event(
            id=f"e{id}{type}",
            timestamp=at,
            session_id=session,
            turn_id=turn,
            type=type,
            actor="agent",
            payload={"call_id": call, "text": "x"},
        ),
        _ids,
        kind,
        _times,
        _turns,
        _calls,
    )


def _in_session(session: str) -> st.SearchStrategy[Op[Any]]:
    known = {"session": st.just(session), "fence": _fences}
    grant = st.builds(
        StoredGrant,
        id=st.sampled_from(["g1", "g2"]),
        session_id=st.just(session),
        tool=st.none(),
        decision=st.just("allow"),
        uses=st.sampled_from([None, 1, 2]),
        expires_at=st.one_of(st.none(), _times),
    )
    call = {"call": _calls, "owner": _owners, **known}
    about = {
        "tool": st.just("shell"),
        "turn_id": _turns,
        "side_effects": st.just(SideEffects.EXECUTE),
        "arguments_sha256": st.just("a"),
    }
    notes = _event(st.sampled_from(["note", OUTPUT_DELTA, CALLED]), session)
    return st.one_of(
        st.builds(
            NewSession,
            session=st.just(session),
            workspace=st.just("/w"),
            at=_times,
            parent=st.sampled_from([None, None, "s1"]),
        ),
        st.builds(UpdateSession, title=st.text(max_size=3), at=_times, **known),
        st.builds(Append, events=st.lists(notes, max_size=3).map(tuple), **known),
        st.builds(
            AppendMessages,
            at=_times,
            **known,
            messages=st.lists(
                st.builds(StoredMessage, id=_ids.map(lambda n: f"m{n}"), turn_id=_turns, body=st.just({})), max_size=2
            ).map(tuple),
        ),
        st.builds(DropOutput, after=st.integers(0, 2), upto=st.integers(0, 6), **known),
        st.builds(StartCall, event=_event(CALLED, session), **about, **call),
        st.builds(FinishCall, event=_event(COMPLETED, session), record=st.sampled_from([None, "{}"]), **call),
        st.builds(CloseCutCalls, at=_times, **known),
        st.builds(
            PutConfirmation,
            confirmation=_ids.map(lambda n: f"q{n % 4}"),
            expires_at=_times,
            question=st.just({"x": 1}),
            event=_event(CONFIRMATION_REQUESTED, session),
            **about,
            **call,
        ),
        st.builds(
            ResolveConfirmation,
            confirmation=_ids.map(lambda n: f"q{n % 4}"),
            at=_times,
            state=st.sampled_from(ConfirmationState),
            grants=st.lists(grant, max_size=1).map(tuple),
            event=_event(CONFIRMATION_RESOLVED, session),
            **known,
        ),
        st.builds(PutGrant, grant=grant, **known),
        st.builds(UseGrant, grant=st.sampled_from(["g1", "g2"]), call=_calls, at=_times, **known),
        st.builds(RevokeGrants, grant=st.sampled_from([None, "g1"]), **known),
        st.builds(Acquire, owner=_owners, at=_times, **known),
        st.builds(Release, owner=_owners, **known),
        st.builds(Fork, new=_sessions, turn=_turns, at=_times, **known),
        st.builds(DeleteSession, **known),
    )


_LEDGERS = ("session/s1", "session/s2", "day/local")
_ledgers = st.sampled_from(_LEDGERS)
_charge = st.builds(
    Charge,
    ledger=_ledgers,
    day=st.sampled_from(["", "2026-01-01", "2026-01-02"]),
    tool=st.sampled_from(["", "x"]),
    bytes_out=st.integers(0, 3),
    destinations=st.lists(st.sampled_from("abc"), max_size=2, unique=True).map(tuple),
    limits=st.dictionaries(st.sampled_from(Amount), st.integers(0, 4)),
)
_budgets = st.one_of(
    st.builds(
        UseBudget,
        call=_calls,
        charges=st.lists(_charge, max_size=3).map(tuple),
        force=st.booleans(),
        again=st.booleans(),
    ),
    st.builds(ReturnBudget, call=_calls, ledgers=st.lists(_ledgers, max_size=2, unique=True).map(tuple)),
)
_pruning = st.one_of(
    st.builds(PruneSessions, before=_times, most=st.integers(1, 3)),
    st.builds(PruneEvents, before=_times, most=st.integers(1, 8)),
)
_anywhere = st.one_of(
    st.builds(ExpireConfirmations, at=_times),
    st.builds(Reap, owner=_owners, at=_times),
    _budgets,
    st.builds(ClearOutbox, calls=st.lists(_calls, max_size=2).map(tuple)),
    st.builds(PutBlob, data=st.sampled_from([b"1", b"2"])),
    st.builds(DropBlob, sha256=st.just("6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b")),
)
OP = st.one_of(_sessions.flatmap(_in_session), _sessions.flatmap(_in_session), _anywhere)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 1), st.lists(st.lists(OP, min_size=1, max_size=3), max_size=4)),
        st.tuples(st.integers(0, 1), _pruning.map(lambda op: [[op]])),
    ),
    min_size=1,
    max_size=12,
)
Steps = list[tuple[int, list[list[Op[Any]]]]]
"""Which of two stores, and what it commits at once."""


BEGIN: list[list[Op[Any]]] = [[NewSession(session=session, workspace="/w", at=0.0)] for session in ("s1", "s2")]


@given(STEPS)
@settings(max_examples=15 if settings.default.max_examples < 1_000 else 2_000)  # type: ignore[union-attr]
def test_both_stores_answer_alike(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(compare(steps, lambda: SqliteStore.open(home)))


async def compare(steps: Steps, open: Callable[[], Awaitable[Any]]) -> None:
    """Do the same to two stores on one memory, and to two on what `open` opens."""
    tables = Tables()
    async with AsyncExitStack() as stack:
        memory = [await stack.enter_async_context(MemoryStore(tables)) for _ in range(2)]
        engine = [await stack.enter_async_context(await open()) for _ in range(2)]
        for which, commits in [(0, BEGIN), (1, BEGIN), *steps]:
            answers = []
            for stores in (memory, engine):
                owners = {f"own_{n}": store.owner for n, store in enumerate(stores)}
                # All at once, so that the engine takes them into one batch.
                waiting = [stores[which].commit(*(named(op, owners) for op in commit)) for commit in commits]
                results = await asyncio.gather(*waiting, return_exceptions=True)
                # The ids of these sessions are used again, which nobody else does.
                results.append(await stores[which].commit(SweepRows(most=1_000)))
                answers.append(plain([said(each) for each in results], owners))
            assert answers[0] == answers[1]
        states = []
        for stores in (memory, engine):
            owners = {f"own_{n}": store.owner for n, store in enumerate(stores)}
            states.append(plain(await state(stores[0]), owners))
        assert states[0] == states[1]


def named(op: Op[Any], owners: dict[str, str]) -> Op[Any]:
    owner = owners.get(getattr(op, "owner", ""))
    return op if owner is None else msgspec.structs.replace(op, owner=owner)


def said(result: Any) -> Any:
    if isinstance(result, StoreError | ValueError):
        # Which of two faults is named depends on when each engine looks for a repeated event;
        # the contract tests name the class of each.
        return "refused"
    if isinstance(result, BaseException):
        raise result
    return [_without_cursor(each) for each in result]


def _without_cursor(value: Any) -> Any:
    """Cursors are each engine's own."""
    is_page = isinstance(value, SessionPruning | EventPruning) and value.cursor is not None
    return msgspec.structs.replace(value, cursor="more") if is_page else value


_MINTED = re.compile(r'(?<=["_])[0-9A-HJKMNP-TV-Z]{26}(?=[\\"])')


def plain(value: Any, owners: dict[str, str]) -> Any:
    """Without what differs by nature: the names of the owners, and ids that a store mints."""
    text = msgspec.json.encode(value).decode()
    for name, owner in owners.items():
        text = text.replace(owner, name)
    return msgspec.json.decode(_MINTED.sub("minted", text))


async def state(store: Any) -> Any:
    page = await store.list_sessions(workers=True)
    ids = [session.id for session in page.sessions]
    return {
        "sessions": page.sessions,
        "events": {id: await store.read_events(id) for id in ids},
        "messages": {id: await store.read_messages(id) for id in ids},
        "snapshots": {id: await store.snapshot(id) for id in ids},
        "grants": {id: await store.grants(id) for id in ids},
        "all": (await store.read_all()).events,
        "confirmations": await store.open_confirmations(),
        "calls": [await store.get_call(f"c{n}") for n in range(1, 4)],
        "open": sorted(await store.open_calls(), key=lambda call: call.id),
        "dead": await store.dead_owners(),
        "outbox": [await store.outbox(), await store.outbox(of_dead=True)],
        "cut": await store.cut_sessions(),
        "ledgers": [await store.entries(ledger_kind(each)) for each in _LEDGERS],
    }
