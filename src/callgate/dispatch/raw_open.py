"""A log line where a tool opens a file around the workspace wall.

It is permitted (seed 004 test 12): the wall holds tools that use `workspace_files`, the
sandbox holds processes. This says what the wall did not see. The interpreter's audit hook
cannot be removed, so it is installed once, when the first tool runs.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar, Token
from typing import Any

from callgate.workspace.paths import within_wall

_log = logging.getLogger("callgate.raw_open")

_Watched = tuple[str, set[str]]
"""A tool's name and the paths that were logged already."""

_tool: ContextVar[_Watched | None] = ContextVar("callgate_tool", default=None)
_installed = False
_OURS = (sys.prefix, sys.base_prefix)
"""Imports read files all the time; they are not what a tool does to a workspace."""


def watch_opens(tool: str) -> Token[_Watched | None]:
    """While a tool runs in this context, log each path it opens by itself, once."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_on_audit)
    return _tool.set((tool, set()))


def stop_watching(token: Token[_Watched | None]) -> None:
    _tool.reset(token)


def _on_audit(event: str, args: tuple[Any, ...]) -> None:
    if event != "open":
        return
    watched = _tool.get()
    if watched is None or within_wall():
        return
    path = args[0]
    if not isinstance(path, str | bytes):
        return
    text = path if isinstance(path, str) else path.decode("utf-8", "replace")
    name, seen = watched
    if text in seen or text.startswith(_OURS) or text.endswith((".py", ".pyc", ".so")):
        return
    seen.add(text)
    _log.warning("tool %s opened %r directly, not through workspace_files", name, text)


