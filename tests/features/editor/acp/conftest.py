"""Agents that several tests share, each test with a session of its own, and one model for all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.features.editor.acp.editor import EVERYTHING, NOTHING, Editor
from tests.features.editor.acp.models import Models, served

SETTINGS = """
model = "played"

[agent]
cycles = 6

[models.played]
kind = "anthropic"
model = "played"
base_url = "{url}/v1"
retries = 0
images = true

[models.blind]
kind = "anthropic"
model = "played"
base_url = "{url}/v1"
retries = 0
images = false
"""

NewHome = Callable[..., Path]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def models() -> AsyncIterator[Models]:
    async with served() as made:
        yield made


@pytest.fixture(scope="session")
def new_home(models: Models, tmp_path_factory: pytest.TempPathFactory) -> NewHome:
    """A home whose model is ours; what is given comes first in its settings."""

    def new(settings: str = "", tables: str = "") -> Path:
        home = tmp_path_factory.mktemp("person") / ".callgate"
        home.mkdir(mode=0o700)
        (home / "settings.toml").write_text(settings + SETTINGS.format(url=models.url) + tables)
        return home

    return new


async def _agent(home: Path, capabilities: dict[str, Any]) -> AsyncIterator[Editor]:
    editor = await Editor.spawned(home)
    try:
        await editor.greet(capabilities)
        yield editor
    finally:
        await editor.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_rich(new_home: NewHome) -> AsyncIterator[Editor]:
    async for editor in _agent(new_home(), EVERYTHING):
        yield editor


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_poor(new_home: NewHome) -> AsyncIterator[Editor]:
    async for editor in _agent(new_home(), NOTHING):
        yield editor


def _kept(editor: Editor) -> Iterator[Editor]:
    """Problems are those of the test in which they show."""
    assert not editor.ended.is_set(), f"the agent has ended:\n{editor.logged()[-3000:]}"
    before = set(editor.broken())
    yield editor
    assert [each for each in editor.broken() if each not in before] == []


@pytest.fixture
def rich(shared_rich: Editor) -> Iterator[Editor]:
    """An editor with files and terminals; its agent lives on after the test."""
    yield from _kept(shared_rich)


@pytest.fixture
def poor(shared_poor: Editor) -> Iterator[Editor]:
    """An editor that can do nothing but ask."""
    yield from _kept(shared_poor)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made
