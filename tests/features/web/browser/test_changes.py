"""The dashboard's view of changed files: timeline, diffs, and undo from a call."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import expect

from tests.features.web.browser.conftest import NewPage
from tests.features.web.browser.instances import Served
from tests.features.web.browser.test_dashboard import go
from tests.needs import needs

pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

HOSTILE = "<script>window.hacked=1</script>\u202e\n"


def afternoon(served: Served) -> tuple[str, list[str]]:
    """Let an agent work in a session: three calls that change files. Returns it and its calls."""
    (served.workspace / "app.py").write_text("print('one')\n")
    session = served.ask("POST", "/v1/sessions", {"mode": "write", "title": "Afternoon"})["id"]
    calls = []
    for path, content in (
        ("app.py", "print('two')\n"),
        ("notes.txt", HOSTILE),
        ("app.py", "print('three')\n"),
    ):
        body = {"tool": "write_file", "arguments": {"path": path, "content": content}, "session": session}
        result = served.ask("POST", "/v1/calls", body)
        assert result["ok"], result
        calls.append(result["call_id"])
    return session, calls


@pytest.mark.parametrize("width", [1400, 390])
async def test_changes_are_compared_and_undone_from_a_call_on(served: Served, new_page: NewPage, width: int) -> None:
    session, _ = await asyncio.to_thread(afternoon, served)
    page = await new_page(served, width)
    await go(page, f"session/{session}")
    rows = page.get_by_role("list", name="Calls that changed files").locator(":scope > li")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_contain_text("2. write_file")
    await expect(rows.nth(1)).to_contain_text("1 file")
    await expect(rows.nth(1)).to_contain_text("notes.txt")
    await rows.nth(1).get_by_role("button", name="Diff").click()
    await expect(rows.nth(1).locator(".change")).to_contain_text("<script>")

    await page.get_by_label("From").select_option(label="after 1. write_file")
    await page.get_by_role("button", name="Compare").click()
    compared = page.get_by_role("group", name="Changed files")
    await expect(compared.locator(".change")).to_have_count(2)
    await expect(compared).to_contain_text("print('three')")
    await expect(compared).not_to_contain_text("print('one')")

    (served.workspace / "notes.txt").write_text("mine now\n")
    await rows.nth(1).get_by_role("button", name="Undo from here").click()
    plan = page.get_by_role("group", name="Undo from here")
    await expect(plan.get_by_role("list", name="Conflicts")).to_have_text("notes.txt")
    await expect(plan.get_by_role("button", name="Undo", exact=True)).to_have_count(0)
    await plan.get_by_role("button", name="Leave these").click()
    await expect(plan).to_contain_text("Left as they are: notes.txt")
    await expect(plan).to_contain_text("print('two')")
    assert (served.workspace / "app.py").read_text() == "print('three')\n"
    await plan.get_by_role("button", name="Undo", exact=True).click()
    await expect(page.locator(".told")).to_contain_text("Restored 'app.py'")
    assert (served.workspace / "app.py").read_text() == "print('two')\n"
    assert (served.workspace / "notes.txt").read_text() == "mine now\n"
    assert await page.evaluate("window.hacked") is None
    too_wide = "() => document.documentElement.scrollWidth > innerWidth"
    assert not await page.evaluate(too_wide)


async def test_an_undo_that_is_not_confirmed_changes_nothing(served: Served, new_page: NewPage) -> None:
    session, _ = await asyncio.to_thread(afternoon, served)
    page = await new_page(served)
    await go(page, f"session/{session}")
    row = page.get_by_role("list", name="Calls that changed files").locator(":scope > li").first
    await row.get_by_role("button", name="Undo from here").click()
    plan = page.get_by_role("group", name="Undo from here")
    await expect(plan).to_contain_text("print('one')")
    await plan.get_by_role("button", name="Cancel").click()
    await expect(plan).to_have_count(0)
    assert (served.workspace / "app.py").read_text() == "print('three')\n"


async def test_the_panel_of_a_call_shows_its_changed_files(served: Served, new_page: NewPage) -> None:
    session, calls = await asyncio.to_thread(afternoon, served)
    page = await new_page(served)
    await go(page, f"live?session={session}&call={calls[0]}")
    panel = page.get_by_role("complementary", name="Call")
    await expect(panel.get_by_role("heading", name="1 changed file")).to_be_visible()
    await expect(panel.get_by_role("group", name="Changed files")).to_contain_text("print('one')")
