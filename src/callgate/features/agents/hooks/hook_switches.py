"""Settings, variables and options that make an agent run without hooks; `known` lists them.

Also the hooks and programs that a repository adds to an agent, for the person who trusts it. The
agent runs them as its user, without a question and without callgate.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from callgate.features.agents.hooks.jsonc_edits import parse, value_of
from callgate.features.agents.known import (
    DIRECTORY,
    hook_directory,
    hook_name,
    hooks_of,
    settings_files,
    settings_text,
    user_files,
)
from callgate.features.agents.known.values import Switches

_MOST_FILES = 500
"""Maximum number of files in one directory of settings, including its subdirectories."""
_DEEPEST = 20
_ASSIGNMENT = re.compile(r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_%()]*)[ \t]*[=:]")
_HOOK_VARIABLES = (
    "PATH", "ENV", "IFS", "HOME", "SHELL", "SHELLOPTS", "GCONV_PATH", "XDG_CONFIG_HOME", "ZDOTDIR",
)  # fmt: skip
_HOOK_PREFIXES = ("LD_", "DYLD_", "BASH", "PYTHON", "CALLGATE_")
"""Variables that make the hook or its shell run another program."""
_AGENT_VARIABLE = re.compile(
    r"(?:CLAUDE|GEMINI|QWEN)_.*(?:BARE|BUBBLEWRAP|COMMAND|CONFIG|ENTRY|ENV_FILE|EXEC|HOME|HOOK|HOST_"
    r"|LAUNCH|MANAGED|PERSONAL|PREFIX|REMOTE|RESTRICT|SAFE|SANDBOX|SETTINGS|SHELL|SIMPLE|SPAWN|TRUST"
    r"|WRAP)"
)
"""Variables of the agents themselves that can wrap, move or turn off hooks, such as
`CLAUDE_CODE_SHELL_PREFIX`."""

OFF = ("", "0", "false")


def in_files(agent: str, workspace: str, home: str) -> list[str]:
    """Return sentences about files that turn the agent's hooks off in a workspace.

    They are files of the repository, the user and the administrator.
    """
    found = in_managed_file(agent, home)
    for path in _files(agent, workspace):
        found += [f"{path} {reason}" for reason in _reasons(agent, path, home)]
    return found + _added(agent, workspace, home) + in_variables(agent, workspace)


def _added(agent: str, workspace: str, home: str) -> list[str]:
    """Return sentences about hooks and plugins of a repository that can change a call."""
    switches = hooks_of(agent).switches
    if not switches.obeys_repository:
        return []
    user_paths = {os.path.realpath(path) for path in user_files(agent)}
    found = []
    for path in _expanded(_beside(workspace, switches.files)):
        if os.path.realpath(path) not in user_paths and not _reasons(agent, path, home):
            plugins = switches.installs_plugins
            found += [f"{path} {each}" for each in _additions(path, home, with_plugins=plugins)]
    for path in _expanded(_beside(workspace, switches.texts), endings=""):
        if path.endswith("/") or has_hooks(settings_text(path) or ""):
            found.append(f"{path} adds hooks, {_LATER}")
    for directory in _beside(workspace, switches.programs):
        for path in list(_expanded([directory], endings=""))[:1]:
            found.append(f"{path} is a program that can have hooks, {_LATER}")
    return found


_LATER = "which can change a call after callgate's decision"


def _additions(path: str, home: str, *, with_plugins: bool) -> Iterator[str]:
    if _adds_hooks(path, home):
        yield f"adds hooks, {_LATER}"
    if with_plugins and _adds_plugins(path):
        yield f"enables plugins with hooks, {_LATER} (enabledPlugins)"


def _adds_plugins(path: str) -> bool:
    try:
        plugins = _parsed(path, settings_text(path) or "{}").get("enabledPlugins", {})
    except ValueError:
        return False  # `_reasons` reports it
    return not isinstance(plugins, dict) or any(each is not False for each in plugins.values())


_BEFORE = ("pretooluse", "beforetool")
"""Events before a call, as agents name them."""


def _adds_hooks(path: str, home: str) -> bool:
    """Return whether a file has hooks before calls other than callgate's."""
    try:
        hooks = _parsed(path, settings_text(path) or "{}").get("hooks", {})
    except ValueError:
        return False  # `_reasons` reports it
    if not isinstance(hooks, dict):
        return True
    entries = [each for name, each in hooks.items() if name.lower() in _BEFORE]
    listed = [each for entry in entries if isinstance(entry, list) for each in entry]
    ours = [each for each in listed if f"{home}/{DIRECTORY}/" in json.dumps(each)]
    return bool(entries) and (not ours or len(ours) < len(listed))


