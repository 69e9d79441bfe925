"""Whether an agent's hook is there, active and trusted, and where the agent runs calls anyway."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from callgate.cli.hooks import editing, hook_client, scripts
from callgate.cli.hooks.codex_hooks import trust_status
from callgate.config.agents import hook_switches
from callgate.config.agents.settings_files import AGENTS, DIRECTORY, user_file

_VERSION_S = 20

OPEN: Mapping[str, tuple[str, ...]] = {
    "claude": (),
    "codex": (
        "If the shell that runs the hook is killed, the call runs.",
        "Hooks that are not trusted are skipped without a word, and any edit of hooks.json"
        " un-trusts them.",
        "What it types into a running process (write_stdin) fires no hook: callgate closes the"
        " input of every command that it allows.",
    ),
    "gemini": ("If the shell that runs the hook is killed, or exits with 1, the call runs.",),
    "cursor": (
        "callgate could not run Cursor: this follows its published format, with failClosed.",
    ),
    "opencode": ("A plugin that fails to load is skipped without a word.",),
    "qwen": ("If the shell that runs the hook is killed, or the hook times out, the call runs.",),
    "vibe": ("Without strict = true in its hook, every failure lets the call run.",),
    "kimi": ("If the shell that runs the hook is killed, or the hook times out, the call runs.",),
}
"""By design of the agent, whatever callgate does; `callgate sandbox --` holds there, too."""


class HookStatus(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    program: str | None
    version: str | None
    file: str
    """The settings in which the hook is, or would be."""
    installed: bool
    answered: bool
    """An instance took an event with the hook's token."""
    problems: tuple[str, ...]
    trusted: bool | None = None
    """None: this agent knows no trust, or could not be asked, which is one of the problems."""

    @property
    def is_guarded(self) -> bool:
        return self.installed and self.answered and not self.problems and self.trusted is not False

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {**found, "guarded": self.is_guarded, "fails_open": list(OPEN[self.agent])}

    def text(self) -> str:
        label = AGENTS[self.agent].label
        state = "guarded" if self.is_guarded else "NOT protected"
        if not self.installed:
            state = "not behind the gate"
        lines = [f"{self.agent}: {label} {self.version or '(not found)'}: {state}"]
        if self.installed:
            lines.append(f"  hook      {self.file}")
        if self.trusted is not None:
            lines.append(f"  trusted   {'yes' if self.trusted else 'no'}")
        if self.installed:
            lines.append(f"  instance  {'answers' if self.answered else 'none answers'}")
            lines += [f"  problem   {each}" for each in self.problems]
            lines += [f"  fails open by design: {each}" for each in OPEN[self.agent]]
        return "\n".join(lines)


def installed_files(home: str, agent: str, workspace: str) -> dict[str, list[dict[str, Any]]]:
    """The settings files that contain our hook, each with its entries."""
    found = {
        path: editing.entries(agent, editing.read(path) or "", home)
        for path in _candidates(agent, workspace)
    }
    return {path: entries for path, entries in found.items() if entries}


def _candidates(agent: str, workspace: str) -> list[str]:
    """The user's settings, the workspace's, and the administrator's."""
    project, managed = AGENTS[agent].project, hook_switches.SWITCHES[agent].managed
    in_workspace = None if project is None else os.path.join(workspace, project)
    return [path for path in (user_file(agent), in_workspace, managed) if path is not None]


def warnings(home: str, workspaces: Sequence[str]) -> list[str]:
    """Reasons why installed hooks do not protect, as far as settings files show them. Starts no
    program and sends nothing."""
    found: dict[str, None] = {}
    for agent in AGENTS:
        for workspace in workspaces:
            holding = installed_files(home, agent, workspace)
            for path, entries in holding.items():
                for hook in map(_hook, entries):
                    if "url" in hook:
                        found[f"{path}: {http_problem(agent, str(hook['url']))}"] = None
            if holding:
                label = AGENTS[agent].label
                for switch in hook_switches.in_files(agent, workspace, home):
                    found[f"{switch}: {label} would run calls that callgate does not see"] = None
    return list(found)


