"""Whether an agent's hook is there, active and trusted, and where the agent runs calls anyway."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.cli.hooks import editing, hook_client
from callgate.cli.hooks.codex_hooks import trust_status
from callgate.config.agents.jsonc_edits import NotJson, parse, value_of
from callgate.config.agents.settings_files import AGENTS, DIRECTORY, settings_files, user_file

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
    """None: this agent knows no trust."""

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


def look(home: str, agent: str, workspace: str) -> HookStatus:
    """What there is of an agent's hook now."""
    candidates = [user_file(agent)]
    if (project := AGENTS[agent].project) is not None:
        candidates.append(os.path.join(workspace, project))
    texts = {path: editing.read(path) or "" for path in candidates}
    holding = [path for path, text in texts.items() if editing.entries(agent, text, home)]
    program = shutil.which(AGENTS[agent].program)
    problems: list[str] = []
    trusted: bool | None = None
    if holding:
        problems += _problems(agent, home, holding, texts, workspace)
    if holding and agent == "codex":
        trusted = _codex_trust(program, home, workspace, problems)
    return HookStatus(
        agent=agent,
        program=program,
        version=_version(program),
        file=holding[0] if holding else candidates[0],
        installed=bool(holding),
        answered=bool(holding) and _is_answered(home, agent),
        problems=tuple(problems),
        trusted=trusted,
    )


def _problems(
    agent: str, home: str, holding: list[str], texts: dict[str, str], workspace: str
) -> list[str]:
    problems = []
    script = os.path.join(home, DIRECTORY, agent, "hook")
    if not os.access(script, os.X_OK):
        problems.append(f"{script} is missing: callgate hook install {agent}")
    for path in settings_files(agent, workspace):
        if _turns_hooks_off(path):
            problems.append(f"{path} turns all hooks off")
    for path in holding:
        for entry in editing.entries(agent, texts[path], home):
            if agent == "claude" and _hook(entry).get("onFailure") != "block":
                problems.append(f"{path}: the hook lacks onFailure = block, so failures run calls")
            if agent == "vibe" and entry.get("strict") is not True:
                problems.append(f"{path}: the hook lacks strict = true, so failures run calls")
            if agent == "claude" and "url" in _hook(entry):
                problems += _http_problems(_hook(entry))
    return problems


def _hook(entry: dict[str, Any]) -> dict[str, Any]:
    listed = entry.get("hooks")
    return listed[0] if isinstance(listed, list) and listed else entry


def _http_problems(hook: dict[str, Any]) -> list[str]:
    """Whether the address of an HTTP hook answers as ours does."""
    from urllib import error, request  # lazy: only for this form  # noqa: PLC0415

    headers = {"Content-Type": "application/json", **hook.get("headers", {})}
    asked = request.Request(hook["url"], data=b"{}", headers=headers, method="POST")  # noqa: S310
    try:
        with request.urlopen(asked, timeout=5) as answer:  # noqa: S310
            if b"permissionDecision" in answer.read(100_000):
                return []
    except (error.URLError, OSError, ValueError) as problem:
        return [f"{hook['url']} does not answer ({problem}): every call is blocked"]
    return [f"{hook['url']} answers, but not as callgate does"]


def _turns_hooks_off(path: str) -> bool:
    if not path.endswith(".json"):
        return False
    try:
        text = editing.read(path)
        settings = value_of(text, parse(text)) if text else {}
    except NotJson:
        return False
    if not isinstance(settings, dict):
        return False
    config = settings.get("hooksConfig")
    off = isinstance(config, dict) and config.get("enabled") is False
    return off or settings.get("disableAllHooks") is True


def _codex_trust(
    program: str | None, home: str, workspace: str, problems: list[str]
) -> bool | None:
    if program is None:
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
    except ValueError:
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
