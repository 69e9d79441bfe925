"""`custom`: a call of whichever tool its parameters name, judged and recorded as such."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolError, ToolErrorClass, ToolExecutionError, ToolValidationError
from callgate.core.ids import call_id
from callgate.core.results import ErrorInfo, ToolResult
from callgate.core.tools import ToolContext, ToolOutput
from callgate.dispatch.contexts import CallContext

NAME = "custom"
Run = Callable[[ToolCall], Awaitable[ToolResult]]


async def call(input: dict[str, Any], context: ToolContext, run: Run) -> ToolOutput:
    name = input["name"]
    if name == NAME or not isinstance(context, CallContext):
        raise ToolValidationError("name: it must be that of another tool.", reason="unknown_tool")
    result = await run(
        msgspec.structs.replace(
            context.call,
            tool=name,
            arguments=input.get("parameters", {}),
            id=call_id(),
            external_id=None,
            tool_use_id=None,
            timeout_s=None,
        )
    )
    if result.error is not None:
        raise _failure(result.error)
    return ToolOutput(
        content=result.content,
        success=result.ok,
        value=result.value,
        metadata={"tool": result.tool, "call": result.call_id},
        files_modified=result.files_modified,
        command_executed=result.command_executed,
        truncated=result.truncated,
        diffs=result.diffs,
    )


def _failure(error: ErrorInfo) -> ToolError:
    if error.error_class is ToolErrorClass.NOT_FOUND:
        return ToolValidationError(f"name: {error.message}", reason="unknown_tool")
    failed = ToolExecutionError(error.message, reason=error.reason, details=error.details)
    failed.error_class = error.error_class
    return failed
