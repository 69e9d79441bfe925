"""Stage 3: do the paths among the arguments stay inside the workspace?

This check lets an escaping call fail before anyone is asked, and tells the later stages
which places a call touches. It is not the wall: that is `workspace.files`, which checks
again on the descriptor it opened, because a link may change in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied, WorkspaceEscapeError
from callgate.core.resolved_paths import ResolvedPath
from callgate.dispatch.registry import Registered

Locate = Callable[[str], ResolvedPath]


def confine(
    arguments: dict[str, Any],
    tool: Registered,
    locate: Locate,
    writable: Callable[[ResolvedPath], bool],
) -> tuple[ResolvedPath, ...]:
    """The places that the path arguments name; raises where one may not be touched."""
    if not tool.path_params:
        return ()
    resolved_paths = tuple(locate(path) for path in _paths(arguments, tool.path_params))
    if tool.effect is SideEffects.WRITE:
        for resolved in resolved_paths:
            _check_writable(resolved, writable)
    return resolved_paths


def _check_writable(resolved: ResolvedPath, writable: Callable[[ResolvedPath], bool]) -> None:
    if not resolved.writable:
        raise ToolPermissionDenied(
            f"Path {resolved.given!r} lies in a directory that is open for reading only.",
            reason="read_only_root",
        )
    if not writable(resolved):
        raise WorkspaceEscapeError(
            f"Path {resolved.given!r} is protected: what is written there runs later by itself. "
            "A rule that names the path can allow it.",
            reason="protected_path",
        )


def _paths(arguments: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (each for each in value if isinstance(each, str))