def look(home: str, agent: str, workspace: str, wait_s: float) -> HookStatus:
    """What there is of an agent's hook now. `wait_s`: how long the settings let it wait."""
    holding = installed_files(home, agent, workspace)
    program = shutil.which(AGENTS[agent].program)
    problems: list[str] = []
    trusted: bool | None = None
    if holding:
        problems += _problems(agent, home, workspace, wait_s)
        for path, found in holding.items():
            problems += _entry_problems(agent, home, path, found, wait_s)
    if holding and agent == "codex":
        trusted = _codex_trust(program, home, workspace, problems)
    return HookStatus(
        agent=agent,
        program=program,
        version=_version(program),
        file=next(iter(holding), user_file(agent)),
        installed=bool(holding),
        answered=bool(holding) and _is_answered(home, agent),
        problems=tuple(problems),
        trusted=trusted,
    )


def _problems(agent: str, home: str, workspace: str, wait_s: float) -> list[str]:
    problems = []
    script = os.path.join(home, DIRECTORY, agent, "hook")
    if not os.access(script, os.X_OK):
        problems.append(f"{script} is missing: callgate hook install {agent}")
    elif editing.read(script) != scripts.script_texts(home, agent, wait_s)["hook"]:
        problems.append(f"{script} is not as callgate writes it: callgate hook install {agent}")
    problems += hook_switches.in_files(agent, workspace, home)
    problems += hook_switches.in_environment(agent, os.environ)
    return problems


def _entry_problems(
    agent: str, home: str, path: str, found: list[dict[str, Any]], wait_s: float
) -> list[str]:
    """One entry must be as we write it: whatever differs may be what lets calls run."""
    problems: list[str] = []
    expected = editing.expected(agent, home, wait_s)
    for entry in found:
        hook = _hook(entry)
        if "url" in hook:
            problems.append(f"{path}: {http_problem(agent, str(hook['url']))}")
        elif entry != expected:
            names = sorted(_differing(entry, expected) | _differing(hook, _hook(expected)))
            problems.append(
                f"{path}: the hook is not as callgate writes it ({', '.join(names)}):"
                f" callgate hook install {agent}"
            )
    return problems


def http_problem(agent: str, url: str) -> str:
    """Why an HTTP hook does not protect. Nothing is sent to its address: any user of the machine
    may listen there."""
    return (
        f"the hook posts its token to {url} and obeys any process that listens there:"
        f" replace it with callgate hook install {agent}"
    )


def posted_urls(home: str, agent: str, text: str) -> list[str]:
    """Addresses of the HTTP hooks that older versions installed into an agent's settings."""
    hooks = map(_hook, editing.entries(agent, text, home))
    return [str(hook["url"]) for hook in hooks if "url" in hook]


def _differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    names = (one.keys() | other.keys()) - {"hooks"}
    return {name for name in names if one.get(name) != other.get(name)}


def _hook(entry: dict[str, Any]) -> dict[str, Any]:
    listed = entry.get("hooks")
    return listed[0] if isinstance(listed, list) and listed else entry


def _codex_trust(
    program: str | None, home: str, workspace: str, problems: list[str]
) -> bool | None:
    if program is None:
        problems.append("codex is not found, so nobody knows whether it trusts the hook")
        return None
    try:
        states = trust_status(program, workspace, os.path.join(home, DIRECTORY, "codex"))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        problems.append(f"codex app-server does not say which hooks it trusts: {error}")
        return False
    if not states:
        problems.append("codex does not list callgate's hook")
    for state in states:
        if state != "trusted":
            problems.append(f"the hook is {state}: start codex, open /hooks, and trust it")
    return bool(states) and all(state == "trusted" for state in states)


def _is_answered(home: str, agent: str) -> bool:
    try:
        answer = hook_client._ask(agent, "pre", os.path.join(home, DIRECTORY), b"{}", 5.0)
    except (hook_client.NoAnswer, OSError, ValueError):
        return False
    try:
        return isinstance(json.loads(answer), dict)
    except (ValueError, RecursionError):
        return False


def _version(program: str | None) -> str | None:
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0][:80] if lines else None
