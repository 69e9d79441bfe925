"""A record as lines of JSON, as OCSF, or as CSV. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from callgate.audit.records import CallRecord, line_hash
from callgate.export.ocsf import api_activity

Format = Literal["jsonl", "ocsf", "csv"]
FORMATS: tuple[Format, ...] = ("jsonl", "ocsf", "csv")

COLUMNS = (
    "id", "ts", "caller", "principal", "client", "tool", "source", "side_effects", "capabilities",
    "decision", "policy", "confirmation_id", "answered_by", "error_class", "reason", "ms",
    "waited_ms", "call_id", "session", "turn_id", "external_id", "cwd", "sandbox", "args",
    "args_hash", "result", "trace",
)  # fmt: skip
"""Of CSV, in their order."""
_SHORTENED = ("caller", "principal", "tool", "call_id", "session", "cwd")
_LONGEST = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FORMULA = re.compile(r"\A[=+\-@]")


class Row(msgspec.Struct, frozen=True):
    """A record, ready for a sink."""

    id: str
    ts: int
    line: bytes
    """Without its end; there is no other line end in it."""
    severity: int
    """Of syslog: 4 for what was denied, 5 for what failed, else 6."""
    shorten: Callable[[], Row] | None = None
    """Makes what stands for it at a sink that does not take one so large."""


class Encoding(msgspec.Struct, frozen=True):
    encode: Callable[[CallRecord, bytes, str], bytes]
    """The record, its raw line, and the id of its home."""
    media_type: str
    head: bytes = b""
    """The line before the first row."""


def encoding_of(format: Format) -> Encoding:
    return _ENCODINGS[format]


def make_row(encoding: Encoding, record: CallRecord, raw: bytes, home: str) -> Row:
    severity = 4 if record.decision == "deny" else 5 if record.error_class is not None else 6
    shorten = partial(_shortened, encoding, record, raw, home, severity)
    return Row(record.id, record.ts, encoding.encode(record, raw, home), severity, shorten)


def _shortened(encoding: Encoding, record: CallRecord, raw: bytes, home: str, severity: int) -> Row:
    """Which record it was, how it ended and the hash of its line, in a thousand bytes or two."""
    stub = CallRecord(
        id=record.id,
        ts=record.ts,
        decision=record.decision,
        args=f"left out: {len(raw)} bytes, too large for the sink; hash {line_hash(raw)}",
        chain=record.chain,
        n=record.n,
        prev=record.prev,
        error_class=record.error_class,
        **{name: getattr(record, name)[:_LONGEST] for name in _SHORTENED},
    )
    line = encoding.encode(stub, msgspec.json.encode(stub), home)
    return Row(record.id, record.ts, line, severity)


def _ocsf(record: CallRecord, raw: bytes, home: str) -> bytes:
    return json.dumps(api_activity(record, home), separators=(",", ":"), default=str).encode()


def _csv(record: CallRecord, raw: bytes, home: str) -> bytes:
    return ",".join(_cell(getattr(record, name)) for name in COLUMNS).encode("utf-8", "replace")


def _cell(value: Any) -> str:
    """What a spreadsheet would take for a formula begins with an apostrophe: anybody may have
    chosen the arguments of a call. A control character is written as an escape."""
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return str(value)
    text = " ".join(value) if isinstance(value, (list, tuple)) else str(value)
    text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    if _FORMULA.match(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if set(text) & set('",; ') else text


_ENCODINGS = {
    "jsonl": Encoding(lambda record, raw, home: raw, "application/x-ndjson"),
    "ocsf": Encoding(_ocsf, "application/x-ndjson"),
    "csv": Encoding(_csv, "text/csv; charset=utf-8", ",".join(COLUMNS).encode()),
}
