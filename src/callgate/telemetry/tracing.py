"""What a runtime has of telemetry where it is on: its caller's span, and the thread that sends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from callgate.core.text.traces import TraceContext, parse_traceparent
from callgate.telemetry.sender import Target, TelemetryThread, TelemetryUnusable

_log = logging.getLogger("callgate.telemetry")
_BSP_DELAY_MS = 5_000.0


class Tracing:
    def __init__(self, log: str, cursor: str, *, with_arguments: bool, flush_s: float) -> None:
        self._with_arguments = with_arguments
        self._flush_s = flush_s
        self.ratio = sampled_ratio(os.environ)
        delay_s = _number(os.environ, "OTEL_BSP_SCHEDULE_DELAY", _BSP_DELAY_MS) / 1000
        self._thread = TelemetryThread(log, cursor, self._open, delay_s=delay_s)
        self._thread.start()

    def _open(self) -> Target:
        from callgate.telemetry.pipeline import Pipeline, UnknownExporter  # lazy: it loads the SDK  # noqa: PLC0415

        try:
            return Pipeline(with_arguments=self._with_arguments)
        except UnknownExporter as error:
            raise TelemetryUnusable(str(error)) from None

    def current(self) -> TraceContext | None:
        """The span in which the program makes a call: its own, or that of whoever started it."""
        trace = sys.modules.get("opentelemetry.trace")
        if trace is not None:
            context = trace.get_current_span().get_span_context()
            if context.is_valid:
                return TraceContext(
                    f"{context.trace_id:032x}",
                    f"{context.span_id:016x}",
                    int(context.trace_flags) & 1,
                    context.trace_state.to_header() if context.trace_state else "",
                )
        given = os.environ.get("TRACEPARENT")
        return None if given is None else parse_traceparent(given, os.environ.get("TRACESTATE"))

    def close(self) -> None:
        """Send what is left, within `flush_s`. Blocks."""
        self._thread.stop(self._flush_s)


def is_disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def sampled_ratio(environ: Mapping[str, str]) -> float:
    """How many of the traces that begin here are sampled, as the SDK reads the same variables."""
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    if name == "always_off":
        return 0.0
    if name != "traceidratio":
        return 1.0
    return min(max(_number(environ, "OTEL_TRACES_SAMPLER_ARG", 1.0), 0.0), 1.0)


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environ.get(name, "") or default)
    except ValueError:
        _log.warning("%s is no number", name)
        return default
