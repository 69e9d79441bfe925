"""A running instance with the interface of `Gate`: `call`, `tools`, `events`, `cancel`.

    async with callgate.connect() as gate:
        result = await gate.call("read_file", path="README.md")

Calls are concurrent, up to the limit of the instance; further ones wait here. Cancelling the task
of a call cancels it in the instance. Frames become the values that a `Gate` returns.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from callgate.client.link import Events, Hear, Link, Readers, Reply, RequestRefused
from callgate.core.calls import Diagnostic, ErrorInfo, ToolResult
from callgate.core.content import ContentBlock, TextBlock
from callgate.core.errors import ToolError, ToolErrorClass, ToolProtocolError, ToolValidationError
from callgate.core.events import CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED, Event
from callgate.dispatch.permission.confirmations import Answer, Receipt, Scope
from callgate.policy.rules import Outcome
from callgate.protocol import strict_json
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import Descriptor, Question
from callgate.protocol.socket_v1.values import CODES
from callgate.protocol.strict_json import Unsendable, line

_CLASSES = {code.value: error_class for error_class, code in reversed(CODES.items())}
"""Fallback for instances that do not send the exact class."""
_META_FIELDS = frozenset(
    (
        "callId",
        "durationMs",
        "filesModified",
        "commandExecuted",
        "partial",
        "truncated",
        "errorInfo",
    )
)
_DETAIL_FIELDS = ("errorClass", "reason", "correlationId")
_CONTAINERS = (list, tuple, set, frozenset)


def read_reply(tool: str, reply: frames.ToolResult | frames.Error) -> ToolResult:
    """Return the result of a call, also for a frame that the instance refused."""
    if isinstance(reply, frames.Error):
        return refused(tool, ToolProtocolError(reply.message))
    got = reply.result
    meta = got.meta
    value = None if got.content is UNSET else got.content
    error = None if got.ok else _error(got.error, meta.get("errorInfo"))
    partial = meta.get("partial") is True
    content = _blocks(value) if error is None or partial else []
    if error is not None:  # its message is the content of the tool's error
        content.append(TextBlock(error.message))
    return ToolResult(
        call_id=str(meta.get("callId", "")),
        tool=tool,
        ok=got.ok,
        content=content,
        value=value,
        error=error,
        diagnostics=tuple(map(_diagnostic, got.diagnostics)),
        meta={key: item for key, item in meta.items() if key not in _META_FIELDS},
        files_modified=_texts(meta.get("filesModified")),
        command_executed=_text(meta.get("commandExecuted")),
        partial=partial,
        truncated=meta.get("truncated") is True,
        duration_ms=_number(meta.get("durationMs")),
    )


def _diagnostic(got: frames.Diagnostic) -> str | Diagnostic:
    match got.level:
        case "warn" | "error" as level:
            return Diagnostic(got.message, level)
        case _:
            return got.message


def refused(tool: str, error: ToolError) -> ToolResult:
    """Return the result of a call that was never sent."""
    content: list[ContentBlock] = [TextBlock(error.message)]
    return ToolResult(
        call_id="", tool=tool, ok=False, content=content, error=ErrorInfo.of(error, tool)
    )


def unsendable(request: frames.ToolCall) -> ToolError | None:
    """Return why the instance could not parse a call, not even its id."""
    try:
        data = line(request)
        strict_json.loads(data[:-1])
    except (Unsendable, strict_json.StrictJsonError) as error:
        return _invalid(str(error))
    if b"null" in data and _has_nan(request.arguments):  # the encoder writes NaN as null
        return _invalid("NaN and infinity are not JSON")
    return None


def read_event(happened: frames.Happened) -> Event:
    actor: Any = happened.actor  # a newer instance may use other values
    sensitivity: Any = happened.sensitivity or "private"
    return Event(
        id=happened.id,
        timestamp=happened.timestamp,
        session_id=happened.session_id,
        turn_id=happened.turn_id,
        parent_event_id=happened.parent_event_id,
        type=happened.type,
        actor=actor,
        payload=happened.payload,
        sensitivity=sensitivity,
    )


def _invalid(why: str) -> ToolError:
    return ToolValidationError(f"Invalid arguments: {why}", reason="unsendable")


def _has_nan(arguments: Any) -> bool:
    level = [arguments]
    while level:
        below: list[Any] = []
        for each in level:
            below += each.values() if isinstance(each, Mapping) else each
        if any(isinstance(each, float) and not math.isfinite(each) for each in below):
            return True
        level = [each for each in below if isinstance(each, (Mapping, *_CONTAINERS))]
    return False


def _blocks(value: Any) -> list[ContentBlock]:
    """Return a tool's output as blocks: blocks unchanged, text as text, other values as JSON."""
    if value is None:
        return [TextBlock("")]
    if isinstance(value, str):
        return [TextBlock(value)]
    if isinstance(value, list) and value:
        try:
            return msgspec.convert(value, list[ContentBlock])
        except msgspec.ValidationError:
            pass  # a list of something else
    return [TextBlock(msgspec.json.encode(value).decode())]


