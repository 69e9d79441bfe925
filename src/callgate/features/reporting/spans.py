"""Records as spans and metrics of OpenTelemetry's SDK, configured by `OTEL_*` variables.

    execute_tool NAME  |<------------------ waited_ms + ms ------------------>|
      wait_for_person  |<----- waited_ms ----->|
      run NAME                                 |<------------- ms ----------->|

A record has the end of the call in milliseconds, and the duration of each part in microseconds.
Checks before a question or before the start belong to no part. Names follow the semantic
conventions for generative AI.

Spans are created complete, with the ids and times of the record, because the calls have already
ended, perhaps in another process. Loaded with the first record.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from callgate.audit.records import CallRecord
from callgate.core.ids import SAMPLED, parse_traceparent, span_id, trace_id
from callgate.core.version import __version__
from callgate.features.reporting.prometheus import question_outcome, tool_label

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
"""Fields of a record, and their attribute names."""

Attributes = dict[str, str | float]


class Span(NamedTuple):
    name: str
    trace: str
    id: str
    parent: str | None
    is_remote: bool
    """Whether the parent span belongs to another program."""
    is_sampled: bool | None
    """The sampling decision of the caller; None: the trace starts here."""
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str | None = None


def spans_of(record: CallRecord, *, with_arguments: bool = False) -> list[Span]:
    """Return the span of the call, and the spans of its parts. The audit log already redacted
    their data.
    """
    parent = parse_traceparent(record.trace)
    trace = trace_id(record.call_id) if parent is None else parent.trace_id
    sampled = None if parent is None else bool(parent.flags & SAMPLED)
    id = span_id(record.call_id)
    end = record.ts * 1_000_000
    waited, ran = (max(0, int(ms * 1e6)) for ms in (record.waited_ms, record.ms))
    begin = end - waited - ran
    call = Span(
        f"execute_tool {tool_label(record)}",
        trace,
        id,
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
        question: Attributes = {"callgate.question.id": record.confirmation_id}
        if record.answered_by is not None:
            question["callgate.answered_by"] = record.answered_by
        spans.append(_part(call, WAIT, record, "wait_for_person", begin, begin + waited, question))
    if record.called is not None:
        name = f"run {tool_label(record)}"
        spans.append(_part(call, RUN, record, name, end - ran, end, {}))
    return spans


def _part(
    call: Span, part: str, record: CallRecord, name: str, start: int, end: int, more: Attributes
) -> Span:
    id = span_id(record.call_id, part)
    error = call.error if part == RUN else None
    return Span(name, call.trace, id, call.id, False, call.is_sampled, start, end, more, error)


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


_SCOPE = "callgate"
_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_SECONDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 40.96]
_SAMPLED = (Decision.RECORD_AND_SAMPLE,)
_ERROR = {True: StatusCode.ERROR, False: StatusCode.UNSET}


class UnknownExporter(Exception):
    """The variables select an exporter that is not installed."""


class Pipeline:
    """Raises `UnknownExporter` if an exporter is not installed."""

    def __init__(self, *, with_arguments: bool) -> None:
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # keeps stderr silent
        self._with_arguments = with_arguments
        service = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "callgate"}
        found = Resource.create()
        if found.attributes.get("service.name", "").startswith("unknown_service"):  # type: ignore[union-attr]
            found = found.merge(Resource(service))
        self._resource = found.merge(Resource({"service.version": __version__}))
        provider = TracerProvider(shutdown_on_exit=False)  # it reads OTEL_TRACES_SAMPLER
        self._sampler = provider.sampler
        self._exporter: SpanExporter | None = _exporter("traces")
        self._scope = InstrumentationScope(_SCOPE, __version__)
        metrics = _exporter("metrics")
        self._meters: MeterProvider | None = None
        if metrics is not None:
            reader = PeriodicExportingMetricReader(metrics)
            self._meters = MeterProvider([reader], self._resource, shutdown_on_exit=False)
            self._make_instruments(self._meters)

    def _make_instruments(self, meters: MeterProvider) -> None:
        meter = meters.get_meter(_SCOPE, __version__)
        self._duration = meter.create_histogram(
            "gen_ai.execute_tool.duration",
            unit="s",
            description="How long tools ran",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._decisions = meter.create_counter(
            "callgate.decisions", unit="{call}", description="Decisions on calls"
        )
        self._questions = meter.create_counter(
            "callgate.questions", unit="{question}", description="Questions to people, by their end"
        )

    def export(self, records: Iterable[CallRecord]) -> bool:
        """Send the spans of records. False if the caller must retry later."""
        spans = [
            readable
            for record in records
            for readable in self._sampled(spans_of(record, with_arguments=self._with_arguments))
        ]
        if self._exporter is None or not spans:
            return True
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def count(self, records: Iterable[CallRecord]) -> None:
        """Count records in the metrics, which have their own export interval."""
        if self._meters is None:
            return
        for record in records:
            attributes: dict[str, str] = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool_label(record),
            }
            if record.error_class is not None:
                attributes["error.type"] = record.error_class
            self._duration.record(record.ms / 1000, attributes)
            effect = record.side_effects or "unknown"
            decided = {"callgate.decision": record.decision, "callgate.effect": effect}
            self._decisions.add(1, decided)
            end = question_outcome(record)
            if end is not None:
                self._questions.add(1, {"callgate.outcome": end})

    def close(self, timeout_s: float) -> None:
        """Send the metrics one last time, within the time limit."""
        if self._meters is not None:
            try:
                self._meters.shutdown(timeout_millis=timeout_s * 1000)
            except Exception as error:  # the SDK could not send in time
                _log.debug("metrics were not sent: %s", error)
        self.interrupt()

    def interrupt(self) -> None:
        """End a waiting export."""
        if self._exporter is not None:
            self._exporter.shutdown()

    def _sampled(self, spans: Sequence[Span]) -> list[ReadableSpan]:
        first = spans[0]
        parent = None
        if first.parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if first.is_sampled else TraceFlags.DEFAULT)
            caller = SpanContext(int(first.trace, 16), int(first.parent, 16), True, flags)
            parent = set_span_in_context(NonRecordingSpan(caller))
        chosen = self._sampler.should_sample(
            parent, int(first.trace, 16), first.name, attributes=first.attributes
        )
        return [self._readable(span) for span in spans] if chosen.decision in _SAMPLED else []

    def _readable(self, span: Span) -> ReadableSpan:
        trace, flags = int(span.trace, 16), TraceFlags(TraceFlags.SAMPLED)
        parent = None
        if span.parent is not None:
            parent = SpanContext(trace, int(span.parent, 16), span.is_remote, flags)
        return ReadableSpan(
            span.name,
            SpanContext(trace, int(span.id, 16), False, flags),
            parent,
            self._resource,
            span.attributes,
            status=Status(_ERROR[span.error is not None]),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


_log = logging.getLogger("callgate.features.reporting.telemetry")


def _exporter(signal: str) -> Any:
    """Return the exporter that the variables select; None if they disable it."""
    name = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "") or "otlp"
    if name == "none":
        return None
    if name == "otlp":
        variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next((os.environ[each] for each in variables if os.environ.get(each)), "")
        name = _OTLP.get(protocol or "http/protobuf", f"otlp {protocol}")
    for found in entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
        return found.load()()
    raise UnknownExporter(f"the exporter {name!r} for {signal} is not installed")
