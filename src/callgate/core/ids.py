"""Identifiers that sort by creation time, and the trace context of a call. Pure.

A ULID has 10 characters of time. Here, 10 random characters (drawn once per process) and a counter
of 6 characters follow. The counter starts at a random number, because the dashboard and the command
line shorten an id to its end. Ids are not secrets: knowing an id permits nothing.

Trace context of a call, in the format of W3C Trace Context. Pure.

    caller's span --traceparent--> execute_tool (span_id of the call) --> run --> child processes

The ids of callgate's spans are derived from the id of the call. So the code that starts a process
for a call and the later exporter of its spans use the same ids without communication.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from time import time_ns
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


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TWO_CHARACTERS = [a + b for a in _ALPHABET for b in _ALPHABET]
_COUNTER_BITS = 30

CALL_ID = re.compile(r"tu_[0-9A-HJKMNP-TV-Z]{26}\Z")
EXTERNAL_ID = re.compile(r"[\x20-\x7e]{1,128}\Z")


def _encode(number: int) -> str:
    """Encode 50 bits in ten characters."""
    return (
        _TWO_CHARACTERS[(number >> 40) & 1023]
        + _TWO_CHARACTERS[(number >> 30) & 1023]
        + _TWO_CHARACTERS[(number >> 20) & 1023]
        + _TWO_CHARACTERS[(number >> 10) & 1023]
        + _TWO_CHARACTERS[number & 1023]
    )


def _ulids() -> Iterator[str]:
    """Yield ULIDs without end, each greater than the one before, even if the clock is set back."""
    latest, prefix, salt = 0, "", _encode(int.from_bytes(os.urandom(7)))
    count = int.from_bytes(os.urandom(4)) >> 3  # in the lower half: the counter does not end soon
    while True:
        millisecond = time_ns() // 1_000_000
        if millisecond > latest or not count & 1023:
            latest = max(millisecond, latest)
            if count >> _COUNTER_BITS:  # a new salt, so that the counter may restart
                salt, latest, count = _encode(int.from_bytes(os.urandom(7))), latest + 1, 0
            high = _TWO_CHARACTERS[count >> 20] + _TWO_CHARACTERS[(count >> 10) & 1023]
            prefix = _encode(latest) + salt + high
        yield prefix + _TWO_CHARACTERS[count & 1023]
        count += 1


class _Source:
    """The ULIDs of this process; a forked child has a separate sequence."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.next = _ulids().__next__


_source = _Source()
os.register_at_fork(after_in_child=_source.renew)


def ulid() -> str:
    """Return a new ULID. Thread-safe."""
    while True:
        try:
            return _source.next()
        except ValueError:  # another thread is in the generator
            continue


def made_at(id: str) -> float:
    """Return the creation time of an id in seconds since 1970, or 0 if it contains no time."""
    text = id.rpartition("_")[2][:10]
    if len(text) < 10 or any(each not in _ALPHABET for each in text):
        return 0.0
    number = 0
    for each in text:
        number = number * 32 + _ALPHABET.index(each)
    return number / 1000


def call_id() -> str:
    try:
        return "tu_" + _source.next()
    except ValueError:  # another thread is in the generator
        return "tu_" + ulid()


def session_id() -> str:
    return "sess_" + ulid()


def owner_id(home: str | None = None) -> str:
    """Return a unique name for a process, as the owner of sessions and calls.

    `home` is the id of its home, if several homes share a store.
    """
    return f"own_{ulid()}" if home is None else f"own_{ulid()}_{home}"


def home_of(owner: str) -> str | None:
    """Return the id of the home in an owner's name, if there is one."""
    return owner[31:] or None if owner[:4] == "own_" and owner[30:31] == "_" else None


def turn_id() -> str:
    return "turn_" + ulid()


def is_call_id(text: str) -> bool:
    """Whether callgate generated the id; any other id is stored as an external id."""
    return CALL_ID.match(text) is not None
