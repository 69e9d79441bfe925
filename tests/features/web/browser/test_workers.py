"""Remote workers on the page: who is connected, shown as text whatever a worker says of itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.features.fleet.worker.scripted import DESCRIPTION, ScriptedWorker
from tests.features.web.browser.conftest import NewPage
from tests.features.web.browser.instances import Served
from tests.needs import needs

pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

BAIT = "<img src=x onerror=\"document.title='taken'\">"


@pytest.fixture
def served(home: Path, tmp_path: Path) -> Iterator[Served]:
    made = Served(home, tmp_path / "project")
    try:
        made.start()
        yield made
    finally:
        made.stop()


def connected(served: Served) -> ScriptedWorker:
    words = [sys.executable, "-m", "callgate", "workers", "token", "create", "--pool", "build", "--json"]
    token = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60).stdout)["token"]
    worker = ScriptedWorker(served.url, token)
    worker.greet({**DESCRIPTION, "version": BAIT})
    return worker


async def test_the_page_shows_the_workers_that_are_connected(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await page.evaluate("location.hash = '#/hosts'")
    await expect(page.get_by_role("heading", name="Hosts")).to_be_visible()
    await expect(page.get_by_role("table", name="Remote workers")).to_have_count(0)
    worker = await asyncio.to_thread(connected, served)
    await page.evaluate("location.hash = '#/policy'")
    await page.evaluate("location.hash = '#/hosts'")
    table = page.get_by_role("table", name="Remote workers")
    await expect(table).to_contain_text("build/one")
    await expect(table).to_contain_text("generation 1")
    await expect(table).to_contain_text(BAIT)
    assert await page.title() != "taken"
    await asyncio.to_thread(worker.close)
