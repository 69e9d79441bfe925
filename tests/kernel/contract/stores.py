"""What the tests of stores share: both stores behind one face, and short ways to say an op."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from callgate.core.effects import SideEffects
from callgate.core.events import (
    CALLED,
    COMPLETED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    Event,
)
from callgate.core.ids import call_id, session_id, ulid
from callgate.core.ops import (
    Append,
    FinishCall,
    NewSession,
    PutConfirmation,
    ResolveConfirmation,
    StartCall,
)
from callgate.core.stored import ConfirmationState
from callgate.core.stores import Store

_times = itertools.count(1_000)


class World:
    """One set of data, and as many stores on it as there would be processes."""

    def __init__(self, open: Callable[[], Awaitable[Any]]) -> None:
        self._open = open
        self._stores: list[Any] = []

    async def open(self) -> Any:
        store = await self._open()
        self._stores.append(store)
        return store

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def event(session: str, type: str = "note", **payload: Any) -> Event:
    turn = payload.pop("turn", None)
    parent = payload.pop("parent", None)
    return Event(
        id=ulid(),
        timestamp=float(next(_times)),
        session_id=session,
        turn_id=turn,
        parent_event_id=parent,
        type=type,
        actor="agent",
        payload=payload,
    )


async def new_session(store: Store, workspace: str = "/w", **more: Any) -> str:
    session = session_id()
    await store.commit(NewSession(session=session, workspace=workspace, at=1.0, **more))
    return session


async def append(store: Store, session: str, *types: str) -> list[Event]:
    events = [event(session, type) for type in types]
    await store.commit(Append(session=session, events=tuple(events)))
    return events


def start(store: Store, session: str, call: str | None = None, **more: Any) -> StartCall:
    call = call or call_id()
    more.setdefault("owner", store.owner)
    turn = more.get("turn_id")
    return StartCall(
        session=session,
        call=call,
        tool="write_file",
        tool_use_id="toolu_" + call,
        side_effects=SideEffects.WRITE,
        arguments_sha256="a" * 64,
        event=event(session, CALLED, call_id=call, tool_name="write_file", turn=turn),
        **more,
    )


def finish(store: Store, session: str, call: str, **more: Any) -> FinishCall:
    more.setdefault("owner", store.owner)
    return FinishCall(session=session, call=call, event=event(session, COMPLETED, call_id=call), **more)


def ask(store: Store, session: str, **more: Any) -> PutConfirmation:
    call = more.pop("call", None) or call_id()
    more.setdefault("owner", store.owner)
    more.setdefault("turn_id", "turn_1")
    more.setdefault("expires_at", 5_000.0)
    return PutConfirmation(
        session=session,
        confirmation=ulid(),
        call=call,
        tool="write_file",
        tool_use_id="toolu_" + call,
        side_effects=SideEffects.WRITE,
        arguments_sha256="a" * 64,
        question={"tool": "write_file", "why": "it writes"},
        event=event(session, CONFIRMATION_REQUESTED, call_id=call),
        **more,
    )


def answer(question: PutConfirmation, state: ConfirmationState, **more: Any) -> ResolveConfirmation:
    more.setdefault("by", "someone")
    return ResolveConfirmation(
        session=question.session,
        confirmation=question.confirmation,
        state=state,
        event=event(question.session, CONFIRMATION_RESOLVED),
        at=2_000.0,
        **more,
    )


async def within(seconds: float, waiting: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await waiting


async def types(store: Store, session: str) -> list[str]:
    return [each.type for each in await store.read_events(session)]
