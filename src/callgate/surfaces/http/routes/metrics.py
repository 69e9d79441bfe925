"""`/metrics` for Prometheus: calls of this instance, and how it is at this moment."""

from __future__ import annotations

import asyncio
import os

from callgate.core.stores import StoreError
from callgate.core.version import __version__
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.responses import HttpResponse, text_response
from callgate.telemetry.prometheus import MEDIA_TYPE, Labels, exposition, gauges

_WAIT_S = 2.0
"""For the store: whoever scrapes does not wait for it."""


async def get_metrics(context: Context, request: Request) -> HttpResponse:
    assert context.metrics is not None
    readable = 1.0
    try:
        await asyncio.to_thread(context.metrics.read)
    except OSError:
        readable = 0.0
    checks = await context.readiness.checks()
    health: dict[Labels, float] = {
        (("check", name),): float(found == "ok") for name, found in checks.items()
    }
    health[(("check", "audit"),)] = readable * float(context.runtime.is_recordable())
    values: dict[str, tuple[str, dict[Labels, float]]] = {
        "callgate_up": ("What runs here", {(("version", __version__),): 1.0}),
        "callgate_healthy": ("Whether a part of the instance is in order", health),
        "callgate_calls_in_flight": (
            "Calls under way",
            {(): len(context.runtime.in_flight())},
        ),
        "callgate_audit_bytes": ("Size of the audit file that is written", {(): _size(context)}),
    }
    waiting = await _waiting(context)
    if waiting is not None:
        values["callgate_questions_waiting"] = ("Questions without an answer", {(): waiting})
    lines = [*gauges(values), *context.metrics.lines()]
    return text_response(200, exposition(lines), MEDIA_TYPE)


async def _waiting(context: Context) -> int | None:
    """In the store, whoever asks them; None where that does not answer."""
    try:
        async with asyncio.timeout(_WAIT_S):
            return len(await context.runtime.open_confirmations())
    except (TimeoutError, StoreError):
        return None


def _size(context: Context) -> int:
    try:
        return os.stat(context.served.audit).st_size
    except OSError:
        return 0


OPERATIONS = (
    Operation("GET", "/metrics", "Counts and times of calls, for Prometheus.", get_metrics, None),
)
