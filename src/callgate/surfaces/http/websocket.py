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
from callgate.core.events import CHAT_DELTA
from callgate.core.stored import ConfirmationState
from callgate.core.stores import Snapshot, Store, StoreError
from callgate.core.turns import Pace
from callgate.dispatch.permission.questions import read_question
from callgate.surfaces.http.access import Visitor
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.guard import VISITOR
from callgate.surfaces.http.owners import cancel_turn_elsewhere
from callgate.surfaces.http.problems import (
    Problem,
    bad_request,
    draining,
    not_found,
    problem_of,
)
from callgate.surfaces.http.responses import problem_response, respond
from callgate.surfaces.http.routes.in_flight import open_calls
from callgate.surfaces.http.routes.values import CallRow
from callgate.surfaces.http.stream import frames
from callgate.surfaces.http.stream.fanout import Kind
from callgate.surfaces.http.stream.subscriptions import MOST_REPLAYED, Subscription
from callgate.surfaces.http.stream.websocket_protocol import WEBSOCKET, WebSocketProtocol

PING_S = 30.0
_MOST_SILENT = 3
"""Pings without an answer."""
_MOST_SUBSCRIPTIONS = 64
_SERVICE_RESTART = 1012
"""The code by which a client knows to connect anew: to another instance, or to the next one."""


