"""Editors with the scripted agent behind the proxy, each test with a home of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.talks import Talk

AGENT = Path(__file__).with_name("agent.py")
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
ALLOWED = {"outcome": {"outcome": "selected", "optionId": "yes"}}
REJECTED = {"outcome": {"outcome": "selected", "optionId": "no"}}
CANCELLED = {"outcome": {"outcome": "cancelled"}}

Open = Callable[..., AbstractAsyncContextManager[Editor]]


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


@pytest.fixture
def opened(home: Path, workspace: Path) -> Open:
    """An editor, greeted, whose agent is the scripted one."""

    @asynccontextmanager
    async def open(
        *arguments: str,
        settings: str = "",
        command: tuple[str, ...] = (sys.executable, str(AGENT)),
        capabilities: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> AsyncIterator[Editor]:
        (home / "settings.toml").write_text(settings)
        given = ("--network", "none", *(f"--env={name}" for name in env or {}), *arguments)
        editor = await Editor.spawned(home, *given, "--", *command, subcommand="acp-proxy", cwd=workspace, env=env)
        try:
            await editor.greet(capabilities or {})
            yield editor
        finally:
            await editor.stop()
        assert editor.problems == []

    return open


async def play(talk: Talk, *steps: dict[str, Any]) -> list[Any]:
    """What came of each step of the agent."""
    before = len(talk.text())
    assert await talk.prompt(json.dumps(steps)) == "end_turn"
    return [json.loads(line) for line in talk.text()[before:].splitlines()]


def permission(id: str, **fields: Any) -> dict[str, Any]:
    """A step in which the agent asks whether it may."""
    params = {"toolCall": {"toolCallId": id, **fields}, "options": OPTIONS}
    return {"ask": "session/request_permission", "params": params}


def records(home: Path) -> list[dict[str, Any]]:
    path = home / "audit.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [record for line in lines if "tool" in (record := json.loads(line))]


def asked(talk: Talk) -> list[dict[str, Any]]:
    return talk.asked("session/request_permission")
