"""OpenTelemetry's SDK: spans to its exporter, metrics to its reader, as the `OTEL_*` variables say.

Spans are made whole, with the ids and times that they have, instead of being begun and ended: that
happened long before, perhaps in another process. Loaded with the first record that is sent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

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
from callgate.core.version import __version__
from callgate.telemetry.labels import question_outcome, tool_label
from callgate.telemetry.spans import Span, spans_of

_SCOPE = "callgate"
_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_SECONDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 40.96]
_SAMPLED = (Decision.RECORD_AND_SAMPLE,)
_ERROR = {True: StatusCode.ERROR, False: StatusCode.UNSET}


class UnknownExporter(Exception):
    """The variables name one that is not installed."""


class Pipeline:
    """`UnknownExporter` where one is not installed."""

    def __init__(self, *, with_arguments: bool) -> None:
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # no words on stderr
        self._with_arguments = with_arguments
        service = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "callgate"}
        found = Resource.create()
        if found.attributes.get("service.name", "").startswith("unknown_service"):  # type: ignore[union-attr]
            found = found.merge(Resource(service))
        self._resource = found.merge(Resource({"service.version": __version__}))
        provider = TracerProvider(shutdown_on_exit=False)  # which reads OTEL_TRACES_SAMPLER
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
            "callgate.decisions", unit="{call}", description="What was decided about calls"
        )
        self._questions = meter.create_counter(
            "callgate.questions", unit="{question}", description="Questions to people, by their end"
        )

    def export(self, records: Iterable[CallRecord]) -> bool:
        """Send the spans of records; False: the same are to be tried again later."""
        spans = [
            made
            for record in records
            for made in self._sampled(spans_of(record, with_arguments=self._with_arguments))
        ]
        if self._exporter is None or not spans:
            return True
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def count(self, records: Iterable[CallRecord]) -> None:
        """Have the records in the metrics, which are sent by their own clock."""
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
            asked = question_outcome(record)
            if asked is not None:
                self._questions.add(1, {"callgate.outcome": asked})

    def close(self, timeout_s: float) -> None:
        """Send the metrics a last time, if that is possible in time."""
        if self._meters is not None:
            try:
                self._meters.shutdown(timeout_millis=timeout_s * 1000)
            except Exception as error:  # of the SDK: it could not send in time
                _log.debug("metrics were not sent: %s", error)
        self.interrupt()

    def interrupt(self) -> None:
        """End an export that waits."""
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
        return [self._made(span) for span in spans] if chosen.decision in _SAMPLED else []

    def _made(self, span: Span) -> ReadableSpan:
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


_log = logging.getLogger("callgate.telemetry")


def _exporter(signal: str) -> Any:
    """The one that the variables name; None: none is wanted."""
    name = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "") or "otlp"
    if name == "none":
        return None
    if name == "otlp":
        variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next((os.environ[each] for each in variables if os.environ.get(each)), "")
        name = _OTLP.get(protocol or "http/protobuf", f"otlp {protocol}")
    for found in entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
        return found.load()()
    raise UnknownExporter(f"no exporter {name!r} of {signal} is installed")
