"""Effects of a command that come later: on a server after a push, or by another user who runs a
set-uid file. Files that programs of this machine execute later are found by
`workspace/executed_later`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from callgate.sandbox.dry_runs.manifests import Observed, sendable
from callgate.workspace.protected import is_pipeline


def remarks(observed: Observed, workspace: str) -> list[str]:
    """For a result, one line each, with every path. Blocks."""
    workspace = os.path.realpath(workspace)
    pipelines = filter(is_pipeline, observed.deleted)
    lines = [
        _line("deleted, and ran on a server after a push", map(sendable, _outermost(pipelines))),
        _line(
            "set-uid or set-gid: other users run it with your rights",
            map(sendable, _set_id(observed, workspace)),
        ),
    ]
    return [line for line in lines if line]


def _set_id(observed: Observed, workspace: str) -> Iterator[str]:
    """Files that other users run as us. Commands on Linux cannot set these bits (`seccomp`)."""
    for path in (*observed.created, *observed.changed):
        try:
            mode = os.lstat(os.path.join(workspace, path)).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            yield path


def _line(title: str, paths: Iterable[str]) -> str:
    named = ", ".join(paths)
    return f"[{title}: {named}]" if named else ""


def _outermost(paths: Iterable[str]) -> list[str]:
    """Sorted, without paths that lie in a listed directory."""
    found: list[str] = []
    for path in sorted(paths):
        if not (found and path.startswith(f"{found[-1]}/")):
            found.append(path)
    return found
