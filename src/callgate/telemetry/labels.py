"""Words by which calls are counted: few of each, whatever callers write. Pure."""

from __future__ import annotations

from callgate.audit.records import CallRecord
from callgate.core.errors import ToolErrorClass

UNKNOWN = "unknown"
"""The tool of a call of a name that is none's: anybody may choose those."""


def tool_label(record: CallRecord) -> str:
    return UNKNOWN if record.source is None else record.tool


def outcome(record: CallRecord) -> str:
    return "ok" if record.error_class is None else record.error_class


def question_outcome(record: CallRecord) -> str | None:
    """How the question about a call was closed; None: there was none."""
    if record.confirmation_id is None:
        return None
    if record.error_class == ToolErrorClass.CONFIRMATION_TIMEOUT:
        return "timeout"
    if record.called is not None:
        return "allowed"
    return "denied" if record.error_class == ToolErrorClass.USER_DENIED else "withdrawn"
