"""Encoding of records as lines of JSON, as OCSF, or as CSV. Pure.

OCSF is the Open Cybersecurity Schema Framework; a call is an event of API Activity, class 6003. The
call requests an operation (the tool) from a service (a source of tools). It has an actor, and a
policy allows or denies it: this is API Activity with the profile `security_control`. Process
Activity would fit only calls that start commands. `tests/corpus/ocsf` contains the published class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from callgate.audit.records import CallRecord, implied_end, line_hash
from callgate.core.ids import parse_traceparent
from callgate.core.version import __version__

OCSF_VERSION = "1.8.0"
CLASS = 6003
_ACTIVITIES = {
    None: (0, "Unknown"),
    "none": (2, "Read"),
    "read": (2, "Read"),
    "write": (3, "Update"),
}
_UNMAPPED = (
    "args", "args_hash", "result", "waited_ms", "side_effects", "capabilities", "confirmation_id",
    "answered_by", "sandbox", "changed", "turn_id", "tool_use_id", "external_id", "scope", "chain",
    "n", "prev",
)  # fmt: skip


def api_activity(record: CallRecord, home: str = "") -> dict[str, Any]:
    """Return the event of a record. `home` is the id of the log's home, if it is known."""
    known = record.side_effects in _ACTIVITIES
    activity, name = _ACTIVITIES[record.side_effects] if known else (99, str(record.side_effects))
    denied, failed = record.decision == "deny", record.error_class is not None
    high = record.reason == "effect_mismatch"
    severity = (4, "High") if high else (2, "Low") if denied else (1, "Informational")
    took = round(record.ms + record.waited_ms)
    event: dict[str, Any] = {
        "activity_id": activity,
        "activity_name": name,
        "category_uid": 6,
        "category_name": "Application Activity",
        "class_uid": CLASS,
        "class_name": "API Activity",
        "type_uid": CLASS * 100 + activity,
        "type_name": f"API Activity: {name}",
        "time": record.ts,
        "start_time": record.ts - took,
        "end_time": record.ts,
        "duration": took,
        "severity_id": severity[0],
        "severity": severity[1],
        "status_id": 2 if failed else 1,
        "status": "Failure" if failed else "Success",
        "action_id": 2 if denied else 1,
        "action": "Denied" if denied else "Allowed",
        "disposition_id": 2 if denied else 1,
        "disposition": "Blocked" if denied else "Allowed",
        "message": f"{record.tool}: {record.error_class or 'ok'}",
        "metadata": _metadata(record, home),
        "actor": _actor(record),
        "api": _api(record),
        "src_endpoint": {"name": record.caller, **({"instance_uid": home} if home else {})},
        "resources": [{"name": record.cwd, "type": "workspace"}],
        "unmapped": {
            field: value
            for field in _UNMAPPED
            if (value := getattr(record, field)) not in (None, "", (), 0)
        },
    }
    if failed:
        event["status_code"] = record.error_class
    if record.reason is not None:
        event["status_detail"] = record.reason
    if record.policy is not None:
        policy = {"name": record.policy, "is_applied": True}
        event["policy"] = policy
        event["authorizations"] = [{"decision": event["action"], "policy": policy}]
    trace = parse_traceparent(record.trace)
    if trace is not None:
        event["trace"] = {"uid": trace.trace_id}
    return event


def _metadata(record: CallRecord, home: str) -> dict[str, Any]:
    return {
        "version": OCSF_VERSION,
        "uid": record.id,
        "correlation_uid": record.session,
        "event_code": record.end or implied_end(record.error_class),
        "log_name": "audit",
        "profiles": ["security_control", *(["trace"] if record.trace else [])],
        "product": {"name": "callgate", "vendor_name": "callgate", "version": __version__},
        **({"tenant_uid": home} if home else {}),
    }


def _actor(record: CallRecord) -> dict[str, Any]:
    return {
        "user": {"name": record.principal or "local", "type_id": 0},
        "session": {"uid": record.session},
        "app_name": record.client or record.caller,
    }


def _api(record: CallRecord) -> dict[str, Any]:
    api: dict[str, Any] = {
        "operation": record.tool,
        "service": {"name": record.source or "callgate"},
        "request": {"uid": record.call_id},
    }
    if record.error_class is not None:
        api["response"] = {"error": record.error_class}
    return api


Format = Literal["jsonl", "ocsf", "csv"]
FORMATS: tuple[Format, ...] = ("jsonl", "ocsf", "csv")

COLUMNS = (
    "id", "ts", "caller", "principal", "client", "tool", "source", "side_effects", "capabilities",
    "decision", "policy", "confirmation_id", "answered_by", "error_class", "reason", "ms",
    "waited_ms", "call_id", "session", "turn_id", "external_id", "cwd", "sandbox", "args",
    "args_hash", "result", "trace", "changed",
)  # fmt: skip
"""Columns of CSV, in order."""
_SHORTENED = ("caller", "principal", "tool", "call_id", "session", "cwd")
_LONGEST = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FORMULA = re.compile(r"\A[=+\-@]")


class ExportRow(msgspec.Struct, frozen=True):
    """A record, ready for a sink."""

    id: str
    ts: int
    line: bytes
    """The line without its line end; it contains no other line end."""
    severity: int
    """Severity for syslog: 4 for denied, 5 for failed, else 6."""
    shorten: Callable[[], ExportRow] | None = None
    """Returns a short replacement for a sink with a size limit."""


class Encoding(msgspec.Struct, frozen=True):
    encode: Callable[[CallRecord, bytes, str], bytes]
    """Encodes a record, from the record, its raw line, and the id of its home."""
    media_type: str
    head: bytes = b""
    """The line before the first row."""


def encoding_of(format: Format) -> Encoding:
    return _ENCODINGS[format]


def make_row(encoding: Encoding, record: CallRecord, raw: bytes, home: str) -> ExportRow:
    severity = 4 if record.decision == "deny" else 5 if record.error_class is not None else 6
    shorten = partial(_shortened, encoding, record, raw, home, severity)
    return ExportRow(record.id, record.ts, encoding.encode(record, raw, home), severity, shorten)


def _shortened(
    encoding: Encoding, record: CallRecord, raw: bytes, home: str, severity: int
) -> ExportRow:
    """Return a short row of one or two thousand bytes: the record's id, its end and the hash of
    its line.
    """
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
    return ExportRow(record.id, record.ts, line, severity)


def _ocsf(record: CallRecord, raw: bytes, home: str) -> bytes:
    return json.dumps(api_activity(record, home), separators=(",", ":"), default=str).encode()


def _csv(record: CallRecord, raw: bytes, home: str) -> bytes:
    return ",".join(_cell(getattr(record, name)) for name in COLUMNS).encode("utf-8", "replace")


def _cell(value: Any) -> str:
    """Return a cell. A text that a spreadsheet would run as a formula gets an apostrophe, because
    its author may be anyone. Control characters are escaped.
    """
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
