"""Observation of third-party code: redacted tracebacks of its failures, and a log line per bypass.

A tool that opens a file directly bypasses the workspace boundary. That is permitted and logged: the
boundary applies to tools that use `workspace_files`, the sandbox to processes. Python cannot remove
an audit hook, so the first dispatcher installs it once.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.core.stores import StoreError
from callgate.redaction.texts import redact
from callgate.workspace.paths import within_wall

OUTCOME_UNKNOWN = "outcome_unknown"
"""Reason of a call whose server lost its session."""
UNKNOWN = (
    "Another server took over the session while the call ran. Whether the call took effect is not "
    "known: check before you repeat it."
)


def log_failure(
    log: logging.Logger, error: BaseException, message: str, *arguments: object
) -> None:
    """Log an error with a redacted traceback; the text of an exception may contain secrets."""
    text = redact("".join(traceback.format_exception(error)))
    log.error(message + "\n%s", *arguments, text)


def unkept(error: StoreError) -> ToolError:
    """Return the refusal of a call that the store could not record."""
    return ToolPermissionDenied(
        f"{error} Calls with effects are refused, because they cannot be recorded.",
        reason="store_unwritable",
    )


_log = logging.getLogger("callgate.raw_open")

watched: ContextVar[list[str] | None] = ContextVar("callgate_tool", default=None)
"""The tool that runs in this context, its session, then the paths that were logged already. An
empty name marks callgate's own code, whose opens are not logged."""
_installed = False
_OURS = (sys.prefix, sys.base_prefix, "/proc/", "/dev/null")
"""Prefixes that imports and process control open; they are not logged."""


def watch_opens() -> None:
    """Install the hook, which logs each path once that the tool in `watched` opens."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_on_audit)


@contextmanager
def our_own() -> Iterator[None]:
    """Mark opens inside this context as callgate's own, not the tool's."""
    tool = watched.get()
    token = watched.set(None if tool is None else ["", tool[1]])
    try:
        yield
    finally:
        watched.reset(token)


def is_nested(session_id: str) -> bool:
    """Whether a tool of this session already runs in this context."""
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
