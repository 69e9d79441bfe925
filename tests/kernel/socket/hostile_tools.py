"""The tools that the hostile corpus knows."""

from __future__ import annotations

import asyncio

from callgate import tool


@tool(side_effects="none")
async def echo(text: str) -> str:
    """Give it back."""
    return text


@tool(side_effects="none")
async def slow() -> str:
    """Take a while."""
    await asyncio.sleep(1.0)
    return "slow"


@tool(side_effects="none")
async def stuck() -> str:
    """Never end."""
    await asyncio.Event().wait()
    return ""
