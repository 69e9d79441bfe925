"""Trace context of a call, in the format of W3C Trace Context. Pure.

    caller's span --traceparent--> execute_tool (span_id of the call) --> run --> child processes

The ids of callgate's spans are derived from the id of the call. So the code that starts a process
for a call and the later exporter of its spans use the same ids without communication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
_STATE = re.compile(r"[\x20-\x7e]{1,512}\Z")
SAMPLED = 1


class TraceContext(msgspec.Struct, frozen=True):
    """A span of another process."""

    trace_id: str
    span_id: str
    flags: int = SAMPLED
    state: str = ""
    """`tracestate`, unchanged."""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def carrier(self) -> dict[str, Any]:
        """The fields for headers and `_meta`."""
        state = {"tracestate": self.state} if self.state else {}
        return {"traceparent": self.traceparent, **state}


def parse_traceparent(text: object, state: object = None) -> TraceContext | None:
    """Parse a caller's fields. Return None if they are malformed: a trace is a hint, never an
    error.
    """
    if not isinstance(text, str) or len(text) > 512:
        return None
    found = _TRACEPARENT.match(text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    if not int(found[2], 16) or not int(found[3], 16):
        return None
    tracestate = state if isinstance(state, str) and _STATE.match(state) else ""
    return TraceContext(found[2], found[3], int(found[4], 16) & SAMPLED, tracestate)


def read_trace(carrier: Mapping[str, object]) -> TraceContext | None:
    """Read the trace context from headers, `_meta` or similar."""
    return parse_traceparent(carrier.get("traceparent"), carrier.get("tracestate"))


def span_id(call: str, part: str = "") -> str:
    """Return the span id of a call, or of a part of it (`wait`, `run`)."""
    return _hashed(f"{part} {call}", 8)


def trace_id(call: str) -> str:
    """Return the trace id of a call without a parent: the call starts a trace."""
    return _hashed(call, 16)


def call_trace(
    call: str, parent: TraceContext | None, ratio: float = 1.0, part: str = "run"
) -> TraceContext:
    """Return the context for a process that a call starts or contacts. Its parent is a part of the
    call.

    `ratio` is the share of new traces that are sampled, chosen by id as in the SDK.
    """
    if parent is not None:
        return TraceContext(parent.trace_id, span_id(call, part), parent.flags, parent.state)
    root = trace_id(call)
    is_sampled = int(root[16:], 16) < round(ratio * (1 << 64))
    return TraceContext(root, span_id(call, part), SAMPLED if is_sampled else 0)


def _hashed(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=size, person=b"trace").hexdigest()
