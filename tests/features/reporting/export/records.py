"""Records for the tests of exports, and a log that has them."""

from __future__ import annotations

from typing import Any

from callgate.audit.log import AuditLog
from callgate.audit.records import CallRecord
from callgate.core.ids import ulid


def record(number: int, **more: Any) -> CallRecord:
    fields: dict[str, Any] = {
        "id": f"audit_{ulid()}",
        "ts": 1_700_000_000_000 + number,
        "caller": "cli",
        "principal": "local",
        "tool": "read_file",
        "decision": "allow",
        "call_id": f"tu_{number}",
        "session": "sess_1",
        "cwd": "/w",
        "args": '{"path":"a.txt"}',
    }
    return CallRecord(**(fields | more))


def write(path: str, records: list[CallRecord], max_bytes: int = 64 << 20, keep: int = 100) -> None:
    log = AuditLog(path, max_bytes=max_bytes, keep=keep)
    for each in records:
        log.append(each)
    log.close()
