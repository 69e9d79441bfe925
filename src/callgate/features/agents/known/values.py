"""Frozen values for the facts about one third-party agent. Each module of this package has one.

    Agent    names and programs, model, directories in the user's home, and its hooks
      Hooks    the settings that name a hook, the dialect, the tools, the switches that turn it off
        HookFile   the form of callgate's entry in these settings
        Dialect    answers that the agent supports
        Switches   settings, variables and options that make the agent run without hooks

Functions among the facts are pure, except `Agent.used_directories` and `Hooks.trust`, which read
the agent's own state with the readers at the end. The agent controls the format of its state, so
unexpected content is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

# --- directories in the user's home -----------------------------------------------------------


class Login(msgspec.Struct, frozen=True):
    """A file with credentials. Only known values are saved after a run."""

    file: str
    """Relative to the agent's directory. `*` in its last part: several files."""
    values: tuple[str, ...] = ()
    """JSON values that may change, as keys separated by dots; `*` is any key."""
    types: tuple[str, ...] = ()
    """Types of the entries that may change, if each entry of the file has a `type`."""
    is_encrypted: bool = False
    """Whether the file is hexadecimal cipher text, not JSON. It is saved completely."""
    outside: str = ""
    """Path of the file in the user's home, if no variable names the agent's directory."""


OAUTH_VALUES = (
    "access_token", "refresh_token", "id_token", "expiry_date", "expires_at", "expires_in",
    "token_type", "scope",
)  # fmt: skip
"""The values of an OAuth login, as several agents store them."""


