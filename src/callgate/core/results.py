"""What comes back from a call, whatever happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from callgate.core.content import ContentBlock, FileDiff, NativeResult, TextBlock, ToolResultBlock
from callgate.core.errors import ToolError, ToolErrorClass, safe_message


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    error_class: ToolErrorClass = msgspec.field(name="class")
    message: str
    reason: str | None = None
    details: Any = None
    """Any JSON value, for programs."""
    user_visible: bool = True
    correlation_id: str | None = None
    """Finds the traceback in the log where the message hides it."""

    @classmethod
    def of(cls, error: ToolError, tool: str, correlation_id: str | None = None) -> ErrorInfo:
        return cls(
            error_class=error.error_class,
            message=error.message if error.is_user_visible else safe_message(error, tool),
            reason=error.reason,
            details=error.details,
            user_visible=error.is_user_visible,
            correlation_id=None if error.is_user_visible else correlation_id,
        )

    @property
    def detail_fields(self) -> Mapping[str, Any]:
        """The details, where they are an object."""
        return self.details if isinstance(self.details, Mapping) else {}


class Diagnostic(msgspec.Struct, frozen=True):
    """Something to note beside a result that is more than information."""

    message: str
    level: Literal["warn", "error"] = "warn"

    def __str__(self) -> str:
        return f"{self.level}: {self.message}"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` means: no error, and the tool did not report failure."""

    call_id: str
    tool: str
    ok: bool
    content: list[ContentBlock]
    """Never empty: an error shows its message, an empty success an empty text."""
    value: Any = None
    error: ErrorInfo | None = None
    diagnostics: tuple[str | Diagnostic, ...] = ()
    """What to note beside the result; a plain text is information."""
    meta: Mapping[str, Any] = {}
    files_modified: list[str] | None = None
    command_executed: str | None = None
    partial: bool = False
    """Work was stopped; the content holds what there was by then."""
    truncated: bool = False
    duration_ms: float = 0.0
    diffs: tuple[FileDiff, ...] = ()
    native: NativeResult | None = None
    """The content in the words of one provider, for its models."""

    @property
    def text(self) -> str:
        """All text blocks, joined."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextBlock))

    def block(self, tool_use_id: str) -> ToolResultBlock:
        """The same as a content block, for an agent loop."""
        return ToolResultBlock(
            tool_use_id=tool_use_id,
            content=self.content,
            is_error=not self.ok,
            duration_ms=self.duration_ms or msgspec.UNSET,
            diffs=self.diffs,
            native=self.native,
        )
