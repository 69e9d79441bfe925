"""The state of an agent's hook: one verdict, its reasons, and the fix for each.

Also the findings about hooks for `callgate doctor` and `callgate policy explain`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from callgate.cli.findings import AgentHere, Finding, Level, Patient, good
from callgate.config.home import Home
from callgate.config.trust import is_within_trusted
from callgate.features.agents.commands import editing, hook_client
from callgate.features.agents.hooks import hook_switches
from callgate.features.agents.known import (
    DIRECTORY,
    KNOWN,
    hooked,
    hooks_of,
    settings_text,
    user_file,
)
from callgate.policy.rules import is_within
from callgate.socket.instances import lasting

_VERSION_S = 20


class Problem(msgspec.Struct, frozen=True):
    reason: str
    fix: str
    """A command to run, or a step for the person."""
    blocks: bool = False
    """Whether the agent's calls are refused. Otherwise they may run without callgate."""


class ProtectionState(StrEnum):
    PROTECTED = "protected"
    BLOCKED = "blocked"
    EXPOSED = "not_protected"
    ABSENT = "no_hook"


_VERDICT_WORDS: Mapping[ProtectionState, str] = {
    ProtectionState.PROTECTED: "protected",
    ProtectionState.BLOCKED: "blocked: the hook refuses every call",
    ProtectionState.EXPOSED: "NOT protected: calls may run without callgate",
    ProtectionState.ABSENT: "not protected: no hook is installed",
}


