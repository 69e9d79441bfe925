"""A workflow of DBOS with one step, on a PostgreSQL database.

python benchmarks/engines/dbos_calls.py URL COUNT AT_ONCE
"""

from __future__ import annotations

import asyncio
import sys

from callers import ANSWER, NAME, measure
from dbos import DBOS

URL, COUNT, AT_ONCE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
DBOS(config={"name": NAME, "system_database_url": URL, "log_level": "ERROR"})


@DBOS.step()
async def note(text: str) -> str:
    return ANSWER


@DBOS.workflow()
async def call(number: int) -> str:
    return await note("x")


async def main() -> float:
    DBOS.launch()
    try:
        return await measure(call, COUNT, AT_ONCE)
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    print(asyncio.run(main()))
