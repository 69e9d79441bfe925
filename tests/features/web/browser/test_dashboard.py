"""The dashboard in a real browser, on a real instance."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Route, WebSocketRoute, expect

from tests.features.web.browser.conftest import NewPage
from tests.features.web.browser.instances import Served, script
from tests.needs import needs

pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
VIEWS = ("live", "inbox", "chat", "sessions", "tools", "tools/write_file", "hosts", "policy", "suggestions", "stats")


async def go(page: Page, place: str) -> None:
    await page.evaluate("place => { location.hash = place }", f"#/{place}")


def question(page: Page, tool: str = "write_file") -> Locator:
    return page.get_by_role("article", name=f"Question about {tool}")


async def test_a_login_link_opens_the_page_once(served: Served, new_page: NewPage) -> None:
    link = served.link()
    first, second = await new_page(), await new_page()
    await first.goto(link)
    await expect(first.get_by_role("heading", name="Live")).to_be_visible()
    assert first.url == link.partition("login?")[0]  # no code is left in the history
    again = await second.goto(link)
    assert again is not None and again.status == 401


async def test_without_a_login_the_page_shows_the_command_and_nothing_else(served: Served, new_page: NewPage) -> None:
    served.call("list_dir", path=".")
    page = await new_page()
    await page.goto(served.url)
    await expect(page.get_by_role("alert").get_by_text("callgate dashboard")).to_be_visible()
    await expect(page.locator(".long-list .row")).to_have_count(0)


async def test_a_call_appears_while_it_happens_unless_the_list_is_held_or_filtered(
    served: Served, new_page: NewPage
) -> None:
    page = await new_page(served)
    await expect(page.get_by_text("callgate call list_dir")).to_be_visible()
    await asyncio.to_thread(served.call, "read_file", path="missing.txt")
    row = page.locator(".long-list .row")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("read_file")
    await expect(row).to_contain_text("failed")
    await expect(row).to_contain_text("missing.txt")
    await page.keyboard.press("p")
    await asyncio.to_thread(served.call, "list_dir", path=".")
    await expect(page.get_by_role("button", name="Resume 1")).to_be_visible()
    await expect(row).to_have_count(1)
    await page.keyboard.press("p")
    await expect(row).to_have_count(2)
    await go(page, "live?state=failed")
    await expect(row).to_have_count(1)


@pytest.mark.spec("S4-48", "S4-51")
async def test_an_allowed_write_happens(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    done = served.begin("write_file", path="new.txt", content="hello\n")
    await expect(page).to_have_title("(1) Inbox · callgate")
    await expect(question(page).locator(".line.added")).to_have_text("helloLF")
    assert not (served.workspace / "new.txt").exists()
    await question(page).get_by_role("button", name="Allow once").click()
    result = await asyncio.wrap_future(done)
    assert result["ok"] and (served.workspace / "new.txt").read_text() == "hello\n"
    await expect(page).to_have_title("Inbox · callgate")


@pytest.mark.spec("S4-52")
async def test_a_denied_write_does_not_happen_and_its_caller_hears_why(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    done = served.begin("write_file", path="new.txt", content="hello\n")
    await question(page).get_by_role("button", name="Deny").click()
    await page.get_by_label("Reason").fill("not today")
    await page.get_by_role("button", name="Deny", exact=True).click()
    error = (await asyncio.wrap_future(done))["error"]
    assert error["class"] == "user_denied"
    assert "not today" in error["message"]
    assert not (served.workspace / "new.txt").exists()


async def test_edited_arguments_are_what_runs(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    done = served.begin("write_file", path="new.txt", content="hello\n")
    await question(page).get_by_role("button", name="Edit").click()
    field = page.get_by_label("Arguments to run instead")
    await field.fill('{"path": "new.txt", ')
    await page.get_by_role("button", name="Allow with these").click()
    await expect(question(page).get_by_role("alert")).to_be_visible()
    await field.fill('{"path": "other.txt", "content": "changed"}')
    await page.get_by_role("button", name="Allow with these").click()
    assert (await asyncio.wrap_future(done))["ok"]
    assert [(each.name, each.read_text()) for each in served.workspace.iterdir()] == [("other.txt", "changed")]


async def test_an_answer_for_good_is_saved_with_the_edited_pattern(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    done = served.begin("write_file", path="notes/one.md", content="1")
    await question(page).get_by_role("button", name="Always").click()
    await page.get_by_label("Save a rule").fill("notes/*.md")
    await page.get_by_role("button", name="Always allow").click()
    assert (await asyncio.wrap_future(done))["ok"]
    assert served.call("write_file", path="notes/two.md", content="2")["ok"]
    assert "notes/*.md" in (served.home / "rules.toml").read_text()


async def test_a_proposed_pattern_is_saved_as_the_button_says(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    done = served.begin("shell", command="git commit -m one")
    await question(page, "shell").get_by_role("button", name="Always").click()
    await question(page, "shell").get_by_role("button", name="git commit -m <one text>").click()
    await expect(page.get_by_label("Save a rule")).to_have_value("git commit -m ?*")
    await page.get_by_role("button", name="Always allow").click()
    await asyncio.wrap_future(done)
    assert "git commit -m ?*" in (served.home / "rules.toml").read_text()


@pytest.mark.spec("S4-50", "S4-56")
async def test_of_two_browsers_the_first_wins_and_the_second_is_told(served: Served, new_page: NewPage) -> None:
    slow, quick = await new_page(served), await new_page(served)
    held: asyncio.Future[Route] = asyncio.get_running_loop().create_future()

    async def hold(route: Route) -> None:
        held.set_result(route)

    await slow.route("**/v1/confirmations/*", hold)
    for page in (slow, quick):
        await go(page, "inbox")
    done = served.begin("write_file", path="new.txt", content="hello\n")
    await question(slow).get_by_role("button", name="Allow once").click()
    waiting = await held
    await question(quick).get_by_role("button", name="Deny").click()
    await quick.keyboard.press("Enter")
    assert (await asyncio.wrap_future(done))["error"]["class"] == "user_denied"
    await waiting.continue_()
    await expect(slow.locator(".settled li")).to_contain_text("elsewhere first")
    for page in (slow, quick):
        await expect(page.locator(".settled li.deny")).to_contain_text("write_file")
        await expect(question(page)).to_have_count(0)
    assert not (served.workspace / "new.txt").exists()


@pytest.mark.spec("S4-56")
async def test_two_browsers_that_answer_at_once_end_with_the_same_answer(served: Served, new_page: NewPage) -> None:
    pages = await new_page(served), await new_page(served)
    for page in pages:
        await go(page, "inbox")
    done = served.begin("write_file", path="new.txt", content="hello\n")
    for page in pages:
        await question(page).wait_for()
        await expect(question(page).get_by_role("button", name="Allow once")).to_be_enabled()
    press = (
        "name => [...document.querySelectorAll('.answers button')].find(b => b.textContent.startsWith(name)).click()"
    )
    await pages[1].evaluate(press, "Deny")
    await pages[1].get_by_label("Reason").wait_for()
    await asyncio.gather(pages[0].evaluate(press, "Allow once"), pages[1].keyboard.press("Enter"))
    result = await asyncio.wrap_future(done)
    assert result["ok"] is (served.workspace / "new.txt").exists()
    for page in pages:
        outcome = "allow" if result["ok"] else "deny"
        await expect(page.locator(f".settled li.{outcome}")).to_have_count(1)


async def test_a_tool_is_tried_from_its_form(served: Served, new_page: NewPage) -> None:
    (served.workspace / "poem.txt").write_text("one\ntwo\nthree\n")
    page = await new_page(served)
    await go(page, "tools/read_file")
    form = page.get_by_role("form", name="Try read_file")
    await form.get_by_label("path").fill("poem.txt")
    await form.get_by_label("limit").fill("2 lines")
    await form.get_by_role("button", name="Run").click()
    await expect(form.get_by_role("alert")).to_be_visible()
    await form.get_by_label("limit").fill("2")
    await form.get_by_role("button", name="Run").click()
    run = page.get_by_role("article", name="Run", exact=True)
    await expect(run).to_contain_text("two")
    await expect(run).to_contain_text("ok")


async def test_a_tool_that_asks_is_answered_where_it_was_tried(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "tools/write_file")
    form = page.get_by_role("form", name="Try write_file")
    await form.get_by_label("path").fill("new.txt")
    await form.get_by_label("content").fill("hello")
    await form.get_by_role("button", name="Run").click()
    await question(page).get_by_role("button", name="Allow once").click()
    await expect(page.get_by_role("article", name="Run", exact=True)).to_contain_text("ok")
    assert (served.workspace / "new.txt").read_text() == "hello"


HEAR = """async () => {
  const { listen } = await import("/lib/store.js");
  window.heard = [];
  listen((event, seq) => seq !== null && window.heard.push(event.id));
}"""


async def test_after_a_restart_every_event_arrives_once(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await page.evaluate(HEAR)
    await asyncio.to_thread(served.call, "list_dir", path=".")
    await expect(page.locator(".long-list .row")).to_have_count(1)
    await asyncio.to_thread(served.stop)
    await expect(page.get_by_role("status").get_by_text("reconnecting", exact=True)).to_be_visible()
    for _ in range(2):
        await asyncio.to_thread(served.call_without_it, "list_dir")
    await asyncio.to_thread(served.start)
    await asyncio.to_thread(served.call, "list_dir", path=".")
    # A restart voids cookies; another tab of the same browser logs in again.
    await expect(page.get_by_role("alert")).to_contain_text("Logged out")
    other = await page.context.new_page()
    await other.goto(await asyncio.to_thread(served.link))
    await expect(page.locator(".long-list .row")).to_have_count(4)
    await expect(page.get_by_text("connected", exact=True)).to_be_visible()
    await asyncio.to_thread(served.call, "list_dir", path=".")
    await expect(page.locator(".long-list .row")).to_have_count(5)
    happened = sorted(_all_events(served))
    await page.wait_for_function("count => window.heard.length >= count", arg=len(happened))
    assert sorted(await page.evaluate("window.heard")) == happened


async def test_where_too_much_was_missed_everything_is_read_anew(served: Served, new_page: NewPage) -> None:
    page = await new_page()
    asked_from: list[bool] = []
    open_ones: list[WebSocketRoute] = []

    def between(ws: WebSocketRoute) -> None:
        open_ones.append(ws)
        server = ws.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            said = json.loads(message)
            if said["type"] == "subscribe":
                asked_from.append("since" in said)
                if "since" in said:
                    ws.send(json.dumps({"type": "error", "id": said["id"], "reason": "replay_too_large"}))
                    return
            server.send(message)

        ws.on_message(pass_on)

    await page.route_web_socket("**/v1/stream", between)
    await page.goto(served.link())
    await expect(page.get_by_text("connected", exact=True)).to_be_visible()
    await asyncio.to_thread(served.call, "list_dir", path=".")
    await expect(page.locator(".long-list .row")).to_have_count(1)
    await open_ones[0].close(code=1001)
    await asyncio.to_thread(served.call, "list_dir", path=".")
    await expect(page.locator(".long-list .row")).to_have_count(2)
    await expect(page.get_by_text("connected", exact=True)).to_be_visible()
    assert asked_from == [False, True, False]
    assert await page.evaluate("import('/lib/store.js').then(({ state }) => state.epoch)") == 1


def _all_events(served: Served) -> list[str]:
    sessions = served.ask("GET", "/v1/sessions")["sessions"]
    pages = [served.ask("GET", f"/v1/sessions/{each['id']}/events") for each in sessions]
    return [event["id"] for page in pages for _, event in page["events"]]


async def test_what_a_tool_returns_stays_text(served: Served, new_page: NewPage) -> None:
    (served.workspace / "page.html").write_text(HOSTILE)
    page = await new_page(served)
    result = await asyncio.to_thread(served.call, "read_file", path="page.html")
    await go(page, f"live?call={result['call_id']}")
    await expect(page.get_by_label("Result", exact=True)).to_contain_text(HOSTILE)
    done = served.begin("write_file", path=f"{HOSTILE[:20]}.txt", content=HOSTILE)
    await go(page, "inbox")
    await expect(question(page).locator(".line.added")).to_have_text(HOSTILE)
    await go(page, "tools/read_file")
    await page.get_by_label("path").fill("page.html")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("article", name="Run", exact=True)).to_contain_text(HOSTILE)
    assert await page.evaluate("[window.hacked, document.images.length]") == [None, 0]
    await go(page, "inbox")
    await question(page).get_by_role("button", name="Allow once").click()
    await asyncio.wrap_future(done)


async def test_characters_that_are_not_seen_are_marked(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    served.begin("shell", command="echo safe \u202e\u200b\x1b[2J\U000e0041")
    marks = question(page, "shell").get_by_label("Argument command").locator(".unseen")
    await expect(marks).to_have_text(["U+202E", "U+200B", "ESC", "U+E0041"])
    await question(page, "shell").get_by_role("button", name="Deny").click()
    await page.keyboard.press("Enter")
    await expect(question(page, "shell")).to_have_count(0)


async def test_everything_works_by_keyboard(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    keys = page.keyboard
    await keys.press("2")
    await expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    results = []
    for name, answer in (("a.txt", ["a"]), ("b.txt", ["d", "n", "o", "Enter"])):
        done = served.begin("write_file", path=name, content="x")
        await question(page).wait_for()
        await keys.press("j")
        await page.locator("[data-armed=true]").wait_for()
        await keys.press(answer[0])
        if answer[1:]:
            await expect(page.get_by_role("textbox")).to_be_focused()
        for key in answer[1:]:
            await keys.press(key)
        results.append((await asyncio.wrap_future(done))["ok"])
    assert results == [True, False]
    await expect(question(page)).to_have_count(0)
    await keys.press("1")
    await expect(page.locator(".long-list .row")).to_have_count(2)
    await keys.press("/")
    await expect(page.get_by_role("searchbox")).to_be_focused()
    await keys.type("a.txt")
    await expect(page.locator(".long-list .row")).to_have_count(1)
    await keys.press("Escape")
    await page.get_by_role("listbox").focus()
    await keys.press("ArrowDown")
    await expect(page.get_by_role("complementary", name="Call")).to_contain_text("write_file")
    await keys.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await keys.press("Escape")
    await expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)
    await keys.press("Escape")
    await expect(page.get_by_role("complementary", name="Call")).to_have_count(0)


async def test_the_second_of_two_clicks_does_not_answer_the_question_that_slides_under_it(
    served: Served, new_page: NewPage
) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    first = served.begin("write_file", path="a.txt", content="x")
    await expect(question(page)).to_have_count(1)
    served.begin("write_file", path="b.txt", content="x")
    await expect(question(page)).to_have_count(2)
    allow = question(page).first.get_by_role("button", name="Allow once")
    await expect(allow).to_be_enabled()
    box = await allow.bounding_box()
    assert box is not None
    await page.mouse.click(box["x"] + 5, box["y"] + 5)
    assert (await asyncio.wrap_future(first))["ok"]
    await expect(question(page)).to_have_count(1)
    await page.mouse.click(box["x"] + 5, box["y"] + 5)
    await expect(allow).to_be_enabled()
    assert not (served.workspace / "b.txt").exists()
    await expect(question(page)).to_have_count(1)
    await allow.click()
    await expect(question(page)).to_have_count(0)


async def test_what_a_command_does_not_tell_of_its_call_is_shown_and_no_pattern_is_made_of_it(
    served: Served, new_page: NewPage
) -> None:
    page = await new_page(served)
    await go(page, "inbox")
    served.begin("shell", command="echo *\u00a0x", timeout_seconds=7)
    asked = question(page, "shell")
    await expect(asked.get_by_label("Argument timeout_seconds")).to_be_visible()
    await expect(asked.get_by_label("Argument command").locator(".unseen")).to_have_text(["U+00A0"])
    await asked.get_by_role("button", name="Always").click()
    await expect(page.get_by_label("Save a rule")).to_have_value("")
    await asked.get_by_role("button", name="Edit").click()
    await expect(asked.locator("textarea")).to_have_value(re.compile(r"echo \*\\u00a0x"))
    await page.keyboard.press("Escape")
    await asked.get_by_role("button", name="Deny").click()
    await page.keyboard.press("Enter")
    await expect(asked).to_have_count(0)


WIDER = """['html', 'main', '.scroll', '.panel', '.tools', '.long-list', '.bar', '.side li', '.card', '.call-card'].filter(
  (name) => [...document.querySelectorAll(name)].some((each) => each.scrollWidth > each.clientWidth))"""


async def test_a_phone_never_scrolls_sideways(served: Served, new_page: NewPage) -> None:
    page = await new_page(served, width=375)
    long = "a" * 300
    await asyncio.to_thread(served.call, "read_file", path=long)
    done = served.begin("write_file", path="x.txt", content=f"{long} {long}\n")
    await go(page, "inbox")
    await question(page).wait_for()
    for view in VIEWS:
        await go(page, view)
        await page.locator("main h1, main h2").first.wait_for()
        assert (view, await page.evaluate(WIDER)) == (view, [])
    await go(page, "inbox")
    await question(page).get_by_role("region", name="Arguments").get_by_text("Show all").click()
    await question(page).get_by_role("button", name="Allow once").click()
    assert (await asyncio.wrap_future(done))["ok"]


async def test_of_many_calls_only_those_in_sight_are_drawn(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await page.evaluate("""async () => {
      const { state } = await import("/lib/store.js");
      const { put } = await import("/lib/calls.js");
      for (let n = 0; n < 50000; n += 1) {
        put(state.calls, { id: `tu_${String(n).padStart(26, "0")}`, tool: "t", state: "ok", summary: `call ${n}` });
      }
    }""")
    await go(page, "live?q=call")
    await expect(page.get_by_text("50,000 calls")).to_be_visible()
    assert await page.locator(".long-list .row").count() < 60
    await page.get_by_role("listbox").focus()
    await page.keyboard.press("End")
    await expect(page.locator(".long-list .row").last).to_contain_text("call 0")


REPLIES = """
[[replies]]
text = "I improve the greeting."
calls = [{ tool = "write_file", input = { path = "hello.txt", content = "good morning" } }]
[[replies]]
text = "Done <b>now</b>."
"""


async def test_a_conversation_with_the_agent_asks_acts_replays_and_is_undone(
    home: Path, tmp_path: Path, new_page: NewPage
) -> None:
    (home / "settings.toml").write_text(script(tmp_path / "played.toml", REPLIES))
    served = Served(home, tmp_path / "project")
    served.start()
    try:
        page = await new_page(served)
        await _talk(page, served.workspace / "hello.txt")
    finally:
        served.stop()


async def _talk(page: Page, file: Path) -> None:
    await go(page, "chat")
    await page.get_by_role("button", name="New chat").click()
    await page.get_by_label("Message").fill("Be friendly")
    await page.keyboard.press("Enter")
    talk = page.get_by_role("log")
    await question(page).get_by_role("button", name="Allow once").click()
    await expect(talk).to_contain_text("Done <b>now</b>.")
    await expect(talk.locator(".said.user")).to_have_text("Be friendly")
    assert file.read_text() == "good morning"
    await page.get_by_role("link", name="Timeline").click()
    await expect(page.locator(".lane .waited")).to_have_count(1)
    replay = page.get_by_label("Replay up to this event")
    await replay.focus()
    await page.keyboard.press("Home")
    await expect(talk).not_to_contain_text("Done")
    await page.keyboard.press("End")
    await expect(talk).to_contain_text("Done")
    await page.get_by_role("button", name="Undo last change").click()
    await question(page, "undo").get_by_role("button", name="Allow once").click()
    await expect(question(page, "undo")).to_have_count(0)
    await expect(page.locator(".told")).to_contain_text("hello.txt")
    assert not file.exists()


async def test_the_policy_explains_a_call_without_running_it(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    await go(page, "policy")
    await page.get_by_label("Tool", exact=True).fill("write_file")
    await page.get_by_label("Arguments").fill('{"path": "x.txt", "content": "x"}')
    for mode, verdict in (("ask", "ask"), ("read", "deny"), ("write", "allow")):
        await page.get_by_label("Mode").select_option(mode)
        await page.get_by_role("button", name="Explain").click()
        await expect(page.locator(f".verdict.{verdict}")).to_be_visible()
    assert list(served.workspace.iterdir()) == []


async def test_other_settings_are_tried_on_what_was_recorded(served: Served, new_page: NewPage) -> None:
    for _ in range(3):
        await asyncio.to_thread(served.call, "list_dir", path=".")
    page = await new_page(served)
    await go(page, "policy")
    await page.get_by_label("settings.toml").fill('[policy.per_tool]\nlist_dir = "deny"\n')
    await page.get_by_role("button", name="Test").click()
    await expect(page.get_by_role("status").last).to_contain_text("3 of 3 decisions")
    changed = page.get_by_role("row").last
    await expect(changed.get_by_role("cell")).to_have_text(["list_dir", ".", "allow", "deny", "3"])


async def test_settings_that_cannot_be_used_are_told_while_they_are_so(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    settings = served.home / "settings.toml"
    before = settings.read_text() if settings.exists() else ""
    banner = page.get_by_role("alert").filter(has_text="The settings are invalid.")
    try:
        settings.write_text("x = 1\n")
        await expect(banner).to_contain_text("settings.toml:1", timeout=60_000)
    finally:
        settings.write_text(before)
    await expect(banner).to_have_count(0, timeout=60_000)


PURE: list[tuple[str, Any]] = [
    ("(await import('/lib/text.js')).duration(299_700)", "5 min 0 s"),
    ("(await import('/lib/words.js')).decidedBy('class_default (x.toml:2)')", "the setting for its effect (x.toml:2)"),
    ("(await import('/lib/words.js')).endedBecause('no_confirmer')", "no approver"),
    ("(await import('/lib/text.js')).quoted(\"it's\")", "'it'\\''s'"),
    ("JSON.stringify((await import('/lib/json.js')).parse('{\"n\": 9007199254740993}'))", '{"n":9007199254740993}'),
    (
        "(await import('/lib/diff.js')).readDiff('--- a\\n+++ a\\n@@ -1,2 +1 @@\\n--- b\\n x\\n').map(l => l.kind)",
        ["file", "file", "hunk", "removed", "same"],
    ),
    (
        "(await import('/lib/schema.js')).readFields([{name: 'n', kind: 'integer'}, {name: 's', kind: 'string'}], {n: '12', s: ''})",
        {"n": 12},
    ),
]


async def test_numbers_texts_and_diffs_are_read_without_loss(served: Served, new_page: NewPage) -> None:
    page = await new_page(served)
    found = [await page.evaluate(f"async () => {code}") for code, _ in PURE]
    assert found == [value for _, value in PURE]
