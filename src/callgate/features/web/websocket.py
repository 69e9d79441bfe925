"""The WebSocket of one client: its frames, its subscriptions and their replay.

    subscribe -> ack -> snapshot -> missed events -> new events
    cancel    -> the turn ends, and the stream has its end event
    ping      <- periodically; a silent client is disconnected

A client with an attach token sees one session; all others are not found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from callgate.core.errors import ToolErrorClass
from callgate.core.events import CHAT_DELTA, Event
from callgate.core.stored import ConfirmationState
from callgate.core.stores import Snapshot, Store, StoreError, pruned_upto
from callgate.core.turns import Pace
from callgate.dispatch.permission.questions import read_question
from callgate.features.web import frames
from callgate.features.web.access import Visitor
from callgate.features.web.contexts import Context
from callgate.features.web.fanout import Fanout, Joined, Kind, StreamClient
from callgate.features.web.frames import event_tail
from callgate.features.web.guard import VISITOR
from callgate.features.web.responses import (
    Problem,
    bad_request,
    draining,
    not_found,
    problem_of,
    problem_response,
    respond,
)
from callgate.features.web.routes.records import open_calls
from callgate.features.web.routes.values import CallRow
from callgate.features.web.server import WEBSOCKET, WebSocketProtocol

MOST_REPLAYED = 10_000
_PAGE = 250


class Patient(StreamClient, Protocol):
    """A client whose queue can be awaited."""

    async def drained(self) -> None: ...


class Subscription:
    def __init__(self, kind: Kind, client: Patient, fanout: Fanout, store: Store) -> None:
        self._kind = kind
        self._client = client
        self._fanout = fanout
        self._store = store
        self._joined: Joined | None = None

    async def follow_session(self, session: str, after: int, last: int) -> None:
        """Send events after number `after`. `last`: their number at the fan-out's acquisition."""
        while after < last or after < self._fanout.last_sent(session):
            events = await self._store.read_events(session, after, _PAGE)
            upto = pruned_upto(events, after)
            if upto:  # one event replaces all pruned events
                self._show([(events[0], upto, None)])
                after = upto
                continue
            self._show([(each, after + n, None) for n, each in enumerate(events, 1)])
            after += len(events)
            await self._client.drained()
        self._join(after)

    async def follow_all(self, cursor: str) -> None:
        while cursor != self._fanout.cursor:
            page = await self._store.read_all(cursor, _PAGE)
            if not page.events:  # the fan-out has not read these events yet
                await self._fanout.moved()
                continue
            sent = self._fanout.cursor
            upto = page.cursors.index(sent) + 1 if sent in page.cursors else len(page.events)
            entries = zip(page.events, page.seqs, page.cursors, strict=True)
            self._show([*entries][:upto])
            cursor = page.cursors[upto - 1]
            if cursor != sent:
                await self._client.drained()
        self._join(0)

    def quit(self) -> None:
        if self._joined is not None:
            self._fanout.quit(self._joined)
            self._joined = None

    def _join(self, seq: int) -> None:
        self._joined = Joined(self._kind, self._client, seq)
        self._fanout.join(self._joined)

    def _show(self, entries: Sequence[tuple[Event, int, str | None]]) -> None:
        tails = [event_tail(*each) for each in entries if self._kind.wants(each[0])]
        if tails:
            self._client.put(self._kind.write(tails), len(tails))


PING_S = 30.0
_MOST_SILENT = 3
"""Maximum number of pings without an answer."""
_MOST_SUBSCRIPTIONS = 64
_SERVICE_RESTART = 1012
"""Close code that asks the client to reconnect, to another instance or the restarted one."""


class Stream:
    """The endpoint, which creates a `_Connection` for each client."""

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
    """Resources of one subscription, released at its end."""

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
        """One replay at a time, because each can fill the client's queue."""

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

    # Frames of the client.

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
        done = await self._context.peers.cancel_turn(frame.session, frame.turn_id)
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
            self._tell_error(frame.id, bad_request("This subscription id is already used."))
        elif len(self._subscribed) >= _MOST_SUBSCRIPTIONS:
            self._tell_error(frame.id, bad_request("The connection has too many subscriptions."))
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
                attached = self._context.runtime.permission.attach(None, session)
                subscribed.attached.enter_context(attached)
                await self._context.peers.announce(session, subscribed.attached)
            kind = Kind.of(frame.id, session, frame.wanted)
            subscription = Subscription(kind, self._websocket, self._context.fanout, store)
            subscribed.attached.callback(subscription.quit)
            if kind.wants_type(CHAT_DELTA):
                await self._context.peers.watch(session, subscribed.attached)
            async with self._replaying:
                if session is None:
                    await self._follow_all(frame, subscription, store)
                else:
                    await self._follow_session(frame, session, subscription, store)
        except (Problem, StoreError, ValueError) as error:
            problem = problem_of(error) or bad_request("The value of since is invalid.")
            self._subscribed.pop(frame.id, None)
            subscribed.attached.close()
            self._tell_error(frame.id, problem)

    async def _follow_session(
        self, frame: frames.Subscribe, session: str, subscription: Subscription, store: Store
    ) -> None:
        snapshot = await store.snapshot(session)
        last = snapshot.session.last_seq
        if isinstance(frame.since, str):
            raise bad_request("For one session, since must be a number.")
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
            raise bad_request("For all sessions, since must be a cursor.")
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
            confirmations = await self._context.runtime.permission.open_confirmations()
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
    message = (
        f"More than {MOST_REPLAYED} events would be replayed: use a later since or a snapshot."
    )
    return Problem(413, ToolErrorClass.VALIDATION_ERROR, message, "replay_too_large")
