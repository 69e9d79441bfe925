"""An MCP server on the page: nothing of it is used before the click that approves it, and what went
between it and us is shown as text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from tests.features.mcp.client.labs import stdio
from tests.features.web.browser.conftest import NewPage
from tests.features.web.browser.instances import Served
from tests.needs import needs

pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

BAIT = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
SECRET = "sk-ant-api03-" + "a1B2c3D4" * 10
ECHO = "mcp__odd__echo"


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    """What the server lists, which it reads again whenever it is asked."""
    path = tmp_path / "tools.json"
    write(path, f"Says it. {BAIT}")
    return path


def write(path: Path, description: str) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    path.write_text(json.dumps([{"name": "echo", "description": description, "inputSchema": schema}]))


@pytest.fixture
def served(home: Path, tmp_path: Path, listing: Path) -> Iterator[Served]:
    settings = f'sandbox = "off"\n[mcp.odd]\n{stdio("--file", str(listing))}effect = "read"\n'
    (home / "settings.toml").write_text(settings)
    made = Served(home, tmp_path / "project")
    try:
        made.start()
        yield made
    finally:
        made.stop()


async def test_the_tools_of_a_server_are_usable_after_the_click_that_approves_them_and_not_before(
    served: Served, new_page: NewPage, listing: Path
) -> None:
    page = await new_page(served)
    assert await call(served) == "not_found"
    card = await opened(page)
    await card.get_by_role("button", name="Review its tools").click()
    table = card.get_by_role("table", name="Tools of mcp.odd")
    await expect(table).to_contain_text(BAIT)
    await expect(table).to_contain_text("new")
    assert await call(served) == "not_found", "looking approves nothing"
    await card.get_by_role("button", name="Approve 1 tool").click()
    await expect(card.get_by_role("link", name=ECHO)).to_be_visible()
    assert await call(served) is None
    write(listing, "Says something else.")
    async with page.expect_response("**/restart"):
        await card.get_by_role("button", name="Restart").click()
    assert await call(served) is not None, "it is another tool now"
    await card.get_by_role("button", name="Check for changes").click()
    await expect(table).to_contain_text("changed")
    assert await call(served) is not None
    await card.get_by_role("button", name="Approve 1 tool").click()
    await expect(table).to_have_count(0)
    assert await call(served) is None
    await expect_no_markup(page)


async def test_requests_and_answers_of_a_server_are_text_with_time_and_without_secrets(
    served: Served, new_page: NewPage
) -> None:
    page = await new_page(served)
    card = await opened(page)
    await card.get_by_role("button", name="Review its tools").click()
    await card.get_by_role("button", name="Approve 1 tool").click()
    await expect(card.get_by_role("link", name=ECHO)).to_be_visible()
    assert await call(served, f"{BAIT} {SECRET}") is None
    await card.locator("summary", has_text="Requests and answers").click()
    rows = card.get_by_role("list", name="Messages of mcp.odd").get_by_role("listitem")
    request, answer = (rows.filter(has_text="tools/call").filter(has_text=way) for way in ("→", "←"))
    await expect(request).to_contain_text("request")
    await expect(answer).to_contain_text("ms")
    for row, label in ((request, "request tools/call"), (answer, "answer tools/call")):
        shown = row.get_by_label(label)
        await expect(shown).to_have_count(0)
        await row.locator("summary").click()
        await expect(shown).to_contain_text(json.dumps(BAIT)[1:-1])
        await expect(shown).not_to_contain_text(SECRET)
    await expect_no_markup(page)


async def opened(page: Page) -> Locator:
    await page.evaluate("location.hash = '#/hosts'")
    card = page.locator("article", has_text="mcp.odd")
    await card.wait_for()
    return card


async def call(served: Served, text: str = "hello") -> str | None:
    """The class of its error."""
    result = await asyncio.to_thread(served.call, ECHO, text=text)
    error = result["error"]
    return None if error is None else str(error["class"])


async def expect_no_markup(page: Page) -> None:
    assert await page.locator("main b:text('bold'), main img").count() == 0
    assert await page.title() != "taken"
