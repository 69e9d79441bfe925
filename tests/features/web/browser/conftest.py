"""Chromium, driven by Playwright, on the page of a real instance.

One browser for all tests of a module, a fresh profile for each page. A page on which a script
failed, or that the Content-Security-Policy had to stop, fails its test.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    async_playwright,
    expect,
)

from tests.features.web.browser.chromium import FLAGS
from tests.features.web.browser.instances import Served

_LIMIT_MS = 45_000

expect.set_options(timeout=_LIMIT_MS)

NewPage = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    found = shutil.which("chromium")
    assert found is not None
    home = tmp_path_factory.mktemp("browser")
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(
            executable_path=found, args=FLAGS, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}
        )
        yield made
        await made.close()


@pytest.fixture
def served(home: Path, tmp_path: Path) -> Iterator[Served]:
    made = Served(home, tmp_path / "project")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def new_page(browser: Browser) -> AsyncIterator[NewPage]:
    """Opens a page; with an instance, one that is logged in to it."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def look(said: ConsoleMessage) -> None:
        if "Content Security Policy" in said.text:
            wrong.append(said.text)

    async def new(served: Served | None = None, width: int = 1280) -> Page:
        context = await browser.new_context(viewport={"width": width, "height": 800})
        context.set_default_timeout(_LIMIT_MS)
        contexts.append(context)
        page = await context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", look)
        if served is not None:
            await page.goto(served.link())
            await page.get_by_text("connected", exact=True).wait_for()
        return page

    yield new
    for context in contexts:
        await context.close()
    assert wrong == []
