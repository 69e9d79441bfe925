"""A contestant that is right about one case only."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.cases import Case, Prepared


async def _answer() -> int:
    return 42


async def setup(case: Case, stack: AsyncExitStack) -> Prepared:
    return Prepared(call=_answer)
