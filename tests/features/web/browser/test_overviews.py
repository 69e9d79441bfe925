"""What the dashboard sums up, and what a phone shows of it, in a real browser on a real instance."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.features.web.browser.conftest import NewPage
from tests.features.web.browser.instances import Served
from tests.features.web.browser.test_dashboard import go, question
from tests.needs import needs

pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

CUT = """[...document.querySelectorAll('.side a, .side button, .plot text, table.wide td, table.wide th')]
  .filter((each) => each.checkVisibility()).filter((each) => {
    const box = each.getBoundingClientRect();
    const frame = (each.closest('svg') ?? document.documentElement).getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || each.scrollWidth > each.clientWidth + 1;
  }).map((each) => each.textContent)"""


async def test_a_used_login_link_says_in_words_what_to_do(served: Served, new_page: NewPage) -> None:
    link = served.link()
    first, second = await new_page(), await new_page()
    await first.goto(link)
    await expect(first.get_by_role("heading", name="Live")).to_be_visible()
    await second.goto(link)
    await expect(second.get_by_role("heading")).to_contain_text("has expired")
    await expect(second.get_by_text("callgate dashboard")).to_be_visible()


async def test_on_a_phone_no_axis_table_or_link_is_cut(served: Served, new_page: NewPage) -> None:
    page = await new_page(served, width=375)
    for path in ("a", "b" * 200):
        await asyncio.to_thread(served.call, "read_file", path=path)
    await asyncio.to_thread(served.call, "list_dir")
    await expect(page.locator(".long-list .row")).to_have_count(3)
    for view, seen in (
        ("stats?span=7+d", "table[aria-label='What went wrong']"),
        ("policy", "table"),
        ("sessions", "table"),
    ):
        await go(page, view)
        await page.locator(seen).first.wait_for(state="attached")
        for closed in await page.locator("details:not([open]) summary").all():
            await closed.click()
        assert (view, await page.evaluate(CUT)) == (view, [])
    await page.get_by_role("navigation").get_by_role("link", name="Policy").click()
    await expect(page.get_by_role("heading", name="Policy", exact=True)).to_be_visible()


async def test_live_names_its_columns_and_is_filtered_by_client_session_and_time(
    served: Served, new_page: NewPage
) -> None:
    page = await new_page(served)
    await asyncio.to_thread(served.call, "list_dir")
    served.client = "my-agent"
    mine = await asyncio.to_thread(served.call, "read_file", path="missing.txt")
    rows = page.locator(".long-list .row")
    await expect(rows).to_have_count(2)
    await expect(page.locator(".heads")).to_contain_text(
        re.compile("Started.*State.*Tool.*arguments.*Client.*Took", re.DOTALL)
    )
    await page.get_by_label("Client", exact=True).select_option("my-agent")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("my-agent")
    await page.get_by_label("Client", exact=True).select_option("")
    await rows.filter(has_text="missing.txt").click()
    await page.get_by_role("link", name="its calls").click()
    await expect(rows).to_have_count(1)
    await page.get_by_label("Time", exact=True).select_option("1 h")
    await expect(rows).to_have_count(1)
    assert mine["call_id"]


async def test_rows_of_calls_without_a_known_tool_are_aligned_and_names_are_shown_whole(
    served: Served, new_page: NewPage
) -> None:
    page = await new_page(served, width=1400)
    for tool in ("list_dir", "mcp__memory__delete_observations"):
        await asyncio.to_thread(served.call, tool)
    rows = page.locator(".long-list .row")
    await expect(rows).to_have_count(2)
    for column in (".tool", ".summary", ".caller", ".took"):
        edges = await rows.locator(column).evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().left)")
        assert edges[0] == edges[1], column
    cut = "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length"
    assert await rows.locator(".tool").evaluate_all(cut) == 0


async def test_sessions_are_named_by_what_they_are_and_single_calls_are_folded(
    served: Served, new_page: NewPage
) -> None:
    page = await new_page(served)
    served.client = "my-agent"
    for _ in range(3):
        await asyncio.to_thread(served.call, "list_dir")
    await asyncio.to_thread(served.ask, "POST", "/v1/sessions", {"title": "Plans"})
    await go(page, "sessions")
    rows = page.get_by_role("table", name="Sessions").get_by_role("row")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_contain_text("Plans")
    await expect(rows.nth(2)).to_contain_text(re.compile("3 single calls.*list_dir.*my-agent.*project", re.DOTALL))
    await page.get_by_role("button", name="3 single calls").click()
    await expect(rows).to_have_count(6)
    await expect(page.get_by_role("link", name="list_dir")).to_have_count(3)


async def test_a_rule_is_written_tested_on_the_record_and_ready_to_paste(
    home: Path, served: Served, new_page: NewPage
) -> None:
    for _ in range(2):
        await asyncio.to_thread(served.call, "list_dir")
    page = await new_page(served)
    await go(page, "policy")
    await page.get_by_label("Decision").select_option("deny")
    await page.get_by_label("Rule for").fill('list_"dir')
    await page.get_by_label("Pattern", exact=True).fill("")
    await page.get_by_role("button", name="Add to the lines").click()
    lines = page.get_by_label("settings.toml")
    await expect(lines).to_have_value('[[policy.rules]]\ndecision = "deny"\ntool = "list_\\"dir"\n')
    await lines.fill('[[policy.rules]]\ndecision = "deny"\ntool = "list_dir"\n')
    await page.get_by_role("button", name="Test").click()
    await expect(page.get_by_role("status").last).to_contain_text("2 of 2 decisions")
    await expect(page.get_by_role("button", name="Copy the lines")).to_be_visible()
    assert not (home / "settings.toml").exists()
    await page.get_by_label("Rule for").fill("list_dir")
    await page.get_by_role("button", name="Save rule").click()
    await question(page, "save_rule").get_by_role("button", name="Allow once").click()
    await expect(page.locator(".told")).to_contain_text("Saved in")
    await expect(page.get_by_role("table", name="Rules in force")).to_contain_text("tool = list_dir")
    assert (await asyncio.to_thread(served.call, "list_dir"))["error"]["class"] == "permission_denied"


async def test_the_rules_in_force_stand_with_file_and_line(home: Path, tmp_path: Path, new_page: NewPage) -> None:
    rule = '[[policy.rules]]\ndecision = "deny"\ntool = "shell"\n'
    (home / "settings.toml").write_text(f"{rule}[policy.budgets.tools.read_file]\nday = {{bytes_out = 9}}\n")
    served = Served(home, tmp_path / "project")
    served.start()
    try:
        page = await new_page(served)
        await go(page, "policy")
        row = page.get_by_role("table", name="Rules in force").get_by_role("row").last
        await expect(row.get_by_role("cell")).to_have_text(["deny", "tool = shell", f"{home}/settings.toml:1"])
        budget = page.get_by_role("table", name="Budgets").get_by_role("row").last
        await expect(budget.get_by_role("cell")).to_have_text(
            ["9 bytes sent out", "day", "read_file", f"{home}/settings.toml:5"]
        )
    finally:
        served.stop()


async def test_a_question_names_who_asks_and_stats_tell_its_wait_apart(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    served.client = "my-agent"
    done = served.begin("write_file", path="new.txt", content="hello\n")
    await expect(question(page)).to_contain_text("asked by a client that calls itself “my-agent”")
    await expect(question(page)).to_contain_text("the setting for its effect · built-in default")
    await expect(question(page)).not_to_contain_text("class_default")
    await question(page).get_by_role("button", name="Allow once").click()
    assert (await asyncio.wrap_future(done))["ok"]
    await expect(page.locator(".settled li")).to_contain_text("my-agent")
    await _stats(page)


async def _stats(page: Page) -> None:
    await go(page, "stats")
    table = page.get_by_role("table", name="By tool")
    await expect(table).to_contain_text("Waited")
    cells = table.get_by_role("row").last.get_by_role("cell")
    await expect(cells.first).to_have_text("write_file")
    await expect(cells.nth(6)).to_have_text("1")
    await expect(cells.last).to_have_text(re.compile(r"\d"))


async def test_a_suggested_rule_stands_with_its_counts_and_is_saved_after_a_yes(
    home: Path, served: Served, new_page: NewPage
) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    for text in ("one", "two", "three"):
        writing = asyncio.to_thread(served.call, "write_file", path="notes.md", content=text)
        task = asyncio.create_task(writing)
        await question(page, "write_file").get_by_role("button", name="Allow once").click()
        assert (await task)["ok"]
    await go(page, "policy")
    await page.get_by_role("link", name="Suggested rules").click()
    card = page.get_by_role("article", name="Suggested: write_file")
    await expect(card).to_contain_text("3 times, 3 by a person")
    await expect(card).to_contain_text("3 ask → allow")
    await expect(card).to_contain_text('path = "notes.md"')
    assert not (home / "rules.toml").exists()
    await page.get_by_label("Approved at least").select_option("5")
    await expect(card).to_have_count(0)
    await page.get_by_label("Approved at least").select_option("3")
    await card.get_by_role("button", name="Save this rule").click()
    await question(page, "save_rule").get_by_role("button", name="Allow once").click()
    await expect(page.locator(".told")).to_contain_text("Saved in")
    await expect(card).to_have_count(0)
    assert (await asyncio.to_thread(served.call, "write_file", path="notes.md", content="four"))["ok"]


async def test_a_rule_against_which_a_denial_speaks_cannot_be_saved(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    for answer in ("Allow once", "Allow once", "Allow once", "Deny"):
        writing = asyncio.to_thread(served.call, "write_file", path="notes.md", content="x")
        task = asyncio.create_task(writing)
        await question(page, "write_file").get_by_role("button", name=answer).click()
        if answer == "Deny":
            await page.get_by_role("button", name="Deny", exact=True).click()
        assert (await task)["ok"] is (answer != "Deny")
    await go(page, "suggestions")
    card = page.get_by_role("article", name="Not suggested: write_file")
    await expect(card).to_contain_text("It would have allowed a denied call.")
    await expect(card.get_by_role("button")).to_have_count(0)
