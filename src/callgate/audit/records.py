"""One ended call as the audit log keeps it: one line of JSON, redacted, part of a chain."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from callgate.audit.redaction import redact
from callgate.audit.summaries import summarize, summarize_text

_encoder = msgspec.json.Encoder()


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the dispatcher knows of a call when it has ended. Not yet redacted."""

    audit_id: str
    ts_ms: int
    call_id: str
    external_id: str | None
    session_id: str
    turn_id: str | None
    caller: str
    tool: str
    source: str | None
    capabilities: tuple[str, ...]
    side_effects: str | None
    decision: Literal["allow", "deny"]
    policy_reason: str | None
    """Which rule decided, and where it stands."""
    confirmation_id: str | None
    answered_by: str | None
    error_class: str | None
    reason: str | None
    cwd: str
    scope: Mapping[str, str] | None
    arguments: Any
    args_hash: str | None
    result: str
    duration_ms: float


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the log, as it is written and read."""

    id: str
    ts: int
    """Milliseconds since 1970."""
    caller: str
    tool: str
    decision: str
    call_id: str
    session: str
    cwd: str
    args: str
    """Summary of the arguments."""
    args_hash: str | None = None
    result: str = ""
    ms: float = 0.0
    error_class: str | None = None
    reason: str | None = None
    side_effects: str | None = None
    capabilities: tuple[str, ...] = ()
    source: str | None = None
    policy: str | None = None
    confirmation_id: str | None = None
    answered_by: str | None = None
    turn_id: str | None = None
    external_id: str | None = None
    scope: Mapping[str, str] | None = None
    chain: str = ""
    n: int = 0
    """Its number in its chain, from 1."""
    prev: str = ""
    """The hash of the line before it in the chain; of the last line in the file for the first."""


def encode(record: CallRecord, chain: str, n: int, prev: str) -> bytes:
    """The line of a record, without its end."""
    line = Line(
        id=record.audit_id,
        ts=record.ts_ms,
        caller=record.caller,
        tool=record.tool,
        decision=record.decision,
        call_id=record.call_id,
        session=record.session_id,
        cwd=record.cwd,
        args=summarize(record.arguments),
        args_hash=record.args_hash,
        result=summarize_text(record.result),
        ms=record.duration_ms,
        error_class=record.error_class,
        reason=record.reason,
        side_effects=record.side_effects,
        capabilities=record.capabilities,
        source=record.source,
        policy=record.policy_reason,
        confirmation_id=record.confirmation_id,
        answered_by=record.answered_by,
        turn_id=record.turn_id,
        external_id=None if record.external_id is None else redact(record.external_id),
        scope=record.scope,
        chain=chain,
        n=n,
        prev=prev,
    )
    try:
        encoded = _encoder.encode(line)
    except UnicodeEncodeError:  # lone surrogates are written as the escapes they came from
        encoded = _encoder.encode(_plain(line))
    return encoded if encoded.isascii() and b"\x7f" not in encoded else _escape(encoded)


def line_hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _escape(encoded: bytes) -> bytes:
    """Some readers end a line at characters that JSON leaves alone."""
    for raw, escaped in (
        (b"\x7f", b"\\u007f"),
        (b"\xc2\x85", b"\\u0085"),
        (b"\xe2\x80\xa8", b"\\u2028"),
        (b"\xe2\x80\xa9", b"\\u2029"),
    ):
        encoded = encoded.replace(raw, escaped)
    return encoded


def _plain(line: Line) -> Line:
    fields: dict[str, Any] = {
        name: _encodable(getattr(line, name)) for name in line.__struct_fields__
    }
    return Line(**{**fields, "scope": None})


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
