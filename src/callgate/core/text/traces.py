"""The place of a call in somebody's trace, as W3C Trace Context writes it. Pure.

    caller's span --traceparent--> execute_tool (span_id of the call) --> run --> child processes

The ids of our own spans follow from the id of the call, so that whoever starts something for a
call, and whoever exports its spans later, name the same span without having to tell each other.
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
    """A span that somebody else began."""

    trace_id: str
    span_id: str
    flags: int = SAMPLED
    state: str = ""
    """`tracestate`, as it came."""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def carrier(self) -> dict[str, Any]:
        """As headers and `_meta` have it."""
        state = {"tracestate": self.state} if self.state else {}
        return {"traceparent": self.traceparent, **state}


def parse_traceparent(text: object, state: object = None) -> TraceContext | None:
    """What a caller sent; None for what is no `traceparent`: a trace is a hint, never an error."""
    if not isinstance(text, str) or len(text) > 512:
        return None
    found = _TRACEPARENT.match(text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    if not int(found[2], 16) or not int(found[3], 16):
        return None
    kept = state if isinstance(state, str) and _STATE.match(state) else ""
    return TraceContext(found[2], found[3], int(found[4], 16) & SAMPLED, kept)


def read_trace(carrier: Mapping[str, object]) -> TraceContext | None:
    """From headers, `_meta` or the like."""
    return parse_traceparent(carrier.get("traceparent"), carrier.get("tracestate"))


def span_id(call: str, part: str = "") -> str:
    """Of the span of a call, or of a part of it (`wait`, `run`)."""
    return _hashed(f"{part} {call}", 8)


def trace_id(call: str) -> str:
    """Of a call whose caller has no trace: it begins one."""
    return _hashed(call, 16)


def call_trace(
    call: str, parent: TraceContext | None, ratio: float = 1.0, part: str = "run"
) -> TraceContext:
    """What is given to whom a call starts or asks: a part of the call is the parent there.

    `ratio`: of the traces that begin here, how many are sampled; by the id, as the SDK does it."""
    if parent is not None:
        return TraceContext(parent.trace_id, span_id(call, part), parent.flags, parent.state)
    root = trace_id(call)
    is_sampled = int(root[16:], 16) < round(ratio * (1 << 64))
    return TraceContext(root, span_id(call, part), SAMPLED if is_sampled else 0)


def _hashed(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=size, person=b"trace").hexdigest()
