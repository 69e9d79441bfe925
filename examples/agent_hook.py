"""A third-party agent behind the gate: the hook's request and callgate's answer.

    python examples/agent_hook.py

`callgate hook install claude` does this for Claude Code. The example runs the hook manually,
with the event that Claude Code would send.
"""

import asyncio
import json
import subprocess
import tempfile
from pathlib import Path

import callgate
from callgate.features.agents.commands.editing import write_scripts

RULE = '[[policy.rules]]\ndecision = "deny"\ntool = "shell"\ncommand = "rm *"\n'


def ask(home: Path, workspace: Path, tool: str, **input: str) -> str:
    """Return the hook's answer to Claude Code before a call."""
    event = {
        "session_id": "example",
        "cwd": str(workspace),
        "hook_event_name": "PreToolUse",
        "tool_name": tool,
        "tool_input": input,
    }
    hook = home / "hooks/claude/hook"
    done = subprocess.run([hook, "pre"], input=json.dumps(event), capture_output=True, text=True)
    answer = json.loads(done.stdout)["hookSpecificOutput"]
    return f"{answer['permissionDecision']}: {answer['permissionDecisionReason']}"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        home, workspace = Path(directory, "home"), Path(directory, "work")
        home.mkdir(mode=0o700)
        workspace.mkdir()
        (home / "settings.toml").write_text(RULE)
        write_scripts(str(home), "claude", wait_s=5.0)
        print(await asyncio.to_thread(ask, home, workspace, "Read", file_path="notes.txt"))
        async with callgate.serve(workspace, home=home):
            print(await asyncio.to_thread(ask, home, workspace, "Read", file_path="notes.txt"))
            print(await asyncio.to_thread(ask, home, workspace, "Bash", command="rm -rf build"))


asyncio.run(main())
