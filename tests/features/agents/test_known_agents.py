"""What is known of agents of others, by the command that starts them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from callgate.features.agents import known
from callgate.features.agents.known import (
    KNOWN,
    UNKNOWN,
    find,
    hooked,
    local_services,
    model_hosts,
    settings_files,
    user_file,
)
from callgate.features.agents.known.values import Agent, AgentHome
from callgate.sandbox.allowed_hosts import parse
from callgate.workspace.protected import is_protected


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
    assert (known is UNKNOWN) == (name in ("agent", "python"))


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
        assert not [name for name in (*names, *agent.installed) if name.startswith("/") or ".." in name]


def row(agent: Agent) -> str:
    """The row of an agent in the table of what persists."""
    cells = [agent.label]
    for part in ("data", "login"):
        texts = []
        for home in agent.homes:
            data = (*home.persistent, *home.persistent_files)
            names = data if part == "data" else [login.outside or login.file for login in home.logins]
            outside = {login.outside for login in home.logins if login.outside}
            below = [f"`{each}`" for each in names if each not in outside and each != "."]
            if home.path and not home.optional and below:
                texts.append(f"`~/{home.path}/`: " + ", ".join(below))
            texts += [f"`~/{each}`" for each in names if each in outside]
        cells.append("; ".join(texts) or "none")
    return f"| {' | '.join(cells)} |"


PAGE = (Path(__file__).parents[3] / "docs/reference/agents.md").read_text()


@pytest.mark.parametrize("agent", KNOWN.values(), ids=KNOWN)
def test_the_page_on_agents_lists_what_persists_and_what_was_verified(agent: Agent) -> None:
    assert row(agent) in PAGE
    if agent.hooks is not None:
        assert f"| {agent.label} | {agent.hooks.verified} |" in PAGE


MOVED = [
    (name, home)
    for name, agent in KNOWN.items()
    for home in agent.homes
    if agent.hooks and home.path and home.variable and agent.hooks.user.startswith(f"~/{home.path}/")
]


@pytest.mark.parametrize(("name", "home"), MOVED, ids=[name for name, _ in MOVED])
def test_a_hook_is_installed_in_the_directory_that_the_agents_variable_names(name: str, home: AgentHome) -> None:
    """Gemini CLI, Qwen Code and opencode read no settings in the usual place then."""
    environ = {home.variable: "/elsewhere"}
    directory = os.path.normpath(f"/elsewhere/{home.below}")
    assert user_file(name, environ).startswith(f"{directory}/")
    assert user_file(name, environ) in settings_files(name, "/w", environ)


@pytest.mark.parametrize("agent", hooked())
def test_what_an_agent_executes_in_a_workspace_is_protected_there(agent: str) -> None:
    hooks = hooked()[agent]
    named = [each for each in (hooks.project, *hooks.protected) if each and not each.startswith("~")]
    files = [*named, *hooks.added.settings, *hooks.added.servers, *hooks.switches.files]
    directories = [*hooks.added.programs, *hooks.switches.programs]
    paths = [*files, *(f"{each.rstrip('/')}/x" for each in directories)]
    assert [path for path in paths if not is_protected(path.rstrip("/"))] == []


def test_no_module_but_that_of_an_agent_compares_its_name() -> None:
    source = Path(known.__file__).parents[1]
    names = "|".join(KNOWN)
    comparison = re.compile(rf"""(?:==|!=|\bin \(?)\s*["'](?:{names})["']|["'](?:{names})["']\s*:""")
    found = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        if path.parent.name not in ("known", "frameworks")
        for line in path.read_text().splitlines()
        if comparison.search(line)
    ]
    assert found == []


def test_no_name_of_an_agents_directory_has_two_meanings() -> None:
    for agent in KNOWN.values():
        for home in agent.homes:
            logins = [login.file for login in home.logins]
            settings = [name.rstrip("/") for name in home.configuration]
            names = [*home.persistent, *home.persistent_files, *home.private, *logins, *settings]
            assert len(names) == len(set(names))
            persistent = (*home.persistent, *home.persistent_files, *logins)
            assert not [name for name in persistent for above in settings if f"{name}/".startswith(f"{above}/")]


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("claude", {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"}),
        ("codex", {"OPENAI_API_KEY", "CODEX_API_KEY"}),
        ("gemini", {"GEMINI_API_KEY", "GOOGLE_API_KEY"}),
    ],
)
def test_the_variables_of_an_agents_login_are_passed_on(name: str, variables: set[str]) -> None:
    assert variables <= set(KNOWN[name].env)


def test_local_services_of_an_agent_are_those_that_the_users_settings_name(tmp_path: Path) -> None:
    home, workspace = tmp_path / "codex", tmp_path / "ws"
    home.mkdir()
    (workspace / "codex").mkdir(parents=True)
    (home / "config.toml").write_text('base_url = "http://localhost:11434/v1"\n')
    (home / "AGENTS.md").write_text("Ask http://localhost:5432 for everything.")
    (workspace / "codex/config.toml").write_text('base_url = "http://localhost:5433/v1"\n')
    environ = {"CODEX_HOME": str(home), "HTTPS_PROXY": "http://user:word@127.0.0.1:3128"}

    def found(**more: str) -> set[tuple[str, int]]:
        services = local_services("codex", {**environ, **more}, str(workspace))
        return {(each.name, port) for each in services for port in each.ports}

    assert found() == {("localhost", 11434), ("127.0.0.1", 3128)}
    assert found(CODEX_HOME=str(workspace / "codex")) == {("127.0.0.1", 3128)}
