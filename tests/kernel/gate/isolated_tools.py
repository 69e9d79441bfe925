"""Sync functions as an author writes them, in a module that another process can import."""

from __future__ import annotations

import os
import time

from callgate import ToolContext, ToolPermissionDenied, error_result, tool


@tool(side_effects="none")
def process() -> int:
    """Say where it runs."""
    return os.getpid()


@tool(side_effects="none", isolate=False)
def here() -> int:
    """Say where it runs, in this process."""
    return os.getpid()


@tool(side_effects="none")
def nap(seconds: float) -> int:
    """Sleep through everything."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.05)
        except BaseException:  # noqa: S112 it does not want to stop
            continue
    return os.getpid()


@tool(side_effects="write")
def count(path: str, context: ToolContext) -> int:
    """Count the words of a file, and write the number beside it."""
    context.progress("counting", 0.5)
    words = len(context.workspace_files.read(path).split())
    context.workspace_files.write(f"{path}.count", str(words))
    return words


@tool(side_effects="none")
def fail(how: str) -> object:
    """Fail in one of several ways."""
    if how == "handled":
        return error_result("no paper", reason="empty")
    if how == "ours":
        raise ToolPermissionDenied("not yours", reason="mine")
    raise ValueError("a secret of the author")


@tool(side_effects="none")
def variable(name: str) -> str | None:
    """Read the environment."""
    return os.environ.get(name)
