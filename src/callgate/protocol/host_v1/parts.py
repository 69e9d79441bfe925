"""What a tool in a host says while it works, and the event that this is to everyone else.

A `part` may be anything; four shapes of it, with nothing beside them, mean more:

    {"progress": {"message"?, "fraction"?}}      {"log": {"level"?, "message"}}
    {"text": "...", "stream": "..."}             {"artifact": {"mime_type", "name"?, ...}}

A text without a known stream is a part as any other: a host may have its own meaning for it.
Events of other types are for the log.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callgate.core.events import OUTPUT_DELTA, PROGRESS
from callgate.core.tools import OutputStream
from callgate.protocol.host_v1.excerpts import excerpt
from callgate.protocol.host_v1.frames import Event

LOG = "tool.log"
PART = "tool.part"
ARTIFACT = "tool.artifact"
_STREAMS = frozenset({"stdout", "stderr", "text"})


def progress(message: str | None = None, fraction: float | None = None) -> Event:
    values = {"message": message, "fraction": fraction}
    payload = {key: value for key, value in values.items() if value is not None}
    return Event(type="part", payload={"progress": payload})


def log(message: str, level: str = "info") -> Event:
    return Event(type="part", payload={"log": {"level": level, "message": message}})


def output(text: str, stream: OutputStream = "text") -> Event:
    return Event(type="part", payload={"text": text, "stream": stream})


def to_event(event: Event) -> tuple[str, dict[str, Any]]:
    """The type and the payload of the event that a running call publishes."""
    payload: Any = None if event.payload is UNSET else event.payload
    if event.type != "part":
        shown = msgspec.json.encode(payload).decode()
        line = f"{excerpt(event.type)}: {excerpt(shown)}"
        return LOG, {"level": "debug", "message": line}
    match payload:
        case {"progress": dict() as told} if len(payload) == 1:
            return PROGRESS, {key: told.get(key) for key in ("message", "fraction")}
        case {"log": dict() as told} if len(payload) == 1:
            level, message = told.get("level", "info"), told.get("message", "")
            return LOG, {"level": str(level), "message": str(message)}
        case {"text": str() as text, "stream": str() as stream} if len(payload) == 2:
            if stream in _STREAMS:
                return OUTPUT_DELTA, {"stream": stream, "text": text}
        case {"artifact": dict() as told} if len(payload) == 1:
            return ARTIFACT, told
    return PART, {"payload": payload}
