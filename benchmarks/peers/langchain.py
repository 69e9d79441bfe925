"""langchain-core: `ainvoke` of a structured tool."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from langchain_core.tools import StructuredTool

from benchmarks.cases import Case, Prepared


async def setup(case: Case, stack: AsyncExitStack) -> Prepared:
    made = StructuredTool.from_function(coroutine=case.function)
    return Prepared(call=partial(made.ainvoke, case.arguments))
