"""A record as spans, by the semantic conventions for generative AI. Pure.

    execute_tool NAME  |<------------------ waited_ms + ms ------------------>|
      wait_for_person  |<----- waited_ms ----->|
      run NAME                                 |<------------- ms ----------->|

Their end is that of the call; a record has it in milliseconds, and how long each part took in
microseconds. What was checked before a question, or before the start, is in no part.
"""

from __future__ import annotations

from typing import NamedTuple

from callgate.audit.records import CallRecord
from callgate.core.text.traces import SAMPLED, parse_traceparent, span_id, trace_id
from callgate.telemetry.labels import tool_label

WAIT = "wait"
RUN = "run"
_PLAIN = (
    ("decision", "callgate.decision"),
    ("caller", "callgate.caller"),
    ("client", "callgate.client"),
    ("side_effects", "callgate.effect"),
    ("source", "callgate.source"),
    ("policy", "callgate.policy"),
    ("answered_by", "callgate.answered_by"),
    ("sandbox", "callgate.sandbox"),
    ("reason", "callgate.reason"),
    ("call_id", "callgate.call.id"),
    ("turn_id", "callgate.turn.id"),
)
"""Fields of a record, as attributes."""

Attributes = dict[str, str | float]


class Span(NamedTuple):
    name: str
    trace: str
    id: str
    parent: str | None
    is_remote: bool
    """Somebody else has the parent."""
    is_sampled: bool | None
    """As the caller says; None: the trace begins here."""
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str | None = None


def spans_of(record: CallRecord, *, with_arguments: bool = False) -> list[Span]:
    """That of the call, and those of its parts. Whatever is in them was redacted for the log."""
    parent = parse_traceparent(record.trace)
    trace = trace_id(record.call_id) if parent is None else parent.trace_id
    sampled = None if parent is None else bool(parent.flags & SAMPLED)
    own = span_id(record.call_id)
    end = record.ts * 1_000_000
    waited, ran = (max(0, int(ms * 1e6)) for ms in (record.waited_ms, record.ms))
    begin = end - waited - ran
    call = Span(
        f"execute_tool {tool_label(record)}",
        trace,
        own,
        None if parent is None else parent.span_id,
        parent is not None,
        sampled,
        begin,
        end,
        _attributes(record, with_arguments),
        record.error_class,
    )
    spans = [call]
    if record.confirmation_id is not None:
        asked: Attributes = {"callgate.question.id": record.confirmation_id}
        if record.answered_by is not None:
            asked["callgate.answered_by"] = record.answered_by
        spans.append(_part(call, WAIT, record, "wait_for_person", begin, begin + waited, asked))
    if record.called is not None:
        name = f"run {tool_label(record)}"
        spans.append(_part(call, RUN, record, name, end - ran, end, {}))
    return spans


def _part(
    call: Span, part: str, record: CallRecord, name: str, start: int, end: int, more: Attributes
) -> Span:
    own = span_id(record.call_id, part)
    error = call.error if part == RUN else None
    return Span(name, call.trace, own, call.id, False, call.is_sampled, start, end, more, error)


def _attributes(record: CallRecord, with_arguments: bool) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": record.tool,
        "gen_ai.tool.call.id": record.tool_use_id or record.call_id,
        "gen_ai.tool.type": "extension" if (record.source or "").startswith("mcp") else "function",
        "gen_ai.conversation.id": record.session,
    }
    for field, name in _PLAIN:
        value = getattr(record, field)
        if value is not None:
            attributes[name] = value
    if record.error_class is not None:
        attributes["error.type"] = record.error_class
    if with_arguments:
        attributes["gen_ai.tool.call.arguments"] = record.args
    return attributes
