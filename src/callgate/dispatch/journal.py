"""The journal of one call: its events as they happen, and one audit record.

    event  -> live readers
           -> the log of its session; a call with effects waits for it
    record -> without effects: a line of the audit log, before the caller is answered
           -> with effects: committed with the last event; the line follows (`RecordWriter`)

The journal is write-only: its input comes as arguments, and no stage reads from it. Every call ends
here exactly once, in `completed` or `failed`. `call_records` redacts texts before they become
part of an event or a record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from callgate.core.calls import ErrorInfo, ToolCall, ToolResult
from callgate.core.content import ContentBlock, TextBlock
from callgate.core.errors import (
    ToolError,
    ToolExecutionError,
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
from callgate.core.ops import CallReceipt, FinishCall, StartCall
from callgate.core.stores import CallMismatch, StoreError, is_lost
from callgate.core.tools import ToolOutput
from callgate.dispatch import call_records
from callgate.dispatch.call_records import CallEnd, RecordWriter, log_unwritten
from callgate.dispatch.foreign_code import OUTCOME_UNKNOWN, UNKNOWN, unkept
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer, Closed, Confirmation
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Findings, Subject
from callgate.dispatch.tool_output import completed_result, failed_result, handled
from callgate.dispatch.tools.registry import Registered
from callgate.events.log import SessionLog
from callgate.policy.decisions import Decision

if TYPE_CHECKING:
    from callgate.dispatch.tool_output import OutputRedactor

_log = logging.getLogger("callgate.audit")

LEFT_OPEN = "question_open"
"""The error reason in the result of a call whose question stays open."""

T = TypeVar("T")


class Journal(msgspec.Struct, eq=False):
    """The journal of one running call."""

    _call: ToolCall
    _sink: EventSink
    _log: SessionLog
    _records: RecordWriter | None
    _started: float = msgspec.field(default_factory=time.perf_counter)
    """Arrival of the call; after `called`, the start of its work."""
    _closed: bool = False
    _owner_in_store: str | None = None
    """The owner of the call's row in the store; None: the store has only its events."""
    _end: asyncio.Future[Any] | None = None
    _called: str | None = None
    """The id of its `tool.called` event."""
    _output: OutputRedactor | None = None
    _last_event: str | None = None
    _confirmation_id: str | None = None
    _answer: Answer | None = None
    _asked_at: float | None = None
    _waited_ms: float = 0.0
    """Time spent waiting for answers of approvers."""
    _mismatch: bool = False
    _changed: int = 0

    @property
    def closed(self) -> bool:
        """Whether the end of the call is recorded."""
        return self._closed

    @property
    def is_stored(self) -> bool:
        """Whether the end of the call is committed to the store, which its caller awaits."""
        return self._end is not None

    # Before the end.

    async def write_question(self, question: Confirmation, running: RunningCall) -> None:
        """Store the question, so that it can be answered from any process."""
        self._confirmation_id = question.id
        payload = call_records.confirmation_requested(question)
        event = self._event(CONFIRMATION_REQUESTED, "system", payload, question.event_id)
        self._owner_in_store = await self._owner()
        put = questions.put(self._call, question, event, self._owner_in_store)
        await self._written(self._log.commit(self._call.session, put), running)
        self._asked_at = time.perf_counter()
        self._tell(event)

    async def asked_before(self, question: Confirmation) -> None:
        """Continue with a question that was open at a restart."""
        self._confirmation_id = question.id
        self._asked_at = time.perf_counter()
        self._last_event = question.event_id
        self._owner_in_store = await self._owner()

    def answered(self, closed: Closed) -> None:
        """Record that the question is closed: by an answer, a timeout, or a stop of the call."""
        self._answer = closed.answer
        if self._asked_at is not None:
            self._waited_ms += _ms_since(self._asked_at)
            self._asked_at = None
        self._tell(closed.event)

    def ensure_recordable(self) -> None:
        """Refuse a call with effects if the audit log is not writable."""
        if self._records is None:
            return
        try:
            self._records.audit.ensure_open()
        except OSError as error:
            raise ToolPermissionDenied(
                f"The audit log cannot be written ({error.strerror or error}), "
                "so calls with effects are refused.",
                reason="audit_unwritable",
            ) from None

    def called(self, subject: Subject, decision: Decision) -> float:
        """Record the start of a call without effects. Returns its time by `perf_counter`."""
        self._started = time.perf_counter()
        event = self._event(CALLED, "agent", call_records.called(subject, decision))
        self._log.append(self._call.session, event, is_in_journal=self._records is not None)
        self._called = self._last_event = event.id
        self._sink.emit(event)
        return self._started

    async def started(self, subject: Subject, decision: Decision, running: RunningCall) -> float:
        """Record the start of a call with effects. Returns after the event is on disk."""
        call, tool, checked = self._call, subject.tool, subject.checked
        self._started = time.perf_counter()
        event = self._event(CALLED, "agent", call_records.called(subject, decision))
        self._owner_in_store = await self._owner()
        start = StartCall(
            session=call.session.id,
            event=event,
            call=call.id,
            owner=self._owner_in_store,
            caller=call.caller,
            tool=tool.name,
            tool_use_id=call.shown_id,
            turn_id=call.turn_id,
            side_effects=tool.effect,
            arguments_sha256=checked.sha256,
            summary=tool.summary.of(checked.arguments, checked.canonical),
            principal=call.principal,
        )
        receipt = await self._written(self._log.commit(call.session, start), running)
        if not receipt.applied:
            raise ToolProtocolError(
                f"Call {call.id} was started or ended before.", reason="already_started"
            )
        self._started = time.perf_counter()
        self._called = event.id
        self._tell(event)
        return self._started

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
        """Publish an event of the running tool."""
        if self._closed:
            return
        if self._output is None:
            from callgate.dispatch.tool_output import (  # lazy: many tools publish no events  # noqa: PLC0415
                OutputRedactor,
            )

            self._output = OutputRedactor()
        self._mismatch = self._mismatch or event_type == EFFECT_MISMATCH
        for each in self._output.of(event_type, payload):
            self._say(event_type, each)

    # The end: exactly one of these.

    def completed(self, output: ToolOutput, findings: Findings) -> ToolResult:
        """Record that the tool finished, with or without success."""
        content = output.content or [TextBlock("")]
        duration = int((time.perf_counter() - self._started) * 1e6) / 1e3
        error = None
        if not output.success:
            error = ErrorInfo.of(handled(output, content), self._call.tool)
        payload = call_records.completed(output, content, duration)
        if output.files_modified is not None:
            self._changed = call_records.changed_count(output)
            self._compare_effects(findings.tool, payload["files_modified"])
        self._close(COMPLETED, "tool", payload, findings, error, content, duration)
        return completed_result(self._call, output, content, error, duration)

    def failed(
        self, error: ToolError, findings: Findings, partial: ToolOutput | None = None
    ) -> ToolResult:
        """Record that the call was refused, failed or was stopped, and return its result."""
        call = self._call
        error.tool_use_id = call.shown_id
        if partial is not None and isinstance(error.details, Mapping):  # part of the content
            error.details = {k: v for k, v in error.details.items() if k != "partial_output"}
        name = call_records.tool_name(call, findings.tool)
        info = ErrorInfo.of(error, name, correlation_id=call.id)
        duration = _ms_since(self._started)
        content: list[ContentBlock] = [TextBlock(info.message)]
        if isinstance(error, ToolValidationError):
            payload = call_records.input_invalid(name, error)
            self._close(INPUT_INVALID, "system", payload, findings, info, content, duration)
            return failed_result(call, info, content, duration)
        if partial is not None:
            content = [*partial.content, *content]
            self._changed = call_records.changed_count(partial)
            self._compare_effects(findings.tool, call_records.changed_files(partial))
        payload = call_records.failed(name, error, info.message, partial, duration)
        self._close(FAILED, "tool", payload, findings, info, content, duration)
        return failed_result(call, info, content, duration, partial)

    def left_open(self) -> ToolResult:
        """Close the journal without an end: the question stays open until a resume."""
        self._closed = True
        error = ToolShuttingDown(
            "The runtime is shutting down. The question stays open.", reason=LEFT_OPEN
        )
        info = ErrorInfo.of(error, self._call.tool, correlation_id=self._call.id)
        content: list[ContentBlock] = [TextBlock(info.message)]
        return failed_result(self._call, info, content, _ms_since(self._started))

    def _compare_effects(self, tool: Registered | None, changed: list[str]) -> None:
        """Report a tool that declares no effects but changed files."""
        if changed and tool is not None and not tool.has_effects:
            self._mismatch = True
            self._say(EFFECT_MISMATCH, call_records.effect_mismatch(tool, changed))

    def _event(
        self, event_type: str, actor: Actor, payload: dict[str, Any], id: str | None = None
    ) -> Event:
        call = self._call
        payload["tool_use_id"] = call.tool_use_id or call.id
        payload["call_id"] = call.id
        return Event(
            id=id or ulid(),
            timestamp=time.time(),
            session_id=call.session.id,
            turn_id=call.turn_id,
            parent_event_id=self._last_event or call.parent_event_id,
            type=event_type,
            actor=actor,
            payload=payload,
        )

    def _tell(self, event: Event) -> None:
        """Emit an event to live readers. The next event has it as its parent."""
        self._last_event = event.id
        self._sink.emit(event)

    def _say(self, event_type: str, payload: dict[str, Any]) -> None:
        """Emit an event of the tool, outside the chain of parent events."""
        event = self._event(event_type, "tool", payload)
        worth = self._output is None or self._output.worth_keeping
        if worth or event_type == EFFECT_MISMATCH:  # a mismatch is always stored
            self._log.append(self._call.session, event)
        self._sink.emit(event)

    def _close(
        self,
        event_type: str,
        actor: Actor,
        payload: dict[str, Any],
        findings: Findings,
        error: ErrorInfo | None,
        content: list[ContentBlock],
        duration_ms: float,
    ) -> None:
        assert not self._closed, "a call ends once"
        if self._output is not None:
            for each in self._output.flush():
                self._say(OUTPUT_DELTA, each)
        self._closed = True
        event = self._event(event_type, actor, payload)
        end = CallEnd(
            event,
            error,
            content,
            duration_ms,
            self._called,
            self._mismatch,
            self._waited_ms,
            self._confirmation_id,
            self._answer,
            self._changed,
        )
        owner = self._owner_in_store
        if owner is None and self._log.lease is not None:
            owner = self._log.doubtful_owner
        if owner is None:
            is_in_journal = False
            if self._records is not None:
                audit = self._records.audit
                record = call_records.audit_line(self._call, findings, end, audit.key)
                try:
                    audit.append(record)  # before the event: the store follows the audit log
                    is_in_journal = True
                except Exception as failure:
                    log_unwritten(record, failure)
            self._log.append(self._call.session, event, is_in_journal=is_in_journal)
            self._sink.emit(event)
        else:
            self._finish(owner, findings, end)
            self._tell(event)

    def _finish(self, owner: str, findings: Findings, end: CallEnd) -> None:
        call = self._call
        op = FinishCall(session=call.session.id, event=end.event, call=call.id, owner=owner)
        if self._records is None:
            self._end = self._log.commit(call.session, op, insist=True)
        else:
            record = call_records.audit_line(call, findings, end, self._records.audit.key)
            has_row = self._owner_in_store is not None
            self._end = self._records.finish(call.session, op, record, has_effects=has_row)

    async def settled(self, result: ToolResult) -> ToolResult:
        """Wait until the end of a call with effects and its audit line are on disk, and return
        the caller's answer: `result`, or that this process lost the session.

        If the end cannot be written now, it is written later, and the caller gets its answer
        without waiting for it.
        """
        if self._end is None:
            return result
        try:
            ended = await self._end
        except Exception as error:  # any store failure: the call has still ended
            _log.error("the end of call %s is not on the disk: %s", self._call.id, error)
            ended = not is_lost(error)
        if isinstance(ended, CallReceipt):  # the form without an audit log
            ended = ended.applied
        return result if ended else self._unknown(result)

    def _unknown(self, result: ToolResult) -> ToolResult:
        error = ToolExecutionError(UNKNOWN, reason=OUTCOME_UNKNOWN)
        info = ErrorInfo.of(error, self._call.tool, correlation_id=self._call.id)
        return failed_result(self._call, info, [TextBlock(info.message)], result.duration_ms)


def _ms_since(moment: float) -> float:
    return int((time.perf_counter() - moment) * 1e6) / 1e3
