"""Effects of a command that come later: on a server after a push, by an unfinished rebase, or by
another user who runs a set-uid file. Files that programs of this machine execute later are found
by `workspace/executed_later`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from callgate.sandbox.dry_runs.manifests import Observed, sendable
from callgate.workspace.git.layout import REBASES
from callgate.workspace.protected import is_pipeline

_SHOWN = 200
_LARGEST = 1 << 20


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
        *_rebases(observed, workspace),
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


def _in_git(path: str) -> Iterator[tuple[str, str]]:
    """The repository's directory, and a path in it. A repository in a repository is another one."""
    names = path.split("/")
    if ".git" in names[:-1]:
        at = len(names) - 1 - names[::-1].index(".git", 0 if names[-1] != ".git" else 1)
        yield "/".join(names[: at + 1]), "/".join(names[at + 1 :])


def _outermost(paths: Iterable[str]) -> list[str]:
    """Sorted, without paths that lie in a listed directory."""
    found: list[str] = []
    for path in sorted(paths):
        if not (found and path.startswith(f"{found[-1]}/")):
            found.append(path)
    return found


def _rebases(observed: Observed, workspace: str) -> Iterator[str]:
    """A rebase that the command began or changed, and did not finish: what continuing it runs."""
    states = {
        f"{directory}/{inside.split('/')[0]}"
        for path in (*observed.created, *observed.changed)
        for directory, inside in _in_git(path)
        if inside.split("/")[0] in REBASES
    }
    for state in sorted(states):
        state_path = os.path.join(workspace, state)
        if os.path.isdir(state_path):
            todo = _text(os.path.join(state_path, "git-rebase-todo")).splitlines()
            runs = [line for line in todo if line.lstrip().split(" ")[0] in ("x", "exec")]
            consequence = (
                f"; continuing it runs: {sendable('; '.join(runs))[:_SHOWN]}" if runs else ""
            )
            yield f"[a rebase is left unfinished: {sendable(state)}{consequence}]"


def _text(path: str) -> str:
    if os.path.realpath(path) != path:  # a link may lead to what is nobody's business
        return ""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_LARGEST) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
    except OSError:
        return ""
