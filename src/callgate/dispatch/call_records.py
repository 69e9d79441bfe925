"""Records of a call without secrets: contents of its events, and its line in the audit log.

    FinishCall(event, record) --committed--> append the line --> sync --> the caller is answered
      one transaction, with the                                    |
      record in the outbox                                         +--> ClearOutbox, some time later

`Journal` adds the owner to the events, and writes events and line. If another process has ended the
call or owns its session, that process owes the line, and the caller receives an unknown outcome.
The same applies if nothing can be committed and the lease on the session has expired.

A line is derived from the store. A killed process leaves its records in the outbox, and the next
recovery (`sessions.recovery`) writes the missing lines. The line is written even if the store is
not writable: it is then the only record of the end, from which recovery ends the call.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from callgate.audit.keys import keyed_hash
from callgate.audit.records import CallRecord, encode, implied_end
from callgate.core.calls import ErrorInfo, ToolCall
from callgate.core.content import ContentBlock, TextBlock
from callgate.core.errors import DENIALS, ToolError, ToolErrorClass, ToolValidationError
from callgate.core.events import FAILED, Event
from callgate.core.ops import CallReceipt, ClearOutbox, FinishCall
from callgate.core.sessions import Session
from callgate.core.stores import is_lost
from callgate.core.tools import ToolOutput
from callgate.dispatch.commands.sandboxes import MOVED
from callgate.dispatch.foreign_code import OUTCOME_UNKNOWN, UNKNOWN
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.dispatch.subjects import Findings, Subject
from callgate.dispatch.tool_output import beginning, display_of, size_of, text_of
from callgate.dispatch.tools.registry import Registered
from callgate.events.log import SessionLog
from callgate.policy.decisions import Decision
from callgate.policy.provenance.sources import Trace
from callgate.redaction.data import redact_value, summarize, summarize_text
from callgate.redaction.texts import redact

MISMATCH = "effect_mismatch"
"""The reason in the record of a call that exceeded the effect its tool declares."""
PARTIAL_OUTPUT = 8_192
"""Maximum characters of a stopped call's partial output."""

_SHOWN_TRACES = 16
_SHOWN_VALUE = 120
"""Characters."""

Payload = dict[str, Any]


def confirmation_requested(question: Confirmation) -> Payload:
    payload: Payload = {
        "tool_name": question.tool,
        "side_effects": question.side_effects,
        "confirmation_request_id": question.id,
        "input_summary": question.input_summary,
        "input_hash": question.arguments_sha256,
        "projected_modifications": list(map(redact, question.projected_modifications)) or None,
        "command_summary": question.command_summary,
        "why": redact(question.why),
        "expires_at": question.expires_at,
    }
    if question.provenance:
        payload["provenance"] = provenance_lines(question.provenance)
    return payload


def called(subject: Subject, decision: Decision) -> Payload:
    tool, checked = subject.tool, subject.checked
    payload = {
        "tool_name": tool.name,
        "input_hash": checked.sha256,
        "input_size_bytes": checked.size,
        "side_effects": tool.effect,
    }
    if subject.enclosure is not None:
        payload["sandbox"] = str(subject.enclosure)
        if subject.enclosure.moved:
            payload["notice"] = MOVED
    if decision.provenance:
        payload["provenance"] = provenance_lines(decision.provenance)
    return payload


def provenance_lines(traces: tuple[Trace, ...]) -> list[str]:
    """Return a short line about the source of each destination, without secrets. The value is
    included only if no trusted source vouches for it; others are in the argument summary."""
    return [
        f"{trace.parameter}: {trace.source}"
        if trace.vouched
        else f"{trace.parameter}: {_shown_value(trace)}, {trace.source}"
        for trace in traces[:_SHOWN_TRACES]
    ]


def _shown_value(trace: Trace) -> str:
    """Return the value of a destination, masked if its parameter's name indicates a secret."""
    masked = redact_value({trace.parameter: trace.value})[trace.parameter]
    return summarize_text(str(masked), limit=_SHOWN_VALUE)


def completed(output: ToolOutput, content: list[ContentBlock], duration_ms: float) -> Payload:
    match content:
        case [block] if type(block) is TextBlock and block.text.isascii():
            size = len(block.text)
        case _:
            size = size_of(content)
    payload: Payload = {
        "success": output.success,
        "output_size_bytes": size,
        "latency_ms": duration_ms,
    }
    if output.files_modified is not None:
        payload["files_modified"] = changed_files(output)
    if output.command_executed is not None:
        payload["command_executed"] = redact(output.command_executed)
    if output.metadata and (display := display_of(output.metadata)) is not None:
        payload["display"] = display
    return payload


