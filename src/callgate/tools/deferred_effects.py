"""What a command left that runs later: by itself, by the next git, or on a server after a push.

A command cannot touch what is there of this, but it may add to it, or begin a repository of its
own. Whoever reads the result should know.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from callgate.sandbox.dry_runs.manifests import Observed, sendable
from callgate.workspace.git.layout import REBASES, git_writes
from callgate.workspace.git.protected_repositories import is_bare, settings
from callgate.workspace.protected import is_pipeline, runs_here

_NAMED = 10
_SHOWN = 200
_LARGEST = 1 << 20
_USUAL = frozenset(
    {
        "core.repositoryformatversion",
        "core.filemode",
        "core.bare",
        "core.logallrefupdates",
        "core.ignorecase",
        "core.precomposeunicode",
        "core.symlinks",
        "core.worktree",
        "remote.url",
        "remote.fetch",
        "branch.remote",
        "branch.merge",
        "branch.rebase",
        "submodule.url",
        "submodule.active",
        "extensions.objectformat",
        "user.name",
        "user.email",
    }
)
"""What `git init` and `git clone` write by themselves, and what runs nothing."""


def remarks(observed: Observed, workspace: str) -> list[str]:
    """For a result, one line each. Blocks."""
    workspace = os.path.realpath(workspace)
    bare = _bare_repositories(observed, workspace)
    created = [*_outermost(p for p in observed.created if _runs_later(p, workspace)), *bare]
    changed = _outermost(path for path in observed.changed if _runs_later(path, workspace))
    pipelines = filter(is_pipeline, (*observed.created, *observed.changed, *observed.deleted))
    lines = [
        _line(
            "created, and may run later by themselves",
            (_described(path, workspace) for path in created),
        ),
        _line("changed, and may run later by themselves", map(sendable, changed)),
        _line("changed, and runs on a server after a push", map(sendable, _outermost(pipelines))),
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
    found = list(paths)
    more = len(found) - _NAMED
    omitted = f" and {more} more" if more > 0 else ""
    return f"[{title}: {', '.join(found[:_NAMED])}{omitted}]" if found else ""


def _runs_later(path: str, workspace: str) -> bool:
    """All under names that programs act upon, but for what git writes in a repository."""
    if not runs_here(path):
        return False
    for _, inside in _in_git(path):
        if git_writes(inside):
            names = inside.split("/")
            leads_away = names[0] == "worktrees" and names[-1] == "commondir"
            return leads_away and _text(os.path.join(workspace, path)).strip() != "../.."
    return True


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


def _bare_repositories(observed: Observed, workspace: str) -> list[str]:
    heads = (path.removesuffix("HEAD").rstrip("/") for path in observed.created if _is_head(path))
    new = set(observed.created)
    return [
        path
        for path in heads
        if not runs_here(path)
        and f"{path}/objects" in new
        and is_bare(os.path.join(workspace, path), {"HEAD", "objects", "refs"})
    ]


def _is_head(path: str) -> bool:
    return path.endswith("/HEAD")


def _described(path: str, workspace: str) -> str:
    """With what makes a new repository more than a new repository."""
    directory = os.path.join(workspace, path)
    text = _text(os.path.join(directory, "config"))
    names = {f"{section}.{name}" for section, name, _ in settings(text)} - _USUAL
    hooks = [name for name in _names(os.path.join(directory, "hooks")) if "." not in name]
    more = [*sorted(names), *(f"hooks/{name}" for name in hooks)]
    if not more:
        return sendable(path)
    return f"{sendable(path)} ({', '.join(map(sendable, more[:_NAMED]))})"


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


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
