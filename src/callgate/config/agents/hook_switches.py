"""Settings, variables and options by which an agent runs without hooks: one table of all agents.

    agent      a repository's file            outranked in the sandbox by
    claude     .claude/settings*.json         --settings
    codex      .codex/config.toml             -c features.hooks=true
    gemini     .gemini/settings.json          nothing: refused
    qwen       .qwen/settings.json, .env      nothing: refused; variables that are set
    opencode   none that is known
    others     none that is known

The readers are strict: a value that is not plainly harmless counts as a switch, because agents
convert values in their own ways (`"enabled": "false"`, `"hooks": null`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from callgate.config.agents.jsonc_edits import parse, value_of
from callgate.config.agents.settings_files import hook_name, settings_files

_LARGEST = 4 * 1024 * 1024
_ASSIGNMENT = re.compile(r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_%()]*)[ \t]*[=:]")
_HOOK_VARIABLES = (
    "PATH", "ENV", "IFS", "HOME", "SHELL", "SHELLOPTS", "GCONV_PATH", "XDG_CONFIG_HOME", "ZDOTDIR",
)  # fmt: skip
_HOOK_PREFIXES = ("LD_", "DYLD_", "BASH", "PYTHON", "CALLGATE_")
"""Variables by which the shell of a hook, or the hook, would run another program."""
_AGENT_VARIABLE = re.compile(
    r"(?:CLAUDE|GEMINI|QWEN)_.*(?:BARE|BUBBLEWRAP|COMMAND|CONFIG|ENTRY|ENV_FILE|EXEC|HOME|HOOK|HOST_"
    r"|LAUNCH|MANAGED|PERSONAL|PREFIX|REMOTE|RESTRICT|SAFE|SANDBOX|SETTINGS|SHELL|SIMPLE|SPAWN|TRUST"
    r"|WRAP)"
)
"""Variables of the agents themselves that can wrap, move or turn off hooks, such as
`CLAUDE_CODE_SHELL_PREFIX`."""

Reader = Callable[[dict[str, Any], str], Iterator[str]]
"""Reasons why settings turn hooks off; the second argument is the name of our hook."""


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[str, ...] = ()
    """Relative to the workspace, or to a directory above it."""
    env_files: tuple[str, ...] = ()
    """Files of variables, in the same directories."""
    managed: str | None = None
    """The administrator's file, which outranks all others."""
    managed_settings: tuple[tuple[str, Any], ...] = ()
    """What it needs besides hooks, so that a repository's settings do not turn them off."""
    read: Reader | None = None
    read_variables: bool = False
    """`env` in its settings sets variables of the hook, and nothing outranks that."""
    variables: tuple[str, ...] = ()
    """Any value but these of `OFF` turns hooks off."""
    options: tuple[tuple[str, ...], ...] = ()
    """Options of the command line, each with the beginnings of values that count; none: all."""
    outranking: tuple[str, ...] = ()
    """Options that turn hooks on, whatever files of the user or a repository contain."""

    @property
    def is_outranked(self) -> bool:
        return bool(self.outranking)


OFF = ("", "0", "false")


def _read_disable_all(settings: dict[str, Any], name: str) -> Iterator[str]:
    if settings.get("disableAllHooks", False) is not False:
        yield "turns all hooks off (disableAllHooks)"


def _read_gemini(settings: dict[str, Any], name: str) -> Iterator[str]:
    config = settings.get("hooksConfig", {})
    if not isinstance(config, dict) or config.get("enabled", True) is not True:
        yield "turns all hooks off (hooksConfig.enabled)"
    elif (disabled := config.get("disabled", [])) != [] and (
        not isinstance(disabled, list) or {name, "callgate"} & {str(each) for each in disabled}
    ):
        yield "turns callgate's hook off by its name (hooksConfig.disabled)"
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        yield "replaces all hooks (hooks)"


def _read_codex(settings: dict[str, Any], name: str) -> Iterator[str]:
    features = settings.get("features", {})
    for feature in ("hooks", "codex_hooks"):
        if not isinstance(features, dict) or features.get(feature, True) is not True:
            yield f"turns all hooks off (features.{feature})"


SWITCHES: Mapping[str, Switches] = {
    "claude": Switches(
        files=(".claude/settings.json", ".claude/settings.local.json"),
        managed="/etc/claude-code/managed-settings.json",
        read=_read_disable_all,
        read_variables=True,
        variables=("CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SIMPLE"),
        options=(("--bare",), ("--safe-mode",), ("--settings",)),
        outranking=("--settings",),
    ),
    "codex": Switches(
        files=(".codex/config.toml",),
        read=_read_codex,
        options=(
            ("--disable", "hooks", "codex_hooks"),
            ("-c", "features"),
            ("--config", "features"),
        ),
        outranking=("-c", "features.hooks=true"),
    ),
    "gemini": Switches(
        files=(".gemini/settings.json",),
        env_files=(".env", ".gemini/.env"),
        managed="/etc/gemini-cli/settings.json",
        managed_settings=(("hooksConfig", {"enabled": True}),),
        read=_read_gemini,
    ),
    "qwen": Switches(
        files=(".qwen/settings.json",),
        env_files=(".env", ".qwen/.env"),
        managed="/etc/qwen-code/settings.json",
        managed_settings=(("disableAllHooks", False),),
        read=_read_disable_all,
        read_variables=True,
        variables=("QWEN_CODE_SAFE_MODE", "QWEN_CODE_SIMPLE"),
        options=(("--bare",), ("--safe-mode",)),
    ),
    "opencode": Switches(variables=("OPENCODE_PURE",), options=(("--pure",),)),
    "cursor": Switches(),
    "vibe": Switches(),
    "kimi": Switches(),
}


