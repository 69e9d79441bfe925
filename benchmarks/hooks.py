"""What a hook of another agent costs: one decision of its command, and our sandbox.

    python -m benchmarks.hooks [--rounds N] [--hol-guard PATH] [--srt PATH]

Every round has one of each, so all see the same machine; medians, and the ratio to `python -c pass`
in the same round. An instance runs in a process of its own. The peers are measured only where their
programs are named: the command that `hol-guard install claude-code` writes, and `srt true`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

from callgate.features.agents.commands import editing

_RULE = '[[policy.rules]]\ndecision = "allow"\ntool = "shell"\ncommand = "echo *"\n'
_GOALS = {"hook command": "2.5 x", "callgate sandbox -- true": "60 ms"}


def event(workspace: str, number: int) -> bytes:
    return json.dumps({
        "session_id": "bench", "cwd": workspace, "hook_event_name": "PreToolUse",
        "tool_name": "Bash", "tool_input": {"command": "echo hi"}, "tool_use_id": f"use{number}",
        "permission_mode": "default", "transcript_path": "/dev/null",
    }).encode()  # fmt: skip


@contextmanager
def instance(directory: str) -> Iterator[tuple[dict[str, str], str]]:
    """The environment and the workspace of an instance."""
    home, workspace = os.path.join(directory, "gate"), os.path.join(directory, "work")
    os.makedirs(home, mode=0o700)
    os.makedirs(workspace)
    with open(os.path.join(home, "settings.toml"), "w", encoding="utf-8") as file:
        file.write(_RULE)
    editing.write_scripts(home, "claude", 65.0)
    env = {**os.environ, "CALLGATE_HOME": home, "HOME": directory}
    callgate = [sys.executable, "-m", "callgate"]
    serve = [*callgate, "serve", "--detach", "--workspace", workspace, "--no-http"]
    subprocess.run(serve, env=env, check=True, capture_output=True)
    try:
        yield env, workspace
    finally:
        subprocess.run([*callgate, "stop", "--now"], env=env, check=False, capture_output=True)


def measure(rounds: int, peers: Mapping[str, str]) -> dict[str, list[float]]:
    with (
        tempfile.TemporaryDirectory(
            prefix="callgate-benchmark-", dir=os.path.expanduser("~")
        ) as at,
        instance(at) as (env, workspace),
    ):
        home = env["CALLGATE_HOME"]
        hook = os.path.join(home, "hooks/claude/hook")
        callgate = os.path.join(os.path.dirname(sys.executable), "callgate")

        def run(*argv: str, data: bytes = b"") -> bytes:
            return subprocess.run(
                argv, env=env, cwd=workspace, input=data, capture_output=True, check=True
            ).stdout

        def by_command(number: int) -> None:
            _ensure_allowed(run(hook, "pre", data=event(workspace, number + rounds)))

        cases: dict[str, Callable[[int], Any]] = {
            "python -c pass": lambda _: run(sys.executable, "-c", "pass"),
            "hook command": by_command,
            "callgate sandbox -- true": lambda _: run(callgate, "sandbox", "--", "true"),
        }
        for name, command in peers.items():
            cases[name] = lambda number, command=command: run(
                "sh", "-c", command, data=event(workspace, number + rounds * 3)
            )
        for case in cases.values():  # load what is loaded once
            case(-1)
        times: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(rounds):
            for name, case in cases.items():
                began = time.perf_counter()
                case(number)
                times[name].append((time.perf_counter() - began) * 1000)
        return times


def _ensure_allowed(answer: bytes) -> None:
    if json.loads(answer)["hookSpecificOutput"]["permissionDecision"] != "allow":
        raise SystemExit(f"the call was not allowed: {answer!r}")


def hol_guard_command(program: str, home: str) -> str:
    """What its installation has Claude Code run before a call."""
    env = {**os.environ, "HOME": home}
    subprocess.run([program, "install", "claude-code"], env=env, check=True, capture_output=True)
    with open(os.path.join(home, ".claude/settings.json"), encoding="utf-8") as file:
        entries = json.load(file)["hooks"]["PreToolUse"]
    hook = entries[0]["hooks"][0]
    words = [hook["command"], *hook["args"]] if "args" in hook else ["sh", "-c", hook["command"]]
    return f"HOME={shlex.quote(home)} {shlex.join(words)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--hol-guard", metavar="PATH")
    parser.add_argument("--srt", metavar="PATH")
    options = parser.parse_args()
    peers: dict[str, str] = {}
    with tempfile.TemporaryDirectory(
        prefix="callgate-benchmark-peers-",
        ignore_cleanup_errors=True,  # their daemons live on
    ) as home:
        if options.hol_guard:
            peers["hol-guard"] = hol_guard_command(options.hol_guard, home)
        if options.srt:
            peers["srt true"] = f"{options.srt} true"
        times = measure(options.rounds, peers)
    base = times["python -c pass"]
    for name, found in times.items():
        ratio = median(a / b for a, b in zip(found, base, strict=True))
        goal = f"  goal {_GOALS[name]}" if name in _GOALS else ""
        print(f"{name:26} {median(found):7.1f} ms  {ratio:5.2f} x python -c pass{goal}")


if __name__ == "__main__":
    main()