def in_directory(agent: str, workspace: str, home: str) -> list[str]:
    """Return those sentences of `in_files` that are about the workspace and its parent directories.

    Files of the user and the administrator are excluded.
    """
    switches = hooks_of(agent).switches
    user_paths = {os.path.realpath(path) for path in user_files(agent)}
    settings = _expanded(_beside(workspace, (*switches.files, *switches.env_files)))
    added = _beside(workspace, (*switches.texts, *switches.programs))
    beside = [*settings, *_expanded(added, endings="")]
    local = [path for path in beside if os.path.realpath(path) not in user_paths]
    return [
        each
        for each in in_files(agent, workspace, home)
        if any(each.startswith(f"{path} ") for path in local)
    ]


def in_variables(agent: str, workspace: str) -> list[str]:
    """Return sentences about variables that files set for the agent and its hooks.

    No option of the command line takes precedence over them.
    """
    switches, found = hooks_of(agent).switches, []
    for path in _files(agent, workspace) if switches.read_variables else ():
        try:
            variables = _parsed(path, settings_text(path) or "{}").get("env", {})
        except ValueError:
            continue  # `_reasons` reports it
        names = list(variables) if isinstance(variables, dict) else list(switches.variables)
        found += [f"{path} {each}" for each in _harmful(switches, names)]
    for path in _beside(workspace, switches.env_files):
        names = _ASSIGNMENT.findall(settings_text(path) or "")
        found += [f"{path} {each}" for each in _harmful(switches, names)]
    return found


def runs_commands_unasked(agent: str, workspace: str) -> bool:
    """Return whether permission rules in files let the agent run commands without a question."""
    hooks = hooks_of(agent)
    if hooks.runs_unasked is None:
        return False
    managed = hooks.switches.managed
    for path in (*_files(agent, workspace), *([managed] if managed else ())):
        text = settings_text(path)
        if text is None or not text.strip() or not path.endswith(".json"):
            continue
        try:
            settings = _parsed(path, text)
        except ValueError:
            return True
        if hooks.runs_unasked(settings):
            return True
    return False


def _harmful(switches: Switches, names: Iterable[str]) -> Iterator[str]:
    for name in dict.fromkeys(names):
        if name in switches.variables:
            yield f"turns all hooks off ({name})"
        elif (
            name in _HOOK_VARIABLES
            or name.startswith(_HOOK_PREFIXES)
            or _AGENT_VARIABLE.match(name)
        ):
            yield f"changes how hooks run ({name})"


def in_managed_file(agent: str, home: str) -> list[str]:
    """Return sentences about the administrator's file, which takes precedence over all others."""
    path = hooks_of(agent).switches.managed
    return [] if path is None else [f"{path} {reason}" for reason in _reasons(agent, path, home)]


def in_environment(agent: str, environ: Mapping[str, str]) -> list[str]:
    names = hooks_of(agent).switches.variables
    on = [name for name in names if environ.get(name, "").strip().lower() not in OFF]
    return [f"the variable {name} turns all hooks off" for name in on]


def in_arguments(agent: str, argv: Sequence[str]) -> list[str]:
    """Return sentences about options that turn hooks off or replace the settings with the hooks."""
    found = []
    for option, *values in hooks_of(agent).switches.options:
        for word, following in zip(argv, (*argv[1:], ""), strict=False):
            value = _value_of(option, word, following)
            if value is not None and (not values or value.strip().startswith(tuple(values))):
                found.append(f"the option {option} turns hooks off or replaces them")
    return list(dict.fromkeys(found))


def _value_of(option: str, word: str, following: str) -> str | None:
    """Return the value of an option; None if the word is not this option.

    The spellings are `-c X`, `-cX`, `--config=X` and `--safeMode`.
    """
    if not option.startswith("--"):
        return (word[len(option) :].lstrip("=") or following) if word.startswith(option) else None
    name, is_joined, value = word.partition("=")
    if not name.startswith("--") or _plain(name) != _plain(option):
        return None
    return value if is_joined else following


def _plain(option: str) -> str:
    return option.replace("-", "").lower()


def _files(agent: str, workspace: str) -> list[str]:
    """Return every settings file of the agent that applies in a workspace, each once."""
    above = _expanded(_beside(workspace, hooks_of(agent).switches.files))
    paths = [*settings_files(agent, workspace), *above]
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def _expanded(paths: Iterable[str], endings: str = ".json") -> Iterator[str]:
    """Yield the paths, and for a directory the files in it at any depth.

    A directory with more than `_MOST_FILES` files is yielded itself as well.
    """
    for path in paths:
        if not path.endswith("/"):
            yield path
            continue
        names = _walked(path)
        yield from sorted(name for name in names[:_MOST_FILES] if name.endswith(endings))
        if len(names) > _MOST_FILES:
            yield path