class Stream:
    """The endpoint; each connection is a `_Connection`."""

    def __init__(self, context: Context, ping_s: float = PING_S) -> None:
        self._context = context
        self._ping_s = ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._context.draining.has_begun:
            await respond(problem_response(draining()), scope, receive, send)
            return
        websocket: WebSocketProtocol = scope["extensions"][WEBSOCKET]
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        connection = _Connection(self._context, scope[VISITOR], websocket, self._ping_s)
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
    def __init__(
        self, context: Context, visitor: Visitor, websocket: WebSocketProtocol, ping_s: float
    ) -> None:
        self._context = context
        self._visitor = visitor
        self._websocket = websocket
        self._ping_s = ping_s
        self._silent = 0
        self._subscribed: dict[str, _Subscribed] = {}
        self._replaying = asyncio.Lock()
        """One at a time: each may fill what the client takes at once."""

    async def run(self, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        rotated = self._context.access.on_rotate(lambda: self._websocket.end(4401, "token_rotated"))
        restarts = self._context.draining.on_begin(
            lambda: self._websocket.end(_SERVICE_RESTART, "service_restart")
        )
        pinging = loop.call_later(self._ping_s, self._ping)
        pace = Pace()
        try:
            async with asyncio.TaskGroup() as replays:
                while (message := await receive())["type"] == "websocket.receive":
                    self._take(message.get("text"), replays)
                    if self._websocket.queue.empty():
                        pace.begin()
                    else:
                        await pace.step()
                self._close()
        finally:
            rotated()
            restarts()
            pinging.cancel()
            self._close()

    def _close(self) -> None:
        for each in self._subscribed.values():
            each.close()
        self._subscribed.clear()

    def _ping(self) -> None:
        if not self._websocket.is_open:
            return
        self._silent += 1
        if self._silent > _MOST_SILENT:
            self._websocket.end(4408, "silent")
            return
        self._websocket.put(frames.frame("ping"))
        asyncio.get_running_loop().call_later(self._ping_s, self._ping)

    # What a client says.

    def _take(self, text: str | None, replays: asyncio.TaskGroup) -> None:
        if text is None:
            self._websocket.end(1003, "text_only")
            return
        try:
            frame = frames.read(text)
        except frames.Unreadable as error:
            self._tell_error(None, bad_request(str(error)))
            return
        match frame:
            case frames.Subscribe():
                self._subscribe(frame, replays)
            case frames.Unsubscribe():
                self._unsubscribe(frame)
            case frames.Cancel():
                self._cancel(frame, replays)
            case frames.Pong():
                self._silent = 0

    def _cancel(self, frame: frames.Cancel, tasks: asyncio.TaskGroup) -> None:
        sees_it = self._visitor.session in (None, frame.session)
        if sees_it and self._context.sessions.find(frame.session) is None:
            tasks.create_task(self._cancel_elsewhere(frame))
            return
        done = sees_it and self._context.sessions.cancel_turn(frame.session, frame.turn_id)
        self._tell_cancelled(frame, done)

    async def _cancel_elsewhere(self, frame: frames.Cancel) -> None:
        done = await cancel_turn_elsewhere(self._context, frame.session, frame.turn_id)
        self._tell_cancelled(frame, done)

    def _tell_cancelled(self, frame: frames.Cancel, done: bool) -> None:
        answer: dict[str, Any] = {"session": frame.session, "cancelled": done}
        if isinstance(frame.id, str):
            answer["id"] = frame.id
        self._websocket.put(frames.frame("cancel_ack", **answer))

    def _unsubscribe(self, frame: frames.Unsubscribe) -> None:
        subscribed = self._subscribed.pop(frame.id, None)
        if subscribed is None:
            self._tell_error(frame.id, not_found("subscription"))
            return
        subscribed.close()
        self._websocket.put(frames.frame("unsubscribe_ack", id=frame.id))

    def _subscribe(self, frame: frames.Subscribe, replays: asyncio.TaskGroup) -> None:
        if frame.id in self._subscribed:
            self._tell_error(frame.id, bad_request("This subscription is there already."))
        elif len(self._subscribed) >= _MOST_SUBSCRIPTIONS:
            self._tell_error(frame.id, bad_request("These are too many subscriptions."))
        else:
            subscribed = self._subscribed[frame.id] = _Subscribed()
            subscribed.task = replays.create_task(self._follow(frame, subscribed))

    async def _follow(self, frame: frames.Subscribe, subscribed: _Subscribed) -> None:
        session = frame.session or self._visitor.session
        try:
            if self._visitor.session not in (None, session):
                raise not_found("session")
            store = await self._context.fanout.acquire()
            subscribed.attached.callback(self._context.fanout.release)
            if frame.confirmer:
                attached = self._context.runtime.attach(None, session)
                subscribed.attached.enter_context(attached)
                if self._context.servers is not None:
                    subscribed.attached.enter_context(self._context.servers.present(session))
                    await self._context.servers.told()
            kind = Kind.of(frame.id, session, frame.wanted)
            subscription = Subscription(kind, self._websocket, self._context.fanout, store)
            subscribed.attached.callback(subscription.quit)
            if self._context.deltas is not None and kind.wants_type(CHAT_DELTA):
                subscribed.attached.callback(self._context.deltas.forget, session)
                await self._context.deltas.watch(session)
            async with self._replaying:
                if session is None:
                    await self._follow_all(frame, subscription, store)
                else:
                    await self._follow_session(frame, session, subscription, store)
        except (Problem, StoreError, ValueError) as error:
            problem = problem_of(error) or bad_request("There is no such place to begin at.")
            self._subscribed.pop(frame.id, None)
            subscribed.attached.close()
            self._tell_error(frame.id, problem)

    async def _follow_session(
        self, frame: frames.Subscribe, session: str, subscription: Subscription, store: Store
    ) -> None:
        snapshot = await store.snapshot(session)
        last = snapshot.session.last_seq
        if isinstance(frame.since, str):
            raise bad_request("In one session, since is a number.")
        since = last if frame.since is None else min(frame.since, last)
        if last - since > MOST_REPLAYED:
            raise _too_large()
        self._websocket.put(frames.frame("subscribe_ack", id=frame.id, last=last))
        if frame.snapshot:
            calls = await open_calls(self._context, snapshot.calls, session)
            self._websocket.put(_snapshot(frame.id, session, snapshot, calls))
        await subscription.follow_session(session, since, last)

    async def _follow_all(
        self, frame: frames.Subscribe, subscription: Subscription, store: Store
    ) -> None:
        fanout = self._context.fanout
        if isinstance(frame.since, int):
            raise bad_request("Of all sessions, since is a cursor.")
        lacking = {}
        if frame.since is not None:
            behind = await store.behind(frame.since)
            if behind.most > MOST_REPLAYED:
                raise _too_large()
            lacking = {"pruned": True} if behind.pruned else {}
        cursor = fanout.cursor if frame.since is None else frame.since
        self._websocket.put(
            frames.frame("subscribe_ack", id=frame.id, last=fanout.cursor, **lacking)
        )
        if frame.snapshot:
            confirmations = await self._context.runtime.open_confirmations()
            calls = await open_calls(self._context, await store.open_calls())
            self._websocket.put(
                frames.frame(
                    "snapshot", id=frame.id, session=None, confirmations=confirmations, calls=calls
                )
            )
        await subscription.follow_all(cursor)

    def _tell_error(self, id: str | None, problem: Problem) -> None:
        info = problem.body.error
        error = {"class": info.error_class, "reason": info.reason, "message": info.message}
        ids = {} if id is None else {"id": id}
        self._websocket.put(frames.frame("error", **ids, **error))


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
    message = f"More than {MOST_REPLAYED} events came since: begin later, or with a snapshot."
    return Problem(413, ToolErrorClass.VALIDATION_ERROR, message, "replay_too_large")
