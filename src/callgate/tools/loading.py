"""Tools whose code is imported by their first call: a table has their definitions.

    Row (definition, function, preview) -> LoadedTool -> module.function(input, context, shared)

Such a tool costs only its row, which knows how to import its function.

`custom` is a call of the tool in its parameters, checked and recorded as a call of that tool. Some
models were trained on it. Other models do not see it, because it adds nothing for them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from callgate.core.calls import ErrorInfo, ToolCall, ToolResult
from callgate.core.effects import SideEffects
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolErrorClass,
    ToolExecutionError,
    ToolValidationError,
)
from callgate.core.ids import call_id
from callgate.core.local.environment import Environment
from callgate.core.tasks import start_task
from callgate.core.tools import Preview, ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.dispatch.environments import CallContext
from callgate.dispatch.foreign_code import watched

Load = Callable[[], Callable[..., Any]]
"""Imports the module of a function and returns the function."""


class Row(msgspec.Struct, frozen=True):
    definition: ToolDefinition
    function: Load
    """Loads an `async (input, context, shared) -> ToolOutput`."""
    preview: Load | None = None
    """Loads a `(input, environment, shared) -> Preview | str | None`, which may be async."""


Function = Callable[[dict[str, Any], ToolContext, Any], Coroutine[Any, Any, ToolOutput]]


def factories(rows: Iterable[Row], shared: Any) -> Iterator[ToolFactory]:
    """Yield one factory for each row; `shared` is the runtime data for its function."""
    for row in rows:
        yield partial(LoadedTool, row, shared)


class LoadedTool:
    def __init__(self, row: Row, shared: Any) -> None:
        self._row, self._shared = row, shared
        self._work: asyncio.Task[ToolOutput] | None = None
        self._at_work = False
        self._stopped = False

    @property
    def definition(self) -> ToolDefinition:
        return self._row.definition

    async def preview(
        self, input: dict[str, Any], environment: Environment
    ) -> Preview | str | None:
        if self._row.preview is None:
            return None
        preview: Any = self._row.preview()(input, environment, self._shared)
        if inspect.isawaitable(preview):
            preview = await preview
        shown: Preview | str | None = preview
        return shown

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        if context.cancel_event.is_set():
            raise ToolCancelled
        watched.set(["", context.session_id])  # opens from here on are callgate's own
        # In a separate task: it ends immediately when cancelled, and a library that cancels its own
        # connection attempt does not look like a caller who disconnected.
        work = self._begin(input, context)
        self._work = start_task(work)
        self._at_work = True
        try:
            output = await self._work
            self._at_work = False
            return output
        except asyncio.CancelledError:
            if self._stopped:
                raise ToolCancelled from None
            raise

    def _begin(
        self, input: dict[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, ToolOutput]:
        function: Function = self._row.function()
        return function(input, context, self._shared)

    @property
    def stoppable(self) -> bool:
        """False while another system may be executing the request."""
        return not (self._at_work and self.definition.side_effects is SideEffects.NETWORK)

    async def cancel(self) -> bool:
        if self._work is None:
            return False
        self._stopped = True
        return self._work.cancel()


NAME = "custom"
Run = Callable[[ToolCall], Awaitable[ToolResult]]


async def call(input: dict[str, Any], context: ToolContext, run: Run) -> ToolOutput:
    name = input["name"]
    if name == NAME or not isinstance(context, CallContext):
        raise ToolValidationError("name: it must name another tool.", reason="unknown_tool")
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


CUSTOM: tuple[Row, ...] = (
    Row(
        ToolDefinition(
            name="custom",
            description="Call the tool of that name with these parameters.",
            input_schema={
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 128},
                    "parameters": {"type": "object", "additionalProperties": True},
                },
                "required": ["name"],
            },
            # It has no effect: the inner call is decided separately.
            side_effects=SideEffects.NONE,
            requires_workspace=False,
            path_params=(),
            argument_aliases={"arguments": "parameters", "input": "parameters"},
            timeout_s=3_600.0,  # the other tool's own limit applies
            source="builtin",
        ),
        lambda: call,
    ),
)
