"""The floor: the function itself, awaited with its arguments, nothing checked."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec

from benchmarks.cases import Case, Order, Prepared, count_pieces


async def setup(case: Case, stack: AsyncExitStack) -> Prepared:
    arguments: dict[str, Any] = case.arguments
    if case.function is count_pieces:
        arguments = {"order": msgspec.convert(arguments["order"], Order)}
    return Prepared(call=partial(case.function, **arguments))
