"""What an event of a call says, in a few words for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callgate.cli.records.stores import span
from callgate.core.errors import DENIALS
from callgate.core.events import (
    CALLED,
    COMPLETED,
    CONFIRMATION_RESOLVED,
    FAILED,
    INPUT_INVALID,
    Event,
)


def event_words(event: Event) -> Iterator[str]:
    """The word for what happened, then its details."""
    payload = event.payload
    if event.type == CALLED:
        yield "start"
    elif event.type == CONFIRMATION_RESOLVED:
        yield "answer"
        by = text(payload, "by")
        yield f"{text(payload, 'decision')}{f' by {by}' if by else ''}"
    elif event.type == INPUT_INVALID:
        yield "invalid"
        yield "; ".join(map(str, payload.get("validation_errors") or ()))
    elif event.type == FAILED:
        error_class = text(payload, "error_class")
        yield "refused" if error_class in DENIALS else "failed"
        yield f"{error_class}: {text(payload, 'message')}"
        yield duration(payload)
    else:
        yield "failed" if went_wrong(event) else "ok"
        yield duration(payload)


def went_wrong(event: Event) -> bool:
    return event.type in (FAILED, INPUT_INVALID) or (
        event.type == COMPLETED and event.payload.get("success") is False
    )


def duration(payload: Any) -> str:
    ms = payload.get("latency_ms")
    if not isinstance(ms, int | float):
        return ""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    return f"{ms / 1_000:.1f} s" if ms < 60_000 else span(ms / 1_000)


def text(payload: Any, name: str) -> str:
    value = payload.get(name)
    return "" if value is None else str(value)
