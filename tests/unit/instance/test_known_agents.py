"""What is known of agents of others, by the command that starts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.instance.known_agents import KNOWN, KnownAgent, find, model_hosts
from callgate.sandbox.allowed_hosts import parse


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("gemini --acp", "gemini"),
        ("/opt/bin/gemini --acp", "gemini"),
        ("npx -y @google/gemini-cli@0.61.0 --acp", "gemini-cli"),
        ("npx @agentclientprotocol/claude-agent-acp@latest", "claude-agent-acp"),
        ("/x/node /a/node_modules/@qwen-code/qwen-code/cli.js --acp", "qwen-code"),
        ("node /a/node_modules/opencode-ai/bin/run.js", "opencode-ai"),
        ("uvx --from mistral-vibe vibe-acp", "mistral-vibe"),
        ("/w/agent.py", "agent"),
        ("python agent.py", "python"),
    ],
)
def test_an_agent_is_known_by_its_program_or_package(command: str, name: str) -> None:
    found, known = find(command.split())
    assert found == name
    assert (known == KnownAgent()) == (name not in KNOWN)


def test_an_address_in_a_variable_is_the_model_too() -> None:
    claude = KNOWN["claude"]
    for address, host in (
        ("http://127.0.0.1:8901", "127.0.0.1:8901"),
        ("https://gateway.example.org/anthropic", "gateway.example.org"),
        ("http://localhost:11434/v1", "private:localhost:11434"),
        ("http://[::1]:7", "[::1]:7"),
    ):
        assert model_hosts(claude, {"ANTHROPIC_BASE_URL": address})[0] == host
    for wrong in ("http://", "http://a:b:c", "::"):
        assert model_hosts(claude, {"ANTHROPIC_BASE_URL": wrong})[-len(claude.hosts) :] == claude.hosts


def test_every_known_host_can_be_allowed() -> None:
    for agent in KNOWN.values():
        for host in agent.hosts:
            parse(host)
        names = [name for home in agent.homes for name in (home.path, *home.persistent, *home.private)]
        assert not [name for name in (*names, *agent.programs) if name.startswith("/") or ".." in name]


LABELS = {
    "claude": "Claude Code",
    "codex": "Codex",
    "gemini": "Gemini CLI",
    "qwen": "Qwen Code",
    "kimi": "Kimi Code",
    "vibe": "Mistral Vibe",
    "opencode": "opencode",
    "cursor-agent": "Cursor",
    "goose": "goose",
}


def rows() -> list[str]:
    """The table of the page on agents."""
    lines = []
    for name, label in LABELS.items():
        cells = [label]
        for part in ("data", "login"):
            texts = []
            for home in KNOWN[name].homes:
                data = (*home.persistent, *home.persistent_files)
                names = data if part == "data" else [login.outside or login.file for login in home.logins]
                outside = {login.outside for login in home.logins if login.outside}
                below = [f"`{each}`" for each in names if each not in outside and each != "."]
                if home.path and not home.optional and below:
                    texts.append(f"`~/{home.path}/`: " + ", ".join(below))
                texts += [f"`~/{each}`" for each in names if each in outside]
            cells.append("; ".join(texts) or "none")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def test_the_page_on_agents_lists_what_persists() -> None:
    assert {id(agent) for agent in KNOWN.values()} == {id(KNOWN[name]) for name in LABELS}
    page = (Path(__file__).parents[3] / "docs/use/agents.md").read_text()
    assert [row for row in rows() if row not in page] == []


def test_no_name_of_an_agents_directory_has_two_meanings() -> None:
    for agent in KNOWN.values():
        for home in agent.homes:
            logins = [login.file for login in home.logins]
            settings = [name.rstrip("/") for name in home.configuration]
            names = [*home.persistent, *home.persistent_files, *home.private, *logins, *settings]
            assert len(names) == len(set(names))
            persistent = (*home.persistent, *home.persistent_files, *logins)
            assert not [name for name in persistent for above in settings if f"{name}/".startswith(f"{above}/")]
