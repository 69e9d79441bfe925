"""A running instance behind the words of `Gate`: `call`, `tools`, `events`, `cancel`.

    async with callgate.connect() as gate:
        result = await gate.call("read_file", path="README.md")

Any number of calls may be under way; as many as an instance takes are sent, the others wait
their turn here. A call whose task is cancelled is cancelled in the instance as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from callgate.client.errors import RequestRefused
from callgate.client.link import Hear, Link, Reply
from callgate.client.readers import Events, Readers
from callgate.client.results import read_event, read_reply, refused, unsendable
from callgate.core.events import CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED
from callgate.core.results import ToolResult
from callgate.dispatch.permission.confirmations import Answer, Receipt, Scope
from callgate.policy.rules import Outcome
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import Descriptor, Question

MOST_CALLS = 64
"""That an instance takes at once on one connection."""
_STOP_S = 3.0
"""How long a cancelled call is waited for. An instance answers sooner, whatever the tool does."""
_LONGEST_S = frames.MAX_TIMEOUT_MS / 1000

T = TypeVar("T")


class Peer(NamedTuple):
    """Who we are to the instance."""

    caller: Literal["cli", "plugin"]
    cwd: str | None
    confirmer: bool


class RemoteGate:
    """One connection, with a session of its own in the instance. Made by `connect`."""

    def __init__(self, peer: Peer, patience_s: float) -> None:
        self._info = frames.ClientInfo(caller=peer.caller, cwd=peer.cwd)
        self._confirmer = peer.confirmer
        self._readers = Readers()
        self._watches_all = False
        self._slots = asyncio.Semaphore(MOST_CALLS)
        self.link = Link(patience_s, self._show, self._ended)

    async def greet(self) -> None:
        """Make sure that an instance is at the other end, and that questions wait for people."""
        await self._ask(frames.CheckAlive(request_id=self.link.new_id()), frames.Alive)
        if self._confirmer:
            await self._ask(self._subscription(), frames.Subscribed)

    async def close(self) -> None:
        """Hang up: the instance ends the calls that are still under way. Idempotent."""
        self.link.end("closed")

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        timeout_s: float | None = None,
        on_event: Hear | None = None,
        **named: Any,
    ) -> ToolResult:
        """Run one tool. Refusals and failures come back in the result.

        The arguments by name or in one mapping. `on_event` is called with what the tool says
        while it works; if that raises, the call is stopped.
        """
        if timeout_s is not None and not 0 < timeout_s <= _LONGEST_S:
            raise ValueError(f"timeout_s is above 0 and at most {_LONGEST_S:.0f}")
        async with self._slots:
            await self.link.writable()
            request = frames.ToolCall(
                request_id=self.link.new_id(),
                tool_name=tool,
                arguments={**(arguments or {}), **named},
                client_info=self._info,
                timeout_ms=None if timeout_s is None else max(1, round(timeout_s * 1000)),
            )
            problem = unsendable(request)
            if problem is not None:
                return refused(tool, problem)
            return read_reply(tool, await self._call(request, on_event))

    async def _call(
        self, request: frames.ToolCall, on_event: Hear | None
    ) -> frames.ToolResult | frames.Error:
        id, failures = request.request_id, list[Exception]()

        def hear(happening: frames.Happening) -> None:
            if on_event is None or failures:
                return
            try:
                on_event(happening)
            except Exception as error:  # foreign code: its caller is told once the call is over
                failures.append(error)
                self.link.cancel(id)

        reply = self.link.send(request, hear)
        try:
            ended = await asyncio.shield(reply)
        except asyncio.CancelledError:
            self.link.cancel(id)
            await asyncio.wait({reply}, timeout=_STOP_S)
            raise
        if failures:
            raise failures[0]
        assert isinstance(ended, frames.ToolResult | frames.Error)
        return ended

    async def tools(self) -> list[Descriptor]:
        """The tools of this directory; none where the instance does not serve it."""
        id = self.link.new_id()
        request = frames.ListTools(request_id=id, client_info=self._info)
        return (await self._ask(request, frames.ToolsList)).tools

    def events(self, types: Collection[str] | None = None) -> Events:
        """A reader of what happens in this session from now on: `async for e in gate.events()`."""
        if self.link.lost is not None:
            raise self.link.connection_lost_error()
        if not self._watches_all:
            self._watches_all = True
            self.link.send(self._subscription())  # goes out before whatever is asked next
        return self._readers.add(types)

    async def cancel(self) -> None:
        """Stop every call under way and wait until each has ended."""
        calls = self.link.calls()
        for id in calls:
            self.link.cancel(id)
        if calls:
            await asyncio.wait(calls.values())

    async def confirmations(self) -> list[Question]:
        """The questions about our calls that wait for an answer."""
        request = frames.ListConfirmations(request_id=self.link.new_id())
        return (await self._ask(request, frames.ConfirmationsList)).confirmations

    async def answer(self, question: Question | str, said: Answer | bool | str) -> Receipt:
        """Take a question back with a no; the first answer wins.

        `RequestRefused` if it is not open, and for a yes: no program allows its own calls.
        Given the question itself, the answer is for the arguments that it shows.
        """
        answer = Answer.read(said)
        if isinstance(question, str):
            id, sha256 = question, None
        else:
            id, sha256 = question.id, question.arguments_sha256
        request = frames.AnswerConfirmation(
            request_id=self.link.new_id(),
            confirmation_id=id,
            decision="allow" if answer.decision == Outcome.ALLOW else "deny",
            scope=Scope(answer.scope).value,
            arguments_sha256=sha256,
            reason=answer.reason,
        )
        got = await self._ask(request, frames.ConfirmationResult)
        return Receipt(got.applied, answer if got.applied else _standing(got))

    # What arrives unasked.

    def _show(self, frame: frames.Event) -> None:
        if frame.missed:
            self._readers.miss(frame.missed)
        if frame.event is None:
            return
        self._readers.offer(read_event(frame.event))

    def _ended(self) -> None:
        by_us = self.link.lost == "closed"
        self._readers.end(None if by_us else self.link.connection_lost_error)

    # Requests.

    def _subscription(self) -> frames.Subscribe:
        questions = [CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED]
        return frames.Subscribe(
            request_id=self.link.new_id(),
            types=None if self._watches_all else questions,
            confirmer=self._confirmer,
        )

    async def _ask(self, request: frames.Request, answer: type[T]) -> T:
        reply: Reply = await self.link.ask(request)
        if isinstance(reply, frames.Error):
            raise RequestRefused(reply.message)
        assert isinstance(reply, answer), "the wire lets no other answer through"
        return reply


def _standing(got: frames.ConfirmationResult) -> Answer | None:
    """What someone else said before us; None where time or a stop closed the question."""
    try:
        return Answer(
            decision=Outcome(got.decision or ""),
            scope=Scope(got.scope or Scope.ONCE),
            by=got.by or "user",
        )
    except ValueError:
        return None