def _error(failure: frames.Failure | None, fields: Any) -> ErrorInfo:
    """`fields` is the addition of the instance if the details are not an object."""
    if failure is None:
        return ErrorInfo(
            error_class=ToolErrorClass.EXECUTION_ERROR, message="The tool reported failure."
        )
    details: Any = None if failure.details is UNSET else failure.details
    if isinstance(details, dict):
        fields = details
        details = {k: v for k, v in details.items() if k not in _DETAIL_FIELDS} or None
    if not isinstance(fields, dict):
        fields = {}
    correlation_id = _text(fields.get("correlationId"))
    return ErrorInfo(
        error_class=_class(failure.code, fields.get("errorClass")),
        message=failure.message,
        reason=_text(fields.get("reason")),
        details=details,
        user_visible=correlation_id is None,
        correlation_id=correlation_id,
    )


def _class(code: str, finer: Any) -> ToolErrorClass:
    try:
        return ToolErrorClass(finer)
    except ValueError:  # an older or a newer instance
        return _CLASSES.get(code, ToolErrorClass.EXECUTION_ERROR)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str] | None:
    return list(map(str, value)) if isinstance(value, list) else None


def _number(value: Any) -> float:
    return value if isinstance(value, float | int) else 0.0


MOST_CALLS = 64
"""Maximum concurrent calls of one connection in an instance."""
_STOP_S = 3.0
"""Maximum wait for a cancelled call. An instance answers earlier, even if the tool does not
react.
"""
_LONGEST_S = frames.MAX_TIMEOUT_MS / 1000

T = TypeVar("T")


class Peer(NamedTuple):
    """Identity of this client for the instance."""

    caller: Literal["cli", "plugin"]
    cwd: str | None
    confirmer: bool


class RemoteGate:
    """One connection, with a separate session in the instance. Created by `connect`."""

    def __init__(self, peer: Peer, patience_s: float) -> None:
        self._info = frames.ClientInfo(caller=peer.caller, cwd=peer.cwd)
        self._confirmer = peer.confirmer
        self._readers = Readers()
        self._watches_all = False
        self._slots = asyncio.Semaphore(MOST_CALLS)
        self.link = Link(patience_s, self._show, self._ended)

    async def greet(self) -> None:
        """Check that an instance answers, and let questions wait for people if so configured."""
        await self._ask(frames.CheckAlive(request_id=self.link.new_id()), frames.Alive)
        if self._confirmer:
            await self._ask(self._subscription(), frames.Subscribed)

    async def close(self) -> None:
        """Disconnect: the instance ends the running calls. Idempotent."""
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
        """Run one tool. Refusals and failures are returned in the result.

        The arguments are given by name or in one mapping. `on_event` is called with the events of
        the running tool; if it raises, the call is stopped.
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
            except Exception as error:  # foreign code: raised after the end of the call
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
        """Return the tools for this directory; none if the instance does not serve it."""
        id = self.link.new_id()
        request = frames.ListTools(request_id=id, client_info=self._info)
        return (await self._ask(request, frames.ToolsList)).tools

    def events(self, types: Collection[str] | None = None) -> Events:
        """Return a reader for new events of this session: `async for e in gate.events()`."""
        if self.link.lost is not None:
            raise self.link.connection_lost_error()
        if not self._watches_all:
            self._watches_all = True
            self.link.send(self._subscription())  # sent before any later request
        return self._readers.add(types)

    async def cancel(self) -> None:
        """Stop all running calls of this connection, and wait until each has ended."""
        calls = self.link.calls()
        for id in calls:
            self.link.cancel(id)
        if calls:
            await asyncio.wait(calls.values())

    async def confirmations(self) -> list[Question]:
        """Return the open questions about calls of this connection."""
        request = frames.ListConfirmations(request_id=self.link.new_id())
        return (await self._ask(request, frames.ConfirmationsList)).confirmations

    async def answer(self, question: Question | str, said: Answer | bool | str) -> Receipt:
        """Withdraw a question by denying it; the first answer wins.

        Raises `RequestRefused` if it is not open, and for an approval: no program approves its own
        calls. If `question` is the question itself, the answer covers the arguments that it shows.
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

    # Unsolicited frames.

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
        assert isinstance(reply, answer), "the wire accepts no other answer"
        return reply


def _standing(got: frames.ConfirmationResult) -> Answer | None:
    """Return an earlier answer of another approver; None if time or a stop closed the question."""
    try:
        return Answer(
            decision=Outcome(got.decision or ""),
            scope=Scope(got.scope or Scope.ONCE),
            by=got.by or "user",
        )
    except ValueError:
        return None
