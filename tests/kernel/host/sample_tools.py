"""Tools that a host under test runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextvars import ContextVar
from functools import reduce
from typing import Any

from callgate import ToolContext, ToolPermissionDenied, error_result, ok_result, tool

REMEMBERED: ContextVar[str] = ContextVar("remembered", default="nothing")


@tool(side_effects="none")
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


@tool(side_effects="none")
async def later(context: ToolContext) -> str:
    """Wait until it is cancelled."""
    context.progress("waiting")
    try:
        await asyncio.Event().wait()
    finally:
        context.output(f"cancelled {context.cancel_event.is_set()}")
    return ""


@tool(side_effects="none")
async def cooperative(context: ToolContext) -> str:
    """Give a result although it is cancelled."""
    context.progress("waiting")
    try:
        await context.cancel_event.wait()
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    return "half of it"


@tool(side_effects="none")
def stuck(context: ToolContext) -> None:
    """Never end."""
    context.progress("stuck")
    threading.Event().wait()


@tool(side_effects="none")
def until_read(path: str, context: ToolContext) -> str:
    """Wait for the runtime."""
    return context.workspace_files.read(path)


@tool(side_effects="none")
def wrapper(context: ToolContext) -> Any:
    """A sync function that gives an awaitable."""
    return later.function(context)  # type: ignore[arg-type]


@tool(side_effects="none")
def chatty(context: ToolContext) -> None:
    """Say something in every way there is."""
    context.progress("half", 0.5)
    context.output("text")
    context.output("err\n", "stderr")
    context.logger.warning("careful %d", 1)
    context.logger.debug("not said")


@tool(side_effects="none")
async def flood(count: int, context: ToolContext) -> int:
    """Say much."""
    for number in range(count):
        context.output(str(number))
    return count


@tool(side_effects="none")
def where(context: ToolContext) -> dict[str, Any]:
    """Where the call comes from."""
    return {
        "session_id": context.session_id,
        "turn_id": context.turn_id,
        "tool_use_id": context.tool_use_id,
        "workspace_path": context.workspace_path,
        "scope": dict(context.scope or {}),
        "root": context.workspace_files.workspace_root,
    }


@tool(side_effects="write")
def all_files(context: ToolContext) -> list[Any]:
    """Use the whole file API."""
    files = context.workspace_files
    return [
        files.read("a"),
        list(files.read_bytes("b")),
        files.write("c", "x"),
        files.write_bytes("d", b"\0\1"),
        files.append("e", "y"),
        files.exists("f"),
        files.list("."),
        files.delete("g"),
        files.patch("h", "1", "2"),
        context.artifact("log.txt"),
    ]


@tool(side_effects="read")
async def read_async(path: str, context: ToolContext) -> str:
    """Read in the loop."""
    return context.workspace_files.read(path)


@tool(side_effects="none")
def fails(how: str) -> Any:
    """Fail."""
    match how:
        case "denied":
            raise ToolPermissionDenied("not this", reason="mine", details={"a": 1})
        case "secret":
            raise RuntimeError("the password is 1234")
        case "exit":
            sys.exit(3)
        case "stop":
            raise StopIteration
        case "nan":
            return float("nan")
        case "deep":
            return reduce(lambda inner, _: [inner], range(100), 0)
        case "itself":
            return error_result("it did not work", reason="so")
    return ok_result(1, meta={"m": 2}, files_modified=["a.txt"])


@tool(side_effects="none")
def prints() -> str:
    """Make noise on stdout, at every level."""
    print("printed")
    sys.stdout.write("written\n")
    os.write(1, b"raw\n")
    subprocess.run(["echo", "child"], check=True)
    return sys.stdin.read()


@tool(side_effects="none")
def thread() -> bool:
    """Whether it is the main one."""
    return threading.current_thread() is threading.main_thread()


@tool(side_effects="none")
def remember(what: str) -> str:
    """Set a context variable; what it was before."""
    before = REMEMBERED.get()
    REMEMBERED.set(what)
    return before


@tool(side_effects="none")
def late(context: ToolContext) -> None:
    """Go on speaking after the end."""
    thread = threading.Thread(target=lambda: [context.output("late") for _ in range(10_000)])
    thread.start()
