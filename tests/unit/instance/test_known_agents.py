"""What is known of agents of others, by the command that starts them."""

from __future__ import annotations

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
        assert not [name for name in agent.state if name.startswith("/") or ".." in name]
