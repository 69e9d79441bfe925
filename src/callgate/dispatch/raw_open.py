"""A log line where a tool opens a file around the workspace wall.

It is permitted, and logged: the wall holds tools that use `workspace_files`, the
sandbox holds processes. This says what the wall did not see. The interpreter's audit hook
cannot be removed, so it is installed once, when the first dispatcher is made.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from callgate.workspace.paths import within_wall

_log = logging.getLogger("callgate.raw_open")

watched: ContextVar[list[str] | None] = ContextVar("callgate_tool", default=None)
"""What runs in this context: a tool, its session, then the paths that were logged already. A tool
without a name is our own code on behalf of one: what it opens is not logged."""
_installed = False
_OURS = (sys.prefix, sys.base_prefix, "/proc/", "/dev/null")
"""Imports and process control open these all the time; no tool means its workspace by them."""


def watch_opens() -> None:
    """Install the hook; from then on `watched` says whose opens are logged, each path once."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_on_audit)


@contextmanager
def our_own() -> Iterator[None]:
    """What is opened in here on behalf of a tool, we open."""
    tool = watched.get()
    token = watched.set(None if tool is None else ["", tool[1]])
    try:
        yield
    finally:
        watched.reset(token)


def is_nested(session_id: str) -> bool:
    """Whether a tool of this session runs in this context already."""
    tool = watched.get()
    return tool is not None and tool[1] == session_id


def _on_audit(event: str, args: tuple[Any, ...]) -> None:
    if event != "open":
        return
    tool = watched.get()
    if tool is None or not tool[0] or within_wall():
        return
    path = args[0]
    if not isinstance(path, str | bytes):
        return
    text = path if isinstance(path, str) else path.decode("utf-8", "replace")
    if text in tool or text.startswith(_OURS) or text.endswith((".py", ".pyc", ".so")):
        return
    tool.append(text)
    _log.warning("tool %s opened %r directly, not through workspace_files", tool[0], text)
