"""One ended call as the audit log keeps it: one line of JSON, redacted, part of a chain."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()


class CallRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of the log, as it is written and read. Its texts are redacted by who fills it."""

    id: str
    ts: int
    """Milliseconds since 1970."""
    caller: str
    tool: str
    decision: str
    """`deny` for what policy, a person or nobody's answer refused, else `allow`."""
    call_id: str
    session: str
    cwd: str
    args: str
    """Summary of the arguments."""
    args_hash: str | None = None
    result: str = ""
    """The beginning of what the caller was shown."""
    ms: float = 0.0
    error_class: str | None = None
    reason: str | None = None
    side_effects: str | None = None
    capabilities: tuple[str, ...] = ()
    source: str | None = None
    policy: str | None = None
    """What decided, and where it stands."""
    confirmation_id: str | None = None
    answered_by: str | None = None
    turn_id: str | None = None
    external_id: str | None = None
    scope: Mapping[str, str] | None = None
    chain: str = ""
    n: int = 0
    """Its number in its chain, from 1; given by the log, as the fields around it are."""
    prev: str = ""
    """The hash of the line before it in the chain; of the last line in the file for the first."""


def encode(record: CallRecord) -> bytes:
    """The line of a record, without its end."""
    try:
        encoded = _encoder.encode(record)
    except UnicodeEncodeError:  # lone surrogates are written as the escapes they came from
        encoded = _encoder.encode(_plain(record))
    return encoded if encoded.isascii() and b"\x7f" not in encoded else _escape(encoded)


def line_hash(line: bytes) -> str:
    return sha256(line).hexdigest()


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


def _plain(record: CallRecord) -> CallRecord:
    fields: dict[str, Any] = {
        name: _encodable(getattr(record, name)) for name in record.__struct_fields__
    }
    return CallRecord(**{**fields, "scope": None})


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