def failed(
    name: str, error: ToolError, message: str, partial: ToolOutput | None, duration_ms: float
) -> Payload:
    """Return the payload of `tool.failed`. `message` is the error text for the caller."""
    shown = redact(message)
    payload: Payload = {
        "tool_name": name,
        "error_class": error.error_class.in_events,
        "message": shown,
        "error_message": shown,
        "latency_ms": duration_ms,
    }
    if error.error_class is not error.error_class.in_events:
        payload["class"] = error.error_class
    if error.reason is not None:
        payload["reason"] = redact(error.reason)
    if partial is not None:
        payload["partial_output"] = summarize_text(text_of(partial.content), limit=PARTIAL_OUTPUT)
    return payload


def input_invalid(name: str, error: ToolValidationError) -> Payload:
    return {
        "tool_name": name,
        "validation_errors": [redact(line) for line in error.validation_errors],
    }


def effect_mismatch(tool: Registered, changed: list[str]) -> Payload:
    return {"declared": tool.effect, "did": "write", "paths": changed}


def changed_files(output: ToolOutput) -> list[str]:
    return [redact(str(each)) for each in output.files_modified or ()]


def changed_count(output: ToolOutput) -> int:
    """Return the number of changed files: more than the listed ones, if callgate counted them."""
    listed = len(output.files_modified or ())
    observed = output.metadata.get("observed") if output.metadata else None
    counts = observed.get("counts") if isinstance(observed, dict) else None
    if not listed or not isinstance(counts, dict):
        return listed
    return max(listed, sum(each for each in counts.values() if isinstance(each, int)))


def tool_name(call: ToolCall, tool: Registered | None) -> str:
    """Return the tool's name. An unknown name is arbitrary text, so it is redacted and cut."""
    return tool.name if tool is not None else redact(call.requested_tool)[:128]


class CallEnd(msgspec.Struct, frozen=True):
    """The end of a call."""

    event: Event
    """Terminal event of the call."""
    error: ErrorInfo | None
    content: list[ContentBlock]
    duration_ms: float
    called: str | None
    """The id of the call's `tool.called` event; None: its tool was not started."""
    mismatch: bool
    """Whether the call exceeded the effect that its tool declares."""
    waited_ms: float
    """Time spent waiting for approvers."""
    confirmation_id: str | None
    answer: Answer | None
    changed: int = 0
    """Number of changed files."""


def audit_line(call: ToolCall, findings: Findings, end: CallEnd, key: bytes) -> CallRecord:
    """Return the audit record of a call. `key` is the key for hashes in the record."""
    tool, subject, error = findings.tool, findings.subject, end.error
    if subject is None:
        arguments = summarize(call.arguments)
    else:
        arguments = subject.tool.summary.of(subject.checked.arguments, subject.checked.canonical)
    line = CallRecord(  # for more than fifteen keyword arguments Python builds a dict
        id=f"audit_{end.event.id}",
        ts=int(end.event.timestamp * 1000),
        caller=call.caller,
        principal=call.principal,
        tool=tool.name if tool is not None else tool_name(call, tool),
        decision="allow",
        call_id=call.id,
        session=call.session.id,
        cwd=call.session.workspace,
        args=arguments,
        result=beginning(end.content),
        # `ms` counts from the start of the tool; without a start, from the arrival of the call.
        ms=end.duration_ms if end.called else max(0.0, end.duration_ms - end.waited_ms),
    )
    line.waited_ms = end.waited_ms
    line.turn_id = call.turn_id
    line.scope = call.scope
    line.called = end.called
    line.tool_use_id = call.tool_use_id
    if call.trace is not None:
        line.trace = call.trace.traceparent
    if tool is not None:
        line.source = tool.definition.source
        line.capabilities = tool.capability_names
        line.side_effects = tool.effect
    if subject is not None:
        line.args_hash = keyed_hash(key, subject.checked.sha256)
        line.sandbox = None if subject.enclosure is None else str(subject.enclosure)
    if findings.decision is not None:
        line.policy = findings.decision.policy_reason
        if findings.decision.provenance:
            line.provenance = tuple(provenance_lines(findings.decision.provenance))
    client = call.client or call.session.client
    if client is not None and client.label is not None:
        line.client = client.label
    if call.external_id is not None:
        line.external_id = redact(call.external_id)
    if end.confirmation_id is not None:
        line.confirmation_id = end.confirmation_id
        line.answered_by = None if end.answer is None else end.answer.by
    if end.changed:
        line.changed = end.changed
    if end.mismatch:
        line.reason = MISMATCH
    if error is not None:
        line.error_class = error.error_class
        line.reason = None if error.reason is None else redact(error.reason)
        if end.event.type != implied_end(line.error_class):
            line.end = end.event.type
        if error.error_class in DENIALS and end.called is None:
            line.decision = "deny"
    return line


CLEAR_S = 0.5
"""Seconds that a record stays in the outbox after its line is written, to batch the deletions."""
_MOST_UNWRITTEN = 1_000
"""Maximum records in memory while the disk fails; later ones are only in the outbox."""

_log = logging.getLogger("callgate.audit")


