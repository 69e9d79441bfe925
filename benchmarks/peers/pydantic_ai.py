"""pydantic-ai: `ToolManager.handle_call`, as an agent's run step makes it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RunUsage

from benchmarks.cases import Case, Prepared


async def setup(case: Case, stack: AsyncExitStack) -> Prepared:
    context = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    toolset = FunctionToolset([case.function])
    manager = await ToolManager(toolset).for_run_step(context)
    part = ToolCallPart(case.function.__name__, case.arguments, tool_call_id="call_1")
    return Prepared(call=partial(manager.handle_call, part))