class HookStatus(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    program: str | None
    version: str | None
    file: str
    """The settings file of the hook, also if it is not installed."""
    installed: bool
    problems: tuple[Problem, ...]
    trusted: bool | None = None
    """Whether the agent trusts the hook; None: unknown, or the agent has no such trust."""
    conversation: str = ""
    """Why the guard does not know the conversation; empty if the hook reports it."""

    @property
    def verdict(self) -> ProtectionState:
        if not self.installed:
            return ProtectionState.ABSENT
        if any(not each.blocks for each in self.problems):
            return ProtectionState.EXPOSED
        return ProtectionState.BLOCKED if self.problems else ProtectionState.PROTECTED

    @property
    def is_protected(self) -> bool:
        return self.verdict is ProtectionState.PROTECTED

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        limits = list(hooks_of(self.agent).fails_open)
        return {
            **found,
            "verdict": self.verdict,
            "protected": self.is_protected,
            "fails_open": limits,
        }

    def text(self) -> str:
        """Return the verdict, then each reason with its fix."""
        name = f"{KNOWN[self.agent].label} {self.version or '(version unknown)'}"
        if self.program is None:
            name = f"{KNOWN[self.agent].label} ({KNOWN[self.agent].program} is not in PATH)"
        lines = [f"{name}: {_VERDICT_WORDS[self.verdict]}"]
        for each in self.problems:
            lines += [f"  why   {each.reason}", f"  fix   {each.fix}"]
        if not self.installed:
            return "\n".join([*lines, f"  fix   callgate protect {self.agent}"])
        lines.append(f"  hook  {self.file}")
        notes = [*filter(None, [self.conversation]), *hooks_of(self.agent).fails_open]
        return "\n".join([*lines, *(f"  note  {each}" for each in notes)])


def installed_files(home: str, agent: str, workspace: str) -> dict[str, list[dict[str, Any]]]:
    """Return the settings files that contain callgate's hook, each with its entries."""
    found = {
        path: editing.entries(agent, settings_text(path) or "", home)
        for path in _candidates(agent, workspace)
    }
    return {path: entries for path, entries in found.items() if entries}


def _candidates(agent: str, workspace: str) -> list[str]:
    """Return the settings files of user, workspace and administrator, each once."""
    hooks = hooks_of(agent)
    project, managed = hooks.project, hooks.switches.managed
    in_workspace = None if project is None else os.path.join(workspace, project)
    paths = [path for path in (user_file(agent), in_workspace, managed) if path is not None]
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def warnings(home: str, workspaces: Sequence[str]) -> list[str]:
    """Return the reasons in settings files why installed hooks do not protect.

    Starts no program and sends nothing.
    """
    found: dict[str, None] = {}
    for agent in hooked():
        for workspace in workspaces:
            holding = installed_files(home, agent, workspace)
            for path, entries in holding.items():
                for hook in map(_hook, entries):
                    if "url" in hook:
                        why = f"{path}: {http_problem(str(hook['url']))}"
                        found[f"{why}: replace it with {_replace(agent)}"] = None
            if holding:
                label = KNOWN[agent].label
                for switch in hook_switches.in_files(agent, workspace, home):
                    found[f"{switch}: {label} would run calls that callgate does not see"] = None
    return list(found)


def look(home: str, agent: str, workspace: str, wait_s: float) -> HookStatus:
    """Return the present state of an agent's hook. `wait_s`: its time limit in the settings."""
    holding = installed_files(home, agent, workspace)
    program = shutil.which(KNOWN[agent].program)
    problems: list[Problem] = []
    trusted: bool | None = None
    if holding:
        problems += _switches(agent, home, workspace)
        for path, found in holding.items():
            problems += _entry_problems(agent, home, path, found, wait_s)
        trusted, more = look_at_trust(agent, home, workspace)
        problems += more
        problems += _blocks(agent, home, workspace, wait_s)
    return HookStatus(
        agent=agent,
        program=program,
        version=_version(program),
        file=next(iter(holding), user_file(agent)),
        installed=bool(holding),
        problems=tuple(dict.fromkeys(problems)),
        trusted=trusted,
        conversation=_conversation(agent, home, list(holding)),
    )


def _conversation(agent: str, home: str, paths: Sequence[str]) -> str:
    """Return why the guard does not know the conversation; empty if it does."""
    why = ""
    if not hooks_of(agent).file.reports_prompts:
        why = f"{KNOWN[agent].label} has no hook for your messages"
    elif not hasattr(socket, "SO_PEERCRED"):
        why = "this system does not name the process that reports your messages"
    elif not any(
        editing.entries(agent, settings_text(path) or "", home, "prompt") for path in paths
    ):
        why = f"the hook for your messages is missing: {_replace(agent)}"
    return why and f"The guard does not know the conversation: {why}."


def _switches(agent: str, home: str, workspace: str) -> list[Problem]:
    files = hook_switches.in_files(agent, workspace, home)
    variables = hook_switches.in_environment(agent, os.environ)
    instead = f"or run the agent in the sandbox: callgate sandbox -- {KNOWN[agent].program}"
    return [
        *(Problem(each, f"remove the setting, {instead}") for each in files),
        *(Problem(each, "unset the variable") for each in variables),
    ]


def _blocks(agent: str, home: str, workspace: str, wait_s: float) -> list[Problem]:
    """Return the reasons why the hook refuses every call."""
    script = os.path.join(home, DIRECTORY, agent, "hook")
    install = f"callgate protect {agent}"
    if not os.access(script, os.X_OK):
        return [Problem(f"{script} is missing", install, blocks=True)]
    if editing.read(script) != editing.script_texts(home, agent, wait_s)["hook"]:
        return [Problem(f"{script} differs from the script of this version", install)]
    if not _is_answered(home, agent):
        return [Problem("no callgate instance is running", install, blocks=True)]
    if not is_served(home, workspace):
        fix = f"callgate trust {shlex.quote(workspace)}"
        return [Problem(f"callgate does not serve {workspace}", fix, blocks=True)]
    return []


def is_served(home: str, directory: str) -> bool:
    """Return whether the newest instance, which answers hooks, accepts calls from a directory."""
    real = os.path.realpath(directory)
    if is_within_trusted(Home(home), real):
        return True
    return any(is_within(real, root) for each in lasting(home)[:1] for root in each.workspaces)


def _entry_problems(
    agent: str, home: str, path: str, found: list[dict[str, Any]], wait_s: float
) -> list[Problem]:
    """Return the differences from callgate's own entry. Any difference may let calls run."""
    problems: list[Problem] = []
    expected = editing.expected(agent, home, wait_s)
    for entry in found:
        hook = _hook(entry)
        if "url" in hook:
            problems.append(Problem(f"{path}: {http_problem(str(hook['url']))}", _replace(agent)))
        elif entry != expected:
            names = sorted(_differing(entry, expected) | _differing(hook, _hook(expected)))
            reason = f"{path}: the hook differs from callgate's ({', '.join(names)})"
            problems.append(Problem(reason, _replace(agent)))
    return problems


def _replace(agent: str) -> str:
    return f"callgate hook install {agent}"


def http_problem(url: str) -> str:
    """Return why an HTTP hook does not protect.

    The check sends nothing to the URL, because any user of the machine may listen there.
    """
    return f"the hook posts its token to {url} and obeys any process that listens there"


def posted_urls(home: str, agent: str, text: str) -> list[str]:
    """Return the URLs of HTTP hooks, which older versions installed into an agent's settings."""
    hooks = map(_hook, editing.entries(agent, text, home))
    return [str(hook["url"]) for hook in hooks if "url" in hook]


def _differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    names = (one.keys() | other.keys()) - {"hooks"}
    return {name for name in names if one.get(name) != other.get(name)}


def _hook(entry: dict[str, Any]) -> dict[str, Any]:
    listed = entry.get("hooks")
    return listed[0] if isinstance(listed, list) and listed else entry


def look_at_trust(agent: str, home: str, workspace: str) -> tuple[bool | None, list[Problem]]:
    """Return whether the agent trusts the hook, and the fixes if it does not.

    None: unknown, or the agent runs hooks without a review.
    """
    hooks, label, name = hooks_of(agent), KNOWN[agent].label, KNOWN[agent].program
    if hooks.trust is None:
        return None, []
    program = shutil.which(name)
    if program is None:
        reason = f"{name} is not in PATH, so whether it trusts the hook is unknown"
        return None, [Problem(reason, f"put {name} into PATH")]
    try:
        states = hooks.trust(program, workspace, os.path.join(home, DIRECTORY, agent))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = f"{label} did not return its trusted hooks: {error}"
        return None, [Problem(reason, f"update {label} to a version that can list its hooks")]
    if not states:
        return False, [Problem(f"{label} does not list callgate's hook", _replace(agent))]
    untrusted = [state for state in states if state != "trusted"]
    reasons = [f"{label} skips the hook, because its trust is: {state}" for state in untrusted]
    return not untrusted, [Problem(reason, hooks.review) for reason in reasons]


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
    lines = done.stdout.strip().splitlines()
    return lines[0][:80] if lines and done.returncode == 0 else None


def check_hooks(patient: Patient) -> Finding:
    """Report installed hooks that do not protect, as far as settings files show it."""
    found = warnings(patient.home.path, [patient.workspace])
    if found:
        return Finding(Level.FAILED, "; ".join(found), "for details, run callgate hook status")
    return good("nothing turns off a hook of an agent")


def agents_here(home: str, workspace: str) -> list[AgentHere]:
    """Return all known agents, with their state on this machine."""
    return [
        AgentHere(
            name,
            KNOWN[name].label,
            is_guarded=bool(installed_files(home, name, workspace)),
            is_installed=shutil.which(KNOWN[name].program) is not None,
        )
        for name in hooked()
    ]


def shell_agents(*, rewrites: bool) -> list[str]:
    """Return the labels of the agents whose commands a hook can rewrite, or of the others."""
    return [
        KNOWN[name].label for name, each in hooked().items() if each.dialect.rewrites is rewrites
    ]
