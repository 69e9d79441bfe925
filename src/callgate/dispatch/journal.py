"""What is written down about one call: its events as they happen, and one audit record.

    event -> live readers
          -> the log of its session; where effects are at stake it is waited for

Every call ends here exactly once, in `completed`, `failed` or `invalid`. Secrets do not get
past this module: texts are redacted before they become part of an event or a record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from callgate.audit.records import CallRecord
from callgate.core.calls import ToolCall
from callgate.core.content import ContentBlock, TextBlock
from callgate.core.errors import (
    DENIALS,
    ToolError,
    ToolPermissionDenied,
    ToolProtocolError,
    ToolShuttingDown,
    ToolValidationError,
)
from callgate.core.events import (
    CALLED,
    COMPLETED,
    CONFIRMATION_REQUESTED,
    EFFECT_MISMATCH,
    FAILED,
    INPUT_INVALID,
    OUTPUT_DELTA,
    Actor,
    Event,
    EventSink,
)
from callgate.core.ids import ulid
from callgate.core.json_schema.schemas import Checked
from callgate.core.ops import CallReceipt, FinishCall, StartCall
from callgate.core.results import ErrorInfo, ToolResult
from callgate.core.stores import CallMismatch, StoreError
from callgate.core.tools import ToolOutput
from callgate.dispatch.contents import (
    beginning,
    diagnostics,
    display_of,
    handled,
    size_of,
    text_of,
    value_of,
)
from callgate.dispatch.failures import unkept
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer, Closed, Confirmation
from callgate.dispatch.registry import Registered
from callgate.dispatch.running import RunningCall
from callgate.dispatch.tool_output import OutputRedactor
from callgate.events.log import SessionLog
from callgate.policy.decide import Decision
from callgate.redaction.summaries import summarize, summarize_text
from callgate.redaction.texts import redact

_log = logging.getLogger("callgate.audit")

PARTIAL_OUTPUT = 8_192
LEFT_OPEN = "question_open"
"""The reason in the result of a call that has not ended."""
MISMATCH = "effect_mismatch"
"""The reason in the record of a call that did more than its tool declares."""

T = TypeVar("T")


class Recorder(Protocol):
    """Where audit records go; `audit.log` implements it."""

    def ensure_open(self) -> None: ...
    def append(self, record: CallRecord) -> None: ...


class Journal:
    """The record of one call under way."""

    __slots__ = (
        "_answer",
        "_asked_at",
        "_audit",
        "_confirmation_id",
        "_end",
        "_last_event",
        "_log",
        "_mismatch",
        "_output",
        "_owner_in_store",
        "_sink",
        "_started",
        "_waited_ms",
        "_was_called",
        "call",
        "checked",
        "closed",
        "decision",
        "sandbox",
        "shown_id",
        "tool",
    )

    def __init__(
        self, call: ToolCall, sink: EventSink, log: SessionLog, audit: Recorder | None
    ) -> None:
        self.call = call
        self.shown_id = call.tool_use_id or call.id
        self.closed = False
        self._sink = sink
        self._log = log
        self._audit = audit
        self._owner_in_store: str | None = None
        """The owner under whose name the store knows the call itself, beside its events."""
        self._end: asyncio.Future[CallReceipt] | None = None
        self._started = time.perf_counter()
        """When it came in; from the moment it is called, when that was."""
        self._was_called = False
        self._output: OutputRedactor | None = None
        self._last_event = call.parent_event_id
        # What the stages find out, as they find it out.
        self.tool: Registered | None = None
        self.checked: Checked | None = None
        self.decision: Decision | None = None
        self.sandbox: str | None = None
        self._confirmation_id: str | None = None
        self._answer: Answer | None = None
        self._asked_at: float | None = None
        self._waited_ms = 0.0
        """For people."""
        self._mismatch = False

    @property
    def is_stored(self) -> bool:
        """Whether the store knows the call itself, so that its end is worth waiting for."""
        return self._end is not None

    # What happened before the end.

    async def write_question(self, question: Confirmation, running: RunningCall) -> None:
        """Write the question down, so that it can be answered from anywhere."""
        self._confirmation_id = question.id
        event = self._event(
            CONFIRMATION_REQUESTED,
            "system",
            {
                "tool_name": question.tool,
                "side_effects": question.side_effects,
                "confirmation_request_id": question.id,
                "input_summary": question.input_summary,
                "input_hash": question.arguments_sha256,
                "projected_modifications": list(map(redact, question.projected_modifications))
                or None,
                "command_summary": question.command_summary,
                "why": redact(question.why),
                "expires_at": question.expires_at,
            },
            question.event_id,
        )
        self._owner_in_store = await self._owner()
        put = questions.put(self.call, question, event, self._owner_in_store)
        await self._written(self._log.commit(self.call.session, put), running)
        self._asked_at = time.perf_counter()
        self._tell(event)

    async def asked_before(self, question: Confirmation) -> None:
        """The question was put before a restart."""
        self._confirmation_id = question.id
        self._asked_at = time.perf_counter()
        self._last_event = question.event_id
        self._owner_in_store = await self._owner()

    def answered(self, closed: Closed) -> None:
        """The question is closed: by an answer, by time, or because the call was stopped."""
        self._answer = closed.answer
        if self._asked_at is not None:
            self._waited_ms += _ms_since(self._asked_at)
            self._asked_at = None
        self._tell(closed.event)

    def ensure_recordable(self) -> None:
        """An effect that cannot be written down does not happen."""
        if self._audit is None:
            return
        try:
            self._audit.ensure_open()
        except OSError as error:
            raise ToolPermissionDenied(
                f"The audit log cannot be written ({error.strerror or error}), "
                "so calls with effects are refused.",
                reason="audit_unwritable",
            ) from None

    def called(self, tool: Registered, checked: Checked) -> None:
        """The call starts."""
        event = self._called(tool, checked)
        self._log.append(self.call.session, event)
        self._was_called = True
        self._tell(event)

    async def started(self, tool: Registered, checked: Checked, running: RunningCall) -> None:
        """The same for a call with effects: it may start once this is on the disk."""
        event = self._called(tool, checked)
        self._owner_in_store = await self._owner()
        start = StartCall(
            session=self.call.session.id,
            event=event,
            call=self.call.id,
            owner=self._owner_in_store,
            caller=self.call.caller,
            tool=tool.name,
            tool_use_id=self.shown_id,
            turn_id=self.call.turn_id,
            side_effects=tool.effect,
            arguments_sha256=checked.sha256,
            summary=_arguments(self.call, tool, checked),
        )
        receipt = await self._written(self._log.commit(self.call.session, start), running)
        if not receipt.applied:
            raise ToolProtocolError(
                f"Call {self.call.id} was started or ended before.", reason="already_started"
            )
        self._started = time.perf_counter()
        self._was_called = True
        self._tell(event)

    def _called(self, tool: Registered, checked: Checked) -> Event:
        self._started = time.perf_counter()
        payload = {
            "tool_name": tool.name,
            "input_hash": checked.sha256,
            "input_size_bytes": len(checked.canonical),
            "side_effects": tool.effect,
        }
        if self.sandbox is not None:
            payload["sandbox"] = self.sandbox
        return self._event(CALLED, "agent", payload)

    async def _owner(self) -> str:
        try:
            return (await self._log.store()).owner
        except StoreError as error:
            raise unkept(error) from None

    async def _written(self, commit: asyncio.Future[T], running: RunningCall) -> T:
        try:
            return await running.until(commit)  # type: ignore[no-any-return]
        except CallMismatch as error:
            raise ToolProtocolError(str(error), reason="bad_call_id") from None
        except StoreError as error:
            raise unkept(error) from None

    def published(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Something the tool says while it works."""
        if self.closed:
            return
        if self._output is None:
            self._output = OutputRedactor()
        self._mismatch = self._mismatch or event_type == EFFECT_MISMATCH
        for each in self._output.of(event_type, payload):
            self._say(event_type, each)

    # The end: exactly one of these.

    def completed(self, output: ToolOutput) -> ToolResult:
        content = output.content or [TextBlock("")]
        duration = self._elapsed_ms()
        payload: dict[str, Any] = {
            "success": output.success,
            "output_size_bytes": size_of(content),
            "latency_ms": duration,
        }
        if output.files_modified is not None:
            payload["files_modified"] = [redact(str(each)) for each in output.files_modified]
            self._compare_effects(payload["files_modified"])
        if output.command_executed is not None:
            payload["command_executed"] = redact(output.command_executed)
        if (display := display_of(output.metadata)) is not None:
            payload["display"] = display
        if not output.success:
            error: ErrorInfo | None = ErrorInfo.of(handled(output, content))
        else:
            error = None
        self._close(COMPLETED, "tool", payload, error, content, duration)
        return ToolResult(
            call_id=self.call.id,
            tool=self.call.tool,
            ok=output.success,
            content=content,
            value=value_of(output, content),
            error=error,
            diagnostics=diagnostics(output.metadata),
            meta=output.metadata,
            files_modified=output.files_modified,
            command_executed=output.command_executed,
            truncated=output.truncated,
            duration_ms=duration,
            diffs=output.diffs,
            native=output.native,
        )

    def failed(self, error: ToolError, partial: ToolOutput | None = None) -> ToolResult:
        """Refused, failed, stopped: the caller gets a result all the same."""
        error.tool_use_id = self.shown_id
        if partial is not None and error.details is not None:  # it is shown as content
            error.details = {k: v for k, v in error.details.items() if k != "partial_output"}
        info = ErrorInfo.of(error, correlation_id=self.call.id)
        if isinstance(error, ToolValidationError):
            return self._invalid(error, info)
        duration = self._elapsed_ms()
        shown = redact(info.message)
        payload: dict[str, Any] = {
            "tool_name": self._tool_name(),
            "error_class": error.error_class.in_events,
            "message": shown,
            "error_message": shown,
            "latency_ms": duration,
        }
        if error.error_class is not error.error_class.in_events:
            payload["class"] = error.error_class
        if error.reason is not None:
            payload["reason"] = redact(error.reason)
        content: list[ContentBlock] = [TextBlock(info.message)]
        if partial is not None:
            self._compare_effects([redact(str(each)) for each in partial.files_modified or ()])
            content = [*partial.content, *content]
            payload["partial_output"] = summarize_text(
                text_of(partial.content), limit=PARTIAL_OUTPUT
            )
        self._close(FAILED, "tool", payload, info, content, duration)
        return ToolResult(
            call_id=self.call.id,
            tool=self.call.tool,
            ok=False,
            content=content,
            value=None if partial is None else value_of(partial, content),
            error=info,
            partial=partial is not None,
            files_modified=None if partial is None else partial.files_modified,
            command_executed=None if partial is None else partial.command_executed,
            duration_ms=duration,
            diffs=() if partial is None else partial.diffs,
        )

    def _compare_effects(self, changed: list[str]) -> None:
        """Say so if a tool that declares to change nothing has changed files."""
        tool = self.tool
        if changed and tool is not None and not tool.has_effects:
            self._mismatch = True
            self._say(EFFECT_MISMATCH, {"declared": tool.effect, "did": "write", "paths": changed})

    def left_open(self) -> ToolResult:
        """No end yet: the call waits for an answer, and for whoever resumes its session."""
        self.closed = True
        error = ToolShuttingDown(
            "The runtime is shutting down. The question stays open.", reason=LEFT_OPEN
        )
        info = ErrorInfo.of(error, correlation_id=self.call.id)
        return ToolResult(
            call_id=self.call.id,
            tool=self.call.tool,
            ok=False,
            content=[TextBlock(info.message)],
            error=info,
            duration_ms=self._elapsed_ms(),
        )

    def _invalid(self, error: ToolValidationError, info: ErrorInfo) -> ToolResult:
        duration = self._elapsed_ms()
        content: list[ContentBlock] = [TextBlock(info.message)]
        payload = {
            "tool_name": self._tool_name(),
            "validation_errors": [redact(line) for line in error.validation_errors],
        }
        self._close(INPUT_INVALID, "system", payload, info, content, duration)
        return ToolResult(
            call_id=self.call.id,
            tool=self.call.tool,
            ok=False,
            content=content,
            error=info,
            duration_ms=duration,
        )

    def _tool_name(self) -> str:
        """What was asked for may be anything until it is known to be a tool."""
        return self.tool.name if self.tool is not None else redact(str(self.call.tool))[:128]

    def _elapsed_ms(self) -> float:
        return _ms_since(self._started)

    def _event(
        self, event_type: str, actor: Actor, payload: dict[str, Any], id: str | None = None
    ) -> Event:
        call = self.call
        payload["tool_use_id"] = self.shown_id
        payload["call_id"] = call.id
        return Event(
            id=id or ulid(),
            timestamp=time.time(),
            session_id=call.session.id,
            turn_id=call.turn_id,
            parent_event_id=self._last_event,
            type=event_type,
            actor=actor,
            payload=payload,
        )

    def _tell(self, event: Event) -> None:
        """Show an event, which the next one follows, to whoever reads along."""
        self._last_event = event.id
        self._sink.emit(event)

    def _say(self, event_type: str, payload: dict[str, Any]) -> None:
        """Something of the tool's, beside the chain of events."""
        event = self._event(event_type, "tool", payload)
        worth = self._output is None or self._output.worth_keeping
        if worth or event_type == EFFECT_MISMATCH:  # no flood of words may bury that
            self._log.append(self.call.session, event)
        self._sink.emit(event)

    def _close(
        self,
        event_type: str,
        actor: Actor,
        payload: dict[str, Any],
        error: ErrorInfo | None,
        content: list[ContentBlock],
        duration_ms: float,
    ) -> None:
        assert not self.closed, "a call ends once"
        if self._output is not None:
            for each in self._output.flush():
                self._say(OUTPUT_DELTA, each)
        self.closed = True
        event = self._event(event_type, actor, payload)
        if self._owner_in_store is None:
            self._log.append(self.call.session, event)
        else:
            self._finish(event, self._owner_in_store)
        self._tell(event)
        if self._audit is not None:
            self._record(error, content, duration_ms)

    def _finish(self, event: Event, owner: str) -> None:
        call = self.call
        end = FinishCall(session=call.session.id, event=event, call=call.id, owner=owner)
        self._end = self._log.commit(call.session, end, insist=True)

    async def settled(self) -> None:
        """Wait until the end of a call with effects is on the disk.

        What happened has happened: where the end cannot be written now, it is written later,
        and the caller is answered all the same.
        """
        if self._end is None:
            return
        try:
            await asyncio.shield(self._end)
        except Exception as error:  # whatever is wrong with the store, the call has ended
            _log.error("the end of call %s is not on the disk: %s", self.call.id, error)

    def _record(
        self, error: ErrorInfo | None, content: list[ContentBlock], duration_ms: float
    ) -> None:
        assert self._audit is not None
        call, tool, checked, answer = self.call, self.tool, self.checked, self._answer
        record = CallRecord(
            id=f"audit_{self._last_event}",
            ts=time.time_ns() // 1_000_000,
            caller=call.caller,
            tool=tool.name if tool is not None else self._tool_name(),
            decision="allow",
            call_id=call.id,
            session=call.session.id,
            cwd=call.session.workspace,
            args=_arguments(call, tool, checked),
            result=beginning(content),
            # A call that ran is timed from its start; one that did not, from when it came in.
            ms=duration_ms if self._was_called else max(0.0, duration_ms - self._waited_ms),
            waited_ms=self._waited_ms,
            turn_id=call.turn_id,
            scope=call.scope,
        )
        if checked is not None:
            record.args_hash = checked.sha256
        if tool is not None:
            record.source = tool.definition.source
            record.capabilities = tool.capability_names
            record.side_effects = tool.effect
        if self.decision is not None:
            record.policy = self.decision.policy_reason
        if self.sandbox is not None:
            record.sandbox = self.sandbox
        client = call.client or call.session.client
        if client is not None and client.label is not None:
            record.client = client.label
        if call.external_id is not None:
            record.external_id = redact(call.external_id)
        if self._confirmation_id is not None:
            record.confirmation_id = self._confirmation_id
            record.answered_by = answer.by if answer is not None else None
        if self._mismatch:
            record.reason = MISMATCH
        if error is not None:
            record.error_class = error.error_class
            record.reason = None if error.reason is None else redact(error.reason)
            if error.error_class in DENIALS and not self._was_called:
                record.decision = "deny"
        try:
            self._audit.append(record)
        except Exception as failure:
            # The result is not lost for it, but somebody must hear of it.
            _log.critical(
                "call %s of tool %s is not in the audit log: %s", call.id, call.tool, failure
            )


def _ms_since(moment: float) -> float:
    return int((time.perf_counter() - moment) * 1e6) / 1e3


def _arguments(call: ToolCall, tool: Registered | None, checked: Checked | None) -> str:
    if tool is None or checked is None:
        return summarize(call.arguments)
    return tool.summary.of(checked.arguments, checked.canonical)