class Recorder(Protocol):
    """Destination of audit records; `audit.log` implements it."""

    @property
    def key(self) -> bytes: ...
    def ensure_open(self) -> None: ...
    def append(self, record: CallRecord, *, is_stored: bool = False) -> None: ...
    def request_sync(self) -> Future[None]: ...


_Written = tuple[tuple[str, ...], "asyncio.Future[bool]"]
"""Ids of calls whose lines were written together, and the future to resolve after the sync."""


class RecordWriter:
    """Writes audit records. One per dispatcher, for the event loop of its log."""

    def __init__(self, log: SessionLog, audit: Recorder) -> None:
        self.audit = audit
        """Also takes the lines of calls that the store does not know."""
        self._log = log
        self._pending = 0
        """Calls that wait for their commit or their line."""
        self._idle: asyncio.Future[None] | None = None
        """Resolved when no call is pending; for `close`."""
        self._syncing: dict[Future[None], list[_Written]] = {}
        """Key: the sync that covers their lines, so that one callback wakes all of them."""
        self._unwritten: list[CallRecord] = []

    def finish(
        self, session: Session, end: FinishCall, record: CallRecord, *, has_effects: bool = True
    ) -> asyncio.Future[bool]:
        """Commit the end of a call, then write its line. Done after both, or after a failure.

        The result is False if this process lost the session, so that the outcome is unknown. A
        cancelled caller stops neither step. The store has no row of a call without
        effects, so its line is written in any case.
        """
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending += 1
        op = replace(end, record=encode(record).decode())
        commit = self._log.commit(session, op, insist=True)
        commit.add_done_callback(partial(self._committed, record, done, has_effects))
        return done

    async def close(self) -> None:
        """Wait for the lines of ended calls."""
        if self._pending:
            await self._log.flush()
        if self._pending:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _committed(
        self,
        record: CallRecord,
        done: asyncio.Future[bool],
        has_effects: bool,
        commit: asyncio.Future[CallReceipt],
    ) -> None:
        error = commit.exception()
        if error is not None:
            _log.error("the end of call %s is not on the disk: %s", record.call_id, error)
        is_ours = self._is_ours(commit, has_effects=has_effects)
        if not is_ours and not has_effects:
            record.error_class = ToolErrorClass.EXECUTION_ERROR
            record.end, record.reason, record.result = FAILED, OUTCOME_UNKNOWN, UNKNOWN
        # If another process has ended the call, that process also writes the record.
        written = self._append(record) if is_ours or not has_effects else ()
        if not written or not is_ours:  # an unknown outcome needs no sync
            self._settle(done, is_ours=is_ours)
            return
        sync = self.audit.request_sync()
        waiting = self._syncing.get(sync)
        if waiting is None:
            waiting = self._syncing[sync] = []
            sync.add_done_callback(partial(self._wake, asyncio.get_running_loop()))
        waiting.append((written, done))

    def _is_ours(self, commit: asyncio.Future[CallReceipt], *, has_effects: bool) -> bool:
        """Whether the end of this process is the end of the call, as far as it can know."""
        error = commit.exception()
        if error is None:
            return commit.result().applied
        if is_lost(error):
            return False
        # The commit failed. Until the lease expires, no other process writes another end.
        return not has_effects or self._log.doubtful_owner is None

    def _append(self, record: CallRecord) -> tuple[str, ...]:
        """Write the pending lines. Returns the calls whose lines are now in the log."""
        waiting, self._unwritten = [*self._unwritten, record], []
        for number, each in enumerate(waiting):
            try:
                self.audit.append(each, is_stored=True)
            except Exception as failure:
                log_unwritten(each, failure)
                self._unwritten = waiting[number:][:_MOST_UNWRITTEN]
                waiting = waiting[:number]
                break
        return tuple(each.call_id for each in waiting)

    def _wake(self, loop: asyncio.AbstractEventLoop, sync: Future[None]) -> None:
        """Wake the event loop. Runs in the thread of the sync."""
        try:
            loop.call_soon_threadsafe(self._synced, sync)
        except RuntimeError:
            pass  # the loop is closed, so no call waits

    def _synced(self, sync: Future[None]) -> None:
        error = sync.exception()
        for calls, done in self._syncing.pop(sync):
            if error is None:
                self._log.commit_later(ClearOutbox(calls=calls), CLEAR_S)
            else:  # the records stay in the outbox
                names = ", ".join(calls)
                _log.critical("the audit lines of %s are not on the disk: %s", names, error)
            self._settle(done)

    def _settle(self, done: asyncio.Future[bool], *, is_ours: bool = True) -> None:
        self._pending -= 1
        if not done.done():  # False if the waiting caller was cancelled
            done.set_result(is_ours)
        if self._idle is not None and not self._pending:
            self._idle.set_result(None)
            self._idle = None


def log_unwritten(record: CallRecord, failure: Exception) -> None:
    """Log a record that could not be written; the result of its call is not affected."""
    _log.critical(
        "call %s of tool %s is not in the audit log: %s", record.call_id, record.tool, failure
    )
