"""A call as an event of the Open Cybersecurity Schema Framework: API Activity, class 6003. Pure.

A call asks a service (a source of tools) for an operation (the tool), made by an actor, and is
allowed or denied by a policy: that is API Activity with the profile `security_control`. Process
Activity would fit calls that start commands alone. `tests/corpus/ocsf` has the class as published.
"""

from __future__ import annotations

from typing import Any

from callgate.audit.records import CallRecord, implied_end
from callgate.core.text.traces import parse_traceparent
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
    "answered_by", "sandbox", "turn_id", "tool_use_id", "external_id", "scope", "chain", "n",
    "prev",
)  # fmt: skip


def api_activity(record: CallRecord, home: str = "") -> dict[str, Any]:
    """`home`: the id of the home whose log has the record, where that is known."""
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
