"""Tools whose code is loaded when they are called: a table has their definitions.

    Row (definition, function, preview) -> LoadedTool -> module.function(input, context, shared)

To have such a tool costs its row, which says how its function is loaded.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from callgate.core.effects import SideEffects
from callgate.core.environment import Environment
from callgate.core.errors import ToolCancelled
from callgate.core.task_sets import start_task
from callgate.core.tools import Preview, ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.dispatch.raw_open import watched

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
    """One for each row; `shared` is what the functions get of the runtime."""
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
        watched.set(["", context.session_id])  # what is opened from here on, we open
        # In a task of its own: it ends at once when it is told to, and what a library cancels of
        # itself while it connects does not look like a caller who went away.
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
        """False while somebody elsewhere may be doing what they were asked to."""
        return not (self._at_work and self.definition.side_effects is SideEffects.NETWORK)

    async def cancel(self) -> bool:
        if self._work is None:
            return False
        self._stopped = True
        return self._work.cancel()
