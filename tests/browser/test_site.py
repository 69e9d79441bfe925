"""The documentation opens from the disk, with its search, and asks nobody for anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.conftest import NewPage
from tests.needs import needs

PROJECT = Path(__file__).parents[2]
pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]


async def test_the_search_of_the_documentation_works_from_the_disk(tmp_path: Path, new_page: NewPage) -> None:
    subprocess.run([sys.executable, "-m", "scripts.site", str(tmp_path)], cwd=PROJECT, check=True, timeout=100)
    page = await new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"file://{tmp_path}/index.html")
    await page.get_by_role("textbox", name="Search").press_sequentially("prompt_once")
    found = page.locator(".md-search-result__link").filter(has_text="Configuration in YAML")
    await expect(found.first).to_be_visible(timeout=60_000)
    await found.first.click()
    await expect(page.get_by_role("heading", name="Configuration in YAML of other agents")).to_be_visible(
        timeout=60_000
    )
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
