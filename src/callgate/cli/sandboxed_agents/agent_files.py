"""What agents keep in the user's home and in a workspace: what is theirs, and what they would run
outside of the sandbox later, which nobody in it may write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from callgate.cli.errors import CliError
from callgate.config.agents.settings_files import AGENTS, settings_files
from callgate.sandbox.jails import Jail, below_any, is_below

_OWN: Mapping[str, tuple[str, ...]] = {
    "claude": (".claude", ".local/share/claude", ".cache/claude-cli-nodejs"),
    "codex": (".codex",),
    "gemini": (".gemini",),
    "cursor": (".cursor", ".config/cursor"),
    "opencode": (".config/opencode", ".local/share/opencode", ".cache/opencode",
                 ".local/state/opencode"),
    "qwen": (".qwen",),
    "vibe": (".vibe",),
    "kimi": (".kimi-code",),
}  # fmt: skip
"""Below the user's home: what an agent keeps of its own, its logins among it."""

_RUN_LATER: Mapping[str, tuple[str, ...]] = {
    "claude": (".claude/agents", ".claude/commands", ".claude/hooks", ".claude/local",
               ".claude/plugins", ".claude/skills", ".local/share/claude/versions"),
    "codex": (".codex/bin", ".codex/plugins", ".codex/rules", ".codex/skills"),
    "gemini": (".gemini/commands", ".gemini/extensions", ".gemini/skills"),
    "cursor": (".cursor/mcp.json", ".cursor/plugins", ".cursor/skills"),
    "opencode": (".config/opencode/plugin", ".config/opencode/plugins",
                 ".config/opencode/opencode.jsonc", ".config/opencode/node_modules",
                 ".local/share/opencode/bin", ".cache/opencode/node_modules"),
    "qwen": (".qwen/commands", ".qwen/extensions", ".qwen/skills"),
    "vibe": (".vibe/skills", ".vibe/tools"),
    "kimi": (".kimi-code/plugins", ".kimi-code/skills"),
}  # fmt: skip
"""Below the user's home, beside its settings: what an agent runs, or lets add hooks."""
STARTS_WITH: Mapping[str, tuple[str, ...]] = {"opencode": (".opencode/.gitignore",)}
"""Below the workspace: protected names that an agent creates when it starts, and does not start
without. They run nothing."""
_MISSING = ".callgate"
"""Protected in a directory that is missing, which then is an empty one instead of a file."""


def own_directories(agent: str | None) -> Iterable[str]:
    """What an agent keeps of its own, and is there."""
    if agent is None:
        return
    user = os.path.expanduser("~")
    for name in _OWN[agent]:
        if os.path.exists(path := os.path.join(user, name)):
            yield path
    variable = AGENTS[agent].home_variable
    if variable is not None and (given := os.environ.get(variable)) and os.path.isdir(given):
        yield os.path.realpath(given)


def without_later_runs(jail: Jail, workspace: str, agent: str | None) -> Jail:
    """The jail in which nothing can be changed or made that an agent or git runs outside of it.
    Of a link on the way its place cannot be kept: an agent does not run then."""
    given = os.environ.get(AGENTS[agent].home_variable or "") if agent is not None else None
    named = (workspace, *own_directories(agent), *([given] if given else []))
    roots = {os.path.abspath(path): os.path.realpath(path) for path in named}
    kept = set(jail.protected)
    for path in map(os.path.abspath, _run_later(workspace, agent)):
        root = max((each for each in roots if is_below(path, each)), key=len, default=None)
        if root is None or not below_any(roots[root], jail.writable) or path == root:
            continue
        place = os.path.normpath(os.path.join(roots[root], os.path.relpath(path, root)))
        if below_any(place, jail.protected):
            continue
        link = _link_on(place, roots[root])
        if link is None:
            kept.add(place)
        elif agent is not None:
            raise CliError(
                f"{link} is a link, which cannot be kept in its place in the sandbox",
                hint="Put what it names there in its stead.",
            )
    return msgspec.structs.replace(jail, protected=tuple(sorted(kept)))


def _link_on(path: str, root: str) -> str | None:
    """The first link from below a root to a path."""
    step = root
    for name in os.path.relpath(path, root).split("/"):
        step = os.path.join(step, name)
        if os.path.islink(step):
            return step
    return None


def _run_later(workspace: str, agent: str | None) -> Iterable[str]:
    for each in AGENTS:
        for path in settings_files(each, workspace):
            # No placeholder for a missing file of the workspace: the keeper refuses to create it.
            if os.path.lexists(path) or not is_below(path, workspace):
                yield path
    if agent is None:
        return
    user = os.path.expanduser("~")
    variable = AGENTS[agent].home_variable or ""
    for name in _RUN_LATER[agent]:
        first, _, rest = name.partition("/")
        places = [os.path.join(user, name)]
        if (given := os.environ.get(variable)) and first == _OWN[agent][0]:
            places.append(os.path.join(given, rest))
        for path in places:
            is_file = os.path.splitext(path)[1] in (".json", ".jsonc")
            yield path if is_file or os.path.lexists(path) else os.path.join(path, _MISSING)