class AgentHome(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of an agent. All names are relative to it.

    A name that no field lists is read-only; if it is missing, the agent may create it for the run.
    """

    path: str = ""
    """Path below the user's home; "": the directory exists only if the variable is set."""
    variable: str = ""
    """Environment variable that names another directory."""
    optional: bool = False
    """Whether the directory is not created if it is missing."""
    below: str = ""
    """Path below the directory in the variable."""
    persistent: tuple[str, ...] = ()
    """Directories of sessions, logs and caches, without executable files."""
    persistent_files: tuple[str, ...] = ()
    """Single files of that kind, which the agent appends to."""
    scripts: tuple[str, ...] = ()
    """Directories of scripts and skills among the sessions, as patterns. New files in them are
    renamed after a run, so that the agent does not execute them."""
    logins: tuple[Login, ...] = ()
    private: tuple[str, ...] = ()
    """Directories that start empty and files that start as copies; their changes are discarded."""
    configuration: tuple[str, ...] = ()
    """Settings and code that must not be created during a run. `/` at the end: a directory."""
    variables: Mapping[str, str] = {}
    """Default environment variables of a run, each with a path in the directory."""

    def location(self, user: str, environ: Mapping[str, str]) -> str | None:
        """Return the path of the directory, or None. `user` is the user's home."""
        given = environ.get(self.variable) if self.variable else None
        if given:
            return os.path.normpath(os.path.join(os.path.abspath(given), self.below))
        return os.path.join(user, self.path) if self.path else None


# --- tools ------------------------------------------------------------------------------------


class ToolRow(msgspec.Struct, frozen=True):
    """One tool of one agent."""

    kind: str
    arguments: frozenset[str]
    executing: frozenset[str] = frozenset()
    """Arguments that change the class of the call to `execute`."""


def tool_rows(text: str) -> dict[str, ToolRow]:
    """Read a table of tools: a line `NAME KIND ARGUMENTS` for each, with all its arguments.

        shell write edit read list find search fetch patch   read as a call of a callgate tool
        none                       bookkeeping inside the agent; its own checks stay in force
        skill                      can run commands of a repository; see `Hooks.asking_modes`
        read_class write_class network execute    a tool of that class without a counterpart

    An argument marked with `?` changes the class of the call to `execute`. callgate does not know
    the effect of an argument that is not in the table. `tests/features/agents/real` compares the
    rows with the tools that the real programs offer to their model.
    """
    rows: dict[str, ToolRow] = {}
    for line in text.replace("\n  ", " ").split("\n"):
        if not (words := line.split()):
            continue
        name, kind, *arguments = words
        executing = {each[1:] for each in arguments if each.startswith("?")}
        known = {each.removeprefix("?") for each in arguments}
        rows[name.lower()] = ToolRow(kind, frozenset(known), frozenset(executing))
    return rows


# --- events and answers -----------------------------------------------------------------------

Input = Mapping[str, Any]
"""The input of a tool that the agent runs."""


def _same(event: dict[str, Any]) -> dict[str, Any]:
    return event


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The answers that an agent supports, found by running it."""

    allow: Callable[[Input | None], dict[str, Any] | None]
    """Returns the answer for an allowed call, with a replaced input if given. None: no output."""
    deny: Callable[[str], dict[str, Any]]
    undecided: bytes | None = None
    """The answer that leaves the call to the agent's own checks. None: `allow` skips none of them,
    or the agent has no such answer."""
    rewrites: bool = False
    """Whether the answer can replace the input of the call."""
    noted: bytes = b"{}"
    """The answer to an event after a call."""
    heard: bytes = b""
    """The answer to a prompt of the user. Some agents add any other text to the conversation."""
    event: Callable[[dict[str, Any]], dict[str, Any]] = _same
    """Converts an event of the agent to the format of Claude Code, which most agents use."""
    own_event: Callable[[dict[str, Any]], dict[str, Any]] = _same
    """Converts an event from Claude Code's format to the agent's, for a test of its hook."""
    mark: str = ""
    """A member of only this agent's events. The agent reads the settings of other agents, so its
    events also arrive at their hooks."""


def claude_allow(input: Input | None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
        "permissionDecisionReason": "allowed by callgate",
    }
    if input is not None:
        answer["updatedInput"] = dict(input)
    return {"hookSpecificOutput": answer}


def claude_deny(reason: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }


def decision_deny(reason: str) -> dict[str, Any]:
    return {"decision": "deny", "reason": reason}


def no_output(input: Input | None) -> None:
    return None


# --- settings that name a hook ----------------------------------------------------------------


Phase = Literal["pre", "post", "prompt"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of callgate's entry in an agent's settings."""

    command: str
    """Shell command, which refuses the call if the hook fails. After a call, it reports the end."""
    report: str
    """The command after a call, if one program serves all events."""
    prompt: str
    """The command for a prompt of the user, likewise."""
    script: str
    """Path of the hook itself, which gets the phase as its argument."""
    phase: Phase
    seconds: int
    """The agent's time limit for the hook."""
    name: str
    """Name of callgate's hook, which no repository knows."""
    failure: str
    """Reason of the refusal if the hook gives no answer."""


def matched_entry(entry: Entry, *, matcher: str = "*", **more: Any) -> dict[str, Any]:
    """Return an entry in Claude Code's format: a matcher of tools, and their hooks."""
    hook = {"type": "command", "command": entry.command, "timeout": entry.seconds, **more}
    if entry.phase == "prompt":
        return {"hooks": [hook]}
    return {"matcher": matcher, "hooks": [hook]}


class HookFile(msgspec.Struct, frozen=True, kw_only=True):
    """The form of callgate's hook in a settings file.

    json      an entry in a list below `hooks`, for each event
    toml      tables `[[hooks]]` between two marker lines
    program   the complete file is callgate's, and the agent runs it
    """

    form: Literal["json", "toml", "program"]
    events: tuple[tuple[str, Phase], ...] = ()
    """The events of the agent; the event before a call is the first."""
    entry: Callable[[Entry], dict[str, Any]] = matched_entry
    """json: the entry for one event."""
    has_version: bool = False
    """json: whether the file needs a member `version`."""
    table: Callable[[Entry, str], str] | None = None
    """toml: the lines of one table, for an event."""
    event_key: str = ""
    """toml: the member that names the event."""
    program: Callable[[Entry], str] | None = None
    """program: the text of the file."""
    others: tuple[str, ...] = ()
    """program: names of further files with the same text in the same directory."""
    is_executable: bool = False

    @property
    def reports_prompts(self) -> bool:
        """Whether the hook reports messages of the user."""
        return any(phase == "prompt" for _, phase in self.events)


CLAUDE_EVENTS: tuple[tuple[str, Phase], ...] = (
    ("PreToolUse", "pre"), ("PostToolUse", "post"), ("PostToolUseFailure", "post"),
    ("UserPromptSubmit", "prompt"),
)  # fmt: skip


def quoted(text: str) -> str:
    """Return a text as an ASCII string literal, valid in JSON, JavaScript and TOML."""
    return json.dumps(text)


# --- settings that turn hooks off -------------------------------------------------------------

Reader = Callable[[dict[str, Any], str], Iterable[str]]
"""Returns why settings turn hooks off; the second argument is the name of callgate's hook."""


def read_disable_all(settings: dict[str, Any], name: str) -> Iterator[str]:
    if settings.get("disableAllHooks", False) is not False:
        yield "turns all hooks off (disableAllHooks)"


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, variables and options that make an agent run without hooks.

    Also the options of `callgate sandbox` that take precedence over them. The readers are strict: a
    value that is not clearly harmless counts as a switch, because agents convert values in their
    own ways (`"enabled": "false"`, `"hooks": null`).
    """

    files: tuple[str, ...] = ()
    """Settings files, relative to the workspace or to a directory above it. `/` at the end: every
    JSON file in that directory, at any depth."""
    texts: tuple[str, ...] = ()
    """Directories of custom agents, whose front matter can have hooks."""
    programs: tuple[str, ...] = ()
    """Directories of programs that the agent loads and that can contain hooks."""
    env_files: tuple[str, ...] = ()
    """Files of variables, in the same directories."""
    managed: str | None = None
    """The administrator's file, which takes precedence over all others."""
    managed_settings: tuple[tuple[str, Any], ...] = ()
    """Additional members of this file, so that a repository's settings do not turn its hooks off.
    """
    read: Reader | None = None
    obeys_repository: bool = False
    """Whether a hook of a repository can change a call after callgate's decision."""
    installs_plugins: bool = False
    """Whether it installs plugins that a repository's settings enable, without a question."""
    read_variables: bool = False
    """Whether `env` in its settings sets the hook's variables, with the highest precedence."""
    variables: tuple[str, ...] = ()
    """Variables that turn hooks off with any value except "", 0 and false."""
    options: tuple[tuple[str, ...], ...] = ()
    """Options of the command line, each with the prefixes of values that count; none: all."""
    outranking: tuple[str, ...] = ()
    """Options that turn hooks on, with precedence over files of the user and a repository."""
    run_settings: Mapping[str, Any] = {}
    """Settings that turn hooks on, for a file that the last option of `outranking` takes."""


class AddedHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a repository that add hooks or programs to an agent, relative to the workspace."""

    settings: tuple[str, ...] = ()
    """Files whose member `hooks` names commands. `/` at the end: every file in that directory."""
    programs: tuple[str, ...] = ()
    """Directories whose files the agent executes."""
    texts: tuple[str, ...] = ()
    """Directories of texts whose front matter may have hooks."""
    servers: tuple[str, ...] = ()
    """Files that name servers to start."""


# --- a run with a scripted model --------------------------------------------------------------

KEY = "scripted"
"""Name and key of the scripted model."""


class ScriptedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Start of the agent's program with another home and a scripted model."""

    options: tuple[str, ...]
    """Options, including the prompt."""
    env: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """Additional files of its home."""
    members: Mapping[str, Any] = {}
    """Additional members of the settings with its hooks, for JSON."""
    before_settings: str = ""
    """Text before these settings, for TOML."""
    packages: str = ""
    """A directory of its home that gets the user's installed packages."""


# --- an agent ---------------------------------------------------------------------------------


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks of an agent, and the facts about their reliability."""

    user: str
    """The user's file that an installation edits; `~` is the user's home."""
    project: str | None = None
    """The workspace's file that an installation edits; None: the agent has none."""
    protected: tuple[str, ...] = ()
    """Further files, and directories of files, that can turn its hooks off. No agent may change
    them."""
    file: HookFile
    dialect: Dialect
    tools: Mapping[str, ToolRow]
    shell_call: Callable[[str], tuple[str, dict[str, Any]]]
    """Returns the tool call of the agent's model for a shell command."""
    fails_open: tuple[str, ...] = ()
    """Failures after which the call runs, by design of the agent. A sandbox still applies."""
    verified: str
    """Version of the program that was tested, or why none was."""
    switches: Switches = Switches()
    added: AddedHooks = AddedHooks()
    expanded_commands: tuple[str, ...] = ()
    """Directories of the user's own commands that the agent reports as their full text."""
    asking_modes: frozenset[str] = frozenset()
    """Permission modes in which the agent itself asks about a skill, or refuses it, if the hook
    makes no decision."""
    runs_unasked: Callable[[dict[str, Any]], bool] | None = None
    """Returns whether settings let the agent run some command without its own question."""
    names_calls: bool = True
    """Whether all events of a call have the same id, at each hook."""
    types_later: bool = False
    """Whether the agent can write to the input of a running process without a hook. callgate closes
    the input of every allowed command."""
    splits_paths: bool = False
    """Whether the agent splits a path at its blanks if it names no file."""
    trust: Callable[[str, str, str], list[str]] | None = None
    """Returns the trust of each hook, by program, workspace, and a mark in the hook's command.
    Raises `OSError`, `ValueError` or `SubprocessError`. None: the agent runs hooks without a
    review."""
    review: str = ""
    """Instructions for the user to review an untrusted hook."""
    scripted_run: Callable[[str, str, str], ScriptedRun] | None = None
    """Returns the start with a scripted model, by home, URL of the model, and prompt. None: not
    supported."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A third-party agent."""

    name: str
    """Name in commands and in files of callgate's home."""
    label: str
    """Product name for people."""
    programs: tuple[str, ...] = ()
    """Names of its program (first), adapters and packages, to recognize its command line."""
    hosts: tuple[str, ...] = ()
    """Hosts of its model and its login."""
    env: tuple[str, ...] = ()
    """Environment variables to pass on: keys of its model, and its directories."""
    addresses: tuple[str, ...] = ()
    """Variables with the URL of another server for its model."""
    homes: tuple[AgentHome, ...] = ()
    installed: tuple[str, ...] = ()
    """Directories below the user's home with its program and updates. Read-only."""
    missing_is_empty: bool = False
    """Whether, over ACP, it creates a file only if reading the missing file succeeds."""
    used_directories: Callable[[Mapping[str, str], Path], Iterator[Any]] | None = None
    """Yields the directories of its work from its own files, by environment and home."""
    hooks: Hooks | None = None
    """None: callgate supports no hooks of this agent."""

    @property
    def program(self) -> str:
        return self.programs[0]


UNKNOWN = Agent(name="", label="")
"""Any other program. It needs no special treatment."""


# --- readers of files in which agents record their working directories --------------------------

_LARGEST = 8 * 1024 * 1024
_HEAD = 256 * 1024
_MOST_FILES = 500
"""Maximum number of sessions to read, the newest ones."""


def first_cwd(paths: Iterable[Path]) -> Iterator[Any]:
    """Yield the working directory from the first session that contains one."""
    for path in paths:
        for line in text_of(path, _HEAD).splitlines():
            if '"cwd"' not in line:
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            found = event.get("cwd") or _dictionary(event.get("payload")).get("cwd")
            if found:
                yield found
                return


def keys(document: dict[str, Any], name: str) -> list[Any]:
    return list(_dictionary(document.get(name)))


def _dictionary(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def json_of(path: Path) -> dict[str, Any]:
    try:
        return _dictionary(json.loads(text_of(path)))
    except (ValueError, RecursionError):
        return {}


def text_of(path: Path, most: int = _LARGEST) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def newest(directory: Path, ending: str, depth: int = 0) -> list[Path]:
    """Return the files of a directory and of `depth` levels below it, the newest first."""
    found = listed(directory)
    for _ in range(depth):
        found = [each for path in found for each in (listed(path) if path.is_dir() else [path])]
    files = [each for each in found if each.suffix == ending and each.is_file()]
    return sorted(files, key=_modified, reverse=True)[:_MOST_FILES]


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