def in_files(agent: str, workspace: str, home: str) -> list[str]:
    """Sentences about files that turn the agent's hooks off in a workspace: the repository's, the
    user's and the administrator's."""
    found = in_managed_file(agent, home)
    for path in _files(agent, workspace):
        found += [f"{path} {reason}" for reason in _reasons(agent, path, home)]
    return found + in_variables(agent, workspace)


def in_variables(agent: str, workspace: str) -> list[str]:
    """The same about variables that files set for the agent and its hooks, which nothing
    outranks."""
    switches, found = SWITCHES[agent], []
    for path in _files(agent, workspace) if switches.read_variables else ():
        try:
            variables = _parsed(path, _text(path) or "{}").get("env", {})
        except ValueError:
            continue  # `_reasons` reports it
        names = list(variables) if isinstance(variables, dict) else list(switches.variables)
        found += [f"{path} {each}" for each in _harmful(switches, names)]
    for path in _beside(workspace, switches.env_files):
        names = _ASSIGNMENT.findall(_text(path) or "")
        found += [f"{path} {each}" for each in _harmful(switches, names)]
    return found


_NO_COMMANDS = re.compile(
    r"(?:Read|Grep|Glob|LS|Edit|MultiEdit|Write|NotebookEdit|NotebookRead|WebFetch|WebSearch|TodoWrite)"
    r"(?:\(|$)|mcp__"
)
"""Permission rules of Claude Code that allow no command, and no skill."""


def runs_commands_unasked(agent: str, workspace: str) -> bool:
    """Whether permission rules in files let the agent run some command without its own question.
    A repository can contain such rules, and Claude Code obeys `settings.local.json` untrusted."""
    managed = SWITCHES[agent].managed
    for path in (*_files(agent, workspace), *([managed] if managed else ())):
        text = _text(path)
        if text is None or not text.strip() or not path.endswith(".json"):
            continue
        try:
            settings = _parsed(path, text)
        except ValueError:
            return True
        permissions, sandbox = settings.get("permissions", {}), settings.get("sandbox", {})
        allow = permissions.get("allow", []) if isinstance(permissions, dict) else None
        if not isinstance(allow, list) or not isinstance(sandbox, dict):
            return True
        if (
            sandbox.get("enabled", False) is not False
        ):  # commands in its sandbox are not asked about
            return True
        if not all(isinstance(each, str) and _NO_COMMANDS.match(each) for each in allow):
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
    """The same about the administrator's file alone, which nothing outranks."""
    path = SWITCHES[agent].managed
    return [] if path is None else [f"{path} {reason}" for reason in _reasons(agent, path, home)]


def in_environment(agent: str, environ: Mapping[str, str]) -> list[str]:
    names = SWITCHES[agent].variables
    on = [name for name in names if environ.get(name, "").strip().lower() not in OFF]
    return [f"the variable {name} turns all hooks off" for name in on]


def in_arguments(agent: str, argv: Sequence[str]) -> list[str]:
    """Options of a command line that turn hooks off, or replace the settings that have them."""
    found = []
    for option, *values in SWITCHES[agent].options:
        for word, following in zip(argv, (*argv[1:], ""), strict=False):
            value = _value_of(option, word, following)
            if value is not None and (not values or value.strip().startswith(tuple(values))):
                found.append(f"the option {option} turns hooks off or replaces them")
    return list(dict.fromkeys(found))


def _value_of(option: str, word: str, following: str) -> str | None:
    """The value of an option in one of its spellings: `-c X`, `-cX`, `--config=X`, `--safeMode`;
    None: the word is not this option."""
    if not option.startswith("--"):
        return (word[len(option) :].lstrip("=") or following) if word.startswith(option) else None
    name, is_joined, value = word.partition("=")
    if not name.startswith("--") or _plain(name) != _plain(option):
        return None
    return value if is_joined else following


def _plain(option: str) -> str:
    return option.replace("-", "").lower()


def _files(agent: str, workspace: str) -> list[str]:
    """Every settings file of the agent that counts in a workspace, each once."""
    above = _beside(workspace, SWITCHES[agent].files)
    return list(dict.fromkeys([*settings_files(agent, workspace), *above]))


def _beside(workspace: str, names: Sequence[str]) -> Iterator[str]:
    """Files in the workspace and in each directory above it, where agents look for a project."""
    directory = os.path.abspath(workspace)
    while True:
        for name in names:
            yield os.path.join(directory, name)
        if directory == os.path.dirname(directory):
            return
        directory = os.path.dirname(directory)


def _reasons(agent: str, path: str, home: str) -> list[str]:
    read = SWITCHES[agent].read if path.endswith((".json", ".toml")) else None
    text = _text(path)
    if read is None or text is None or not text.strip():
        return []
    try:
        settings = _parsed(path, text)
    except ValueError:
        return ["cannot be read, so nobody knows whether it turns hooks off"]
    return list(read(settings, hook_name(home, agent)))


def _parsed(path: str, text: str) -> dict[str, Any]:
    """The settings in a file. Raises `ValueError`."""
    if path.endswith(".toml"):
        import tomllib  # lazy: for Codex alone  # noqa: PLC0415

        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("not TOML") from None
    found = value_of(text, parse(text))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _text(path: str) -> str | None:
    """The text of a file; None where there is none. One that cannot be read is not JSON."""
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace").removeprefix("\ufeff")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError:
        return "?"
