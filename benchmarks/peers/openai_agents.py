"""openai-agents: `invoke_function_tool`, which takes the arguments as a model's JSON text."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from functools import partial

from agents import function_tool
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext

from benchmarks.cases import Case, Prepared


async def setup(case: Case, stack: AsyncExitStack) -> Prepared:
    made = function_tool(case.function)
    text = json.dumps(case.arguments)
    # A run makes a context for each call; one for all gives the benefit of the doubt.
    context = ToolContext(
        context=None, tool_name=made.name, tool_call_id="call_1", tool_arguments=text
    )
    call = partial(invoke_function_tool, function_tool=made, context=context, arguments=text)
    return Prepared(call=call)