def _walked(directory: str) -> list[str]:
    """Return the files below a directory, also through links; at most `_MOST_FILES` plus one."""
    found: list[str] = []
    for parent, _, names in os.walk(directory, followlinks=True):
        found += [os.path.join(parent, name) for name in names]
        if len(found) > _MOST_FILES or parent.count("/") > directory.count("/") + _DEEPEST:
            return [*found, *[directory] * _MOST_FILES][: _MOST_FILES + 1]
    return found


def _beside(workspace: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the files in the workspace and its parent directories, where agents search them."""
    directory = os.path.abspath(workspace)
    while True:
        for name in names:
            yield os.path.join(directory, name)
        if directory == os.path.dirname(directory):
            return
        directory = os.path.dirname(directory)


def _reasons(agent: str, path: str, home: str) -> list[str]:
    if path.endswith("/"):
        return [f"has more than {_MOST_FILES} files, so one of them may turn hooks off"]
    read = hooks_of(agent).switches.read if path.endswith((".json", ".toml")) else None
    text = settings_text(path)
    if read is None or text is None or not text.strip():
        return []
    try:
        settings = _parsed(path, text)
    except ValueError:
        return ["cannot be read, so it may turn hooks off"]
    return list(read(settings, hook_name(home, agent)))


def _parsed(path: str, text: str) -> dict[str, Any]:
    """Return the settings in a file. Raises `ValueError`."""
    if path.endswith(".toml"):
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("not TOML") from None
    found = value_of(text, parse(text))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


# --- hooks and programs that a repository adds ------------------------------------------------

_MOST_BELOW = 200
_FRONT_END = re.compile(r"\n---[ \t]*(?:\r?\n|$)")
_HOOKS_KEY = re.compile(
    r"""(?im)(?:(?:^|\r)[ \t]*|[{,?]\s*)(?:hooks|"hooks"|'hooks'|"[^"\n]*\\[^"\n]*")\s*(?::|$)"""
)
"""The key `hooks` in YAML, or a key with escapes, which may mean `hooks`."""


def added_in_directory(agent: str, workspace: str, home: str) -> list[str]:
    """Return sentences about files of a workspace that add hooks or programs to an agent.

    `home` is callgate's home: callgate's own hooks do not count.
    """
    hooks_path, added = hook_directory(home, agent), hooks_of(agent).added
    found = [*_hooks_in_settings(added.settings, workspace, hooks_path)]
    for name in added.programs:
        paths = (
            path
            for path in _below(workspace, name)
            if hooks_path not in (settings_text(path) or "")
        )
        found += [f"{path} is executed by the agent" for path in paths]
    for name in added.texts:
        for path in _below(workspace, name):
            if has_hooks(settings_text(path) or ""):
                found.append(f"{path} adds hooks")
    for name in added.servers:
        if settings_text(path := os.path.join(workspace, name)):
            found.append(f"{path} names programs that the agent starts")
    return found


def has_hooks(text: str) -> bool:
    """Return whether the text of a skill or an agent may have hooks in its front matter."""
    begun = text.lstrip("\ufeff \t\r\n")
    return begun.startswith("---") and bool(_HOOKS_KEY.search(_FRONT_END.split(begun, 1)[0]))


def _hooks_in_settings(names: Sequence[str], workspace: str, hooks_path: str) -> Iterator[str]:
    for path in _settings_in(names, workspace):
        text = settings_text(path) or ""
        if not text.strip():
            continue
        try:
            is_toml = path.endswith(".toml")
            settings = tomllib.loads(text) if is_toml else value_of(text, parse(text))
        except (ValueError, RecursionError):
            yield f"{path} cannot be read, so it may add hooks"
            continue
        events = _events(settings, hooks_path)
        if events:
            yield f"{path} adds hooks ({', '.join(events)})"


def _settings_in(names: Sequence[str], workspace: str) -> Iterator[str]:
    for name in names:
        if name.endswith("/"):
            yield from _below(workspace, name)
        else:
            yield os.path.join(workspace, name)


def _events(settings: Any, hooks_path: str) -> list[str]:
    """Return the events with hooks other than callgate's."""
    hooks = settings.get("hooks") if isinstance(settings, dict) else None
    if not hooks:
        return []
    if not isinstance(hooks, dict):
        return ["hooks"]
    return [
        str(event)[:60]
        for event, entries in hooks.items()
        if any(hooks_path not in json.dumps(each, default=str) for each in _listed(entries))
    ]


def _listed(entries: Any) -> list[Any]:
    return entries if isinstance(entries, list) else [entries]


def _below(workspace: str, name: str) -> Iterator[str]:
    count = 0
    for directory, _, names in os.walk(os.path.join(workspace, name)):
        for each in sorted(names):
            count += 1
            if count > _MOST_BELOW:
                return
            yield os.path.join(directory, each)
