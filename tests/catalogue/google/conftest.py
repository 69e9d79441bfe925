"""A local Google with something of everything in it, and an account that is logged in there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.core import http
from tests.catalogue.google.desk import Desk, seeded
from tests.google_server import GoogleServer


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_WAIT_S", 0.001)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
async def google() -> AsyncIterator[GoogleServer]:
    async with seeded(GoogleServer()) as server:
        yield server


@pytest.fixture
async def desk(google: GoogleServer, home: Path, tmp_path: Path) -> AsyncIterator[Desk]:
    """Everything that a tool may be, with leave for everything."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "note.txt").write_text("A note.")
    made = Desk(google, home, workspace)
    made.log_in()
    yield made
    await made.close()
