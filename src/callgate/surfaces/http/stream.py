"""The WebSocket: one client, its subscriptions, and what it says.

    subscribe -> ack -> snapshot -> what was missed -> what happens     (`subscriptions`)
    cancel    -> the turn ends, as the stream will tell
    ping      <- now and then; who stays silent is let go

A client with an attach token sees one session, and every other one is as unknown to it as one
that never was.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from starlette.types import Receive, Scope, Send

from callgate.core.errors import ToolErrorClass
from callgate.core.stored import ConfirmationState
from callgate.core.stores import Snapshot, Store, StoreError
from callgate.core.turns import Pace
from callgate.dispatch.questions import read_question
from callgate.surfaces.http import frames
from callgate.surfaces.http.access import Visitor
from callgate.surfaces.http.doors import Door
from callgate.surfaces.http.fanout import Kind
from callgate.surfaces.http.guard import VISITOR
from callgate.surfaces.http.problems import Problem, bad_request, not_found, problem_of
from callgate.surfaces.http.rows import open_rows
from callgate.surfaces.http.subscriptions import MOST_REPLAYED, Subscription
from callgate.surfaces.http.values import CallRow
from callgate.surfaces.http.wires import WIRE, Wire

PING_S = 30.0
_MOST_SILENT = 3
"""Pings without an answer."""
_MOST_SUBSCRIPTIONS = 64


class Stream:
    """The endpoint; each connection is a `_Connection`."""

    def __init__(self, door: Door, ping_s: float = PING_S) -> None:
        self._door = door
        self._ping_s = ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire: Wire = scope["extensions"][WIRE]
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        connection = _Connection(self._door, scope[VISITOR], wire, self._ping_s)
        await connection.run(receive)


class _Subscribed:
    """What belongs to one subscription, and ends with it."""

    def __init__(self) -> None:
        self.attached = ExitStack()
        self.task: asyncio.Task[None] | None = None

    def close(self) -> None:
        self.attached.close()
        if self.task is not None:
            self.task.cancel()


class _Connection:
    def __init__(self, door: Door, visitor: Visitor, wire: Wire, ping_s: float) -> None:
        self._door = door
        self._visitor = visitor
        self._wire = wire
        self._ping_s = ping_s
        self._silent = 0
        self._subscribed: dict[str, _Subscribed] = {}
        self._replaying = asyncio.Lock()
        """One at a time: each may fill what the client takes at once."""

    async def run(self, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        rotated = self._door.access.on_rotate(lambda: self._wire.end(4401, "token_rotated"))
        pinging = loop.call_later(self._ping_s, self._ping)
        pace = Pace()
        try:
            async with asyncio.TaskGroup() as replays:
                while (message := await receive())["type"] == "websocket.receive":
                    self._take(message.get("text"), replays)
                    if self._wire.queue.empty():
                        pace.begin()
                    else:
                        await pace.step()
                self._close()
        finally:
            rotated()
            pinging.cancel()
            self._close()

    def _close(self) -> None:
        for each in self._subscribed.values():
            each.close()
        self._subscribed.clear()

    def _ping(self) -> None:
        if not self._wire.is_open:
            return
        self._silent += 1
        if self._silent > _MOST_SILENT:
            self._wire.end(4408, "silent")
            return
        self._wire.put(frames.frame("ping"))
        asyncio.get_running_loop().call_later(self._ping_s, self._ping)

    # What a client says.

    def _take(self, text: str | None, replays: asyncio.TaskGroup) -> None:
        if text is None:
            self._wire.end(1003, "text_only")
            return
        try:
            said = frames.read(text)
        except frames.Unreadable as error:
            self._tell_error(None, bad_request(str(error)))
            return
        match said:
            case frames.Subscribe():
                self._subscribe(said, replays)
            case frames.Unsubscribe():
                self._unsubscribe(said)
            case frames.Cancel():
                self._cancel(said)
            case frames.Pong():
                self._silent = 0

    def _cancel(self, said: frames.Cancel) -> None:
        sees_it = self._visitor.session in (None, said.session)
        done = sees_it and self._door.sessions.cancel_turn(said.session, said.turn_id)
        answer: dict[str, Any] = {"session": said.session, "cancelled": done}
        if isinstance(said.id, str):
            answer["id"] = said.id
        self._wire.put(frames.frame("cancel_ack", **answer))

    def _unsubscribe(self, said: frames.Unsubscribe) -> None:
        subscribed = self._subscribed.pop(said.id, None)
        if subscribed is None:
            self._tell_error(said.id, not_found("subscription"))
            return
        subscribed.close()
        self._wire.put(frames.frame("unsubscribe_ack", id=said.id))

    def _subscribe(self, said: frames.Subscribe, replays: asyncio.TaskGroup) -> None:
        if said.id in self._subscribed:
            self._tell_error(said.id, bad_request("This subscription is there already."))
        elif len(self._subscribed) >= _MOST_SUBSCRIPTIONS:
            self._tell_error(said.id, bad_request("These are too many subscriptions."))
        else:
            subscribed = self._subscribed[said.id] = _Subscribed()
            subscribed.task = replays.create_task(self._follow(said, subscribed))

    async def _follow(self, said: frames.Subscribe, subscribed: _Subscribed) -> None:
        session = said.session or self._visitor.session
        try:
            if self._visitor.session not in (None, session):
                raise not_found("session")
            store = await self._door.fanout.enter()
            subscribed.attached.callback(self._door.fanout.leave)
            if said.confirmer:
                attached = self._door.runtime.attach(None, session)
                subscribed.attached.enter_context(attached)
            kind = Kind.of(said.id, session, said.wanted)
            subscription = Subscription(kind, self._wire, self._door.fanout, store)
            subscribed.attached.callback(subscription.quit)
            async with self._replaying:
                if session is None:
                    await self._follow_all(said, subscription, store)
                else:
                    await self._follow_session(said, session, subscription, store)
        except (Problem, StoreError, ValueError) as error:
            problem = problem_of(error) or bad_request("There is no such place to begin at.")
            self._subscribed.pop(said.id, None)
            subscribed.attached.close()
            self._tell_error(said.id, problem)

    async def _follow_session(
        self, said: frames.Subscribe, session: str, subscription: Subscription, store: Store
    ) -> None:
        snapshot = await store.snapshot(session)
        last = snapshot.session.last_seq
        if isinstance(said.since, str):
            raise bad_request("In one session, since is a number.")
        since = last if said.since is None else min(said.since, last)
        if last - since > MOST_REPLAYED:
            raise _too_large()
        self._wire.put(frames.frame("subscribe_ack", id=said.id, last=last))
        if said.snapshot:
            calls = open_rows(snapshot.calls, self._door.runtime.under_way(), session)
            self._wire.put(_snapshot(said.id, session, snapshot, calls))
        await subscription.follow_session(session, since, last)

    async def _follow_all(
        self, said: frames.Subscribe, subscription: Subscription, store: Store
    ) -> None:
        fanout = self._door.fanout
        if isinstance(said.since, int):
            raise bad_request("Of all sessions, since is a cursor.")
        if said.since is not None and (await store.behind(said.since)).most > MOST_REPLAYED:
            raise _too_large()
        cursor = fanout.cursor if said.since is None else said.since
        self._wire.put(frames.frame("subscribe_ack", id=said.id, last=fanout.cursor))
        if said.snapshot:
            asked = await self._door.runtime.open_confirmations()
            calls = open_rows(await store.open_calls(), self._door.runtime.under_way())
            self._wire.put(
                frames.frame(
                    "snapshot", id=said.id, session=None, confirmations=asked, calls=calls
                )
            )
        await subscription.follow_all(cursor)

    def _tell_error(self, id: str | None, problem: Problem) -> None:
        info = problem.body.error
        said = {"class": info.error_class, "reason": info.reason, "message": info.message}
        told = {} if id is None else {"id": id}
        self._wire.put(frames.frame("error", **told, **said))


def _snapshot(id: str, session: str, snapshot: Snapshot, calls: list[CallRow]) -> bytes:
    return frames.frame(
        "snapshot",
        id=id,
        session=session,
        confirmations=[
            read_question(each)
            for each in snapshot.confirmations
            if each.state is ConfirmationState.PENDING
        ],
        calls=calls,
    )


def _too_large() -> Problem:
    said = f"More than {MOST_REPLAYED} events came since: begin later, or with a snapshot."
    return Problem(413, ToolErrorClass.VALIDATION_ERROR, said, "replay_too_large")
