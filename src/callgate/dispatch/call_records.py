"""What is written about a call, without secrets: what each of its events holds, and its line in the
audit log. Pure.

`Journal` adds whose events they are, and writes both.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callgate.audit.keys import keyed_hash
from callgate.audit.records import CallRecord, implied_end
from callgate.core.calls import ToolCall
from callgate.core.content import ContentBlock, TextBlock
from callgate.core.errors import DENIALS, ToolError, ToolValidationError
from callgate.core.events import Event
from callgate.core.results import ErrorInfo
from callgate.core.tools import ToolOutput
from callgate.dispatch.commands.sandboxes import MOVED
from callgate.dispatch.contents import beginning, display_of, size_of, text_of
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.dispatch.subjects import Findings, Subject
from callgate.dispatch.tools.registry import Registered
from callgate.policy.decide import Decision
from callgate.policy.provenance.sources import Trace
from callgate.redaction.data import redact_value
from callgate.redaction.summaries import summarize, summarize_text
from callgate.redaction.texts import redact

MISMATCH = "effect_mismatch"
"""The reason in the record of a call that did more than its tool declares."""
PARTIAL_OUTPUT = 8_192
"""Characters of what a stopped call had to show."""

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
    """Where the destinations of a call come from, a short line each, without secrets: the value
    itself only where nobody vouched for it, the others are in the summary of the arguments."""
    return [
        f"{trace.parameter}: {trace.source}"
        if trace.vouched
        else f"{trace.parameter}: {_shown_value(trace)}, {trace.source}"
        for trace in traces[:_SHOWN_TRACES]
    ]


def _shown_value(trace: Trace) -> str:
    """Without what its parameter says is a secret."""
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
    """`message` is what the caller is shown of the error."""
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


def tool_name(call: ToolCall, tool: Registered | None) -> str:
    """What was asked for may be anything until it is known to be a tool."""
    return tool.name if tool is not None else redact(call.requested_tool)[:128]


class CallEnd(msgspec.Struct, frozen=True):
    """How a call ended."""

    event: Event
    """That says so."""
    error: ErrorInfo | None
    content: list[ContentBlock]
    duration_ms: float
    called: str | None
    """The id of the event with which its tool was started, if it was."""
    mismatch: bool
    """Whether it did more than its tool declares."""
    waited_ms: float
    """For people."""
    confirmation_id: str | None
    answer: Answer | None


def audit_line(call: ToolCall, findings: Findings, end: CallEnd, key: bytes) -> CallRecord:
    """The line of a call in the audit log. `key` is that of its hashes."""
    tool, subject, error = findings.tool, findings.subject, end.error
    if subject is None:
        arguments = summarize(call.arguments)
    else:
        arguments = subject.tool.summary.of(subject.checked.arguments, subject.checked.canonical)
    line = CallRecord(  # with more than fifteen names, Python would make a dict of them first
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
        # A call that ran is timed from its start; one that did not, from when it came in.
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
