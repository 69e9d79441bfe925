"""`callgate policy explain --by-agent` decides as the hooks of agents do, in either `[hooks] shell`."""

from __future__ import annotations

from pathlib import Path

from tests.kernel.cli.running import callgate


def test_a_command_that_hooks_send_to_the_sandbox_is_explained_as_sandboxed(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text('[hooks]\nshell = "sandbox"\n')
    words = ("policy", "explain", "shell", "command=git push", "--by-agent", "--mode", "read")
    ran = callgate(*words, "--json", cwd=ws)
    assert (ran.json["decision"], ran.json["sandbox"]) == ("allow", "read")
    inside, outside = ran.json["agents"]
    assert (inside["sandboxed"], "Claude Code" in inside["names"]) == (True, True)
    assert (outside["decision"], outside["reason"], "Kimi Code" in outside["names"]) == ("deny", "mode_read", True)
    text = callgate(*words, cwd=ws).out
    assert '[hooks] shell = "sandbox"' in text
    assert "Kimi Code" in text


def test_a_command_that_agents_run_is_explained_as_outside_the_sandbox(ws: Path, home: Path) -> None:
    ran = callgate("policy", "explain", "shell", "command=git push", "--by-agent", "--json", cwd=ws)
    assert ran.json["sandbox"] == "the agent's own process, outside the sandbox"
    assert "agents" not in ran.json


def test_a_command_that_only_reads_is_decided_as_the_hook_decides(ws: Path) -> None:
    for command, mode, decision in (
        ("git status", "guarded", "allow"),
        ("git status", "ask", "ask"),
        ("npm test", "guarded", "ask"),
        ("cd src && ls", "guarded", "ask"),
    ):
        words = ("policy", "explain", "shell", f"command={command}", "--by-agent", "--mode", mode, "--json")
        assert callgate(*words, cwd=ws).json["decision"] == decision, command
