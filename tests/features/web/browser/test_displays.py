"""What hosts have for a screen is shown as text, whatever they put into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from callgate.core.content import TextBlock
from callgate.core.tools import ToolOutput
from tests.features.web.browser.conftest import NewPage
from tests.features.web.instances import serving
from tests.features.web.test_routes import FakeHosts
from tests.needs import needs
from tests.support import make_tool

pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

BAIT = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
SECRET = "sk-ant-api03-" + "a1B2c3D4" * 10


def show(input: dict[str, Any], context: Any) -> ToolOutput:
    display = {"title": BAIT, "key": SECRET, "html": {"onclick": BAIT}}
    return ToolOutput(content=[TextBlock("for the model")], metadata={"display": display})


async def test_what_a_tool_shows_on_a_screen_is_text_without_secrets(
    home: Path, tmp_path: Path, new_page: NewPage
) -> None:
    page = await new_page()
    async with serving(home, tmp_path / "ws", tools=(make_tool("show", run=show),), hosts=FakeHosts()) as instance:
        client = instance.client()
        result = await client.call("show")
        assert result["meta"]["display"]["title"] == BAIT
        assert "display" not in str(result["content"])
        await page.goto((await client.post("/v1/login")).json()["url"])
        await page.get_by_text("connected", exact=True).wait_for(state="attached")
        await page.evaluate(f"location.hash = '#/live?call={result['call_id']}'")
        panel = page.get_by_label("Call", exact=True)
        await expect(panel.get_by_role("heading", name="Display")).to_be_visible()
        await expect(panel).to_contain_text(BAIT)
        await expect(panel).not_to_contain_text(SECRET)
        await page.evaluate("location.hash = '#/hosts'")
        card = page.locator("article", has_text="words")
        await card.locator("summary", has_text="display element").click()
        await expect(card).to_contain_text("<b>Go</b>")
        assert await page.locator("main b:text('bold'), main b:text('Go'), main img").count() == 0
        assert await page.title() != "taken"
