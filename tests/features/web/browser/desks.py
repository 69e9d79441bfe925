"""A person at the inbox of an instance, and calls that are asked about and may be withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Locator, Page, Request

from callgate.core.effects import SideEffects
from tests.features.web.instances import Client, Instance, serving
from tests.support import make_tool

LIMIT_S = 60.0
ANYTHING = {"type": "object", "additionalProperties": True}

LOOK = r"""(card) => {
  const decoded = (node) => [...node.childNodes].map((each) => {
    if (each.nodeType === Node.TEXT_NODE) return each.data;
    if (each.matches("mark, span.line")) return decoded(each);
    if (!each.classList.contains("unseen")) return "";
    if (each.title.endsWith("nothing")) return "";
    const [, code, times] = /U\+([0-9A-F]+)(?: ×(\d+))?$/.exec(each.title);
    return String.fromCodePoint(parseInt(code, 16)).repeat(Number(times ?? 1));
  }).join("");
  const box = card.querySelector(".arguments .folded");
  const frame = box.getBoundingClientRect();
  const isOutside = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return [...range.getClientRects()].some((each) => each.right > innerWidth + 1
      || each.right > frame.right + 1 || each.bottom > frame.bottom + 2 || each.top < frame.top - 2);
  };
  const names = [...box.querySelectorAll("dt")];
  return {
    shown: names.map((dt) => [decoded(dt), dt.querySelector("i")?.textContent ?? null,
      decoded(dt.nextElementSibling.querySelector("pre"))]),
    hidden: [...names, ...box.querySelectorAll("pre")].some(isOutside),
    marked: card.querySelector(".arguments .more") !== null,
  };
}"""
"""What a person is shown of the arguments: names, kinds and texts; whether any of it is cut, and
whether a mark says so."""


class Desk:
    def __init__(self, instance: Instance, client: Client, page: Page) -> None:
        self.instance = instance
        self.client = client
        self.page = page
        self.did: list[Any] = []
        """What ran."""
        self.answers: list[tuple[str, dict[str, Any]]] = []
        """What the page sent: for which question, and what."""
        self._calls: set[asyncio.Task[Any]] = set()
        self._ran = asyncio.Event()
        page.on("request", self._note)

    def _note(self, request: Request) -> None:
        if request.method == "POST" and "/v1/confirmations/" in request.url:
            body: dict[str, Any] = request.post_data_json
            self.answers.append((request.url.rpartition("/")[2], body))

    def run(self, input: dict[str, Any], context: Any) -> str:
        """What the tool does."""
        self.did.append(input)
        self._ran.set()
        return "done"

    async def ran(self, count: int) -> list[Any]:
        """What ran, once so many calls did: an answer comes before its call."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.did) < count:
                self._ran.clear()
                await self._ran.wait()
        return self.did

    async def ask(self, **arguments: Any) -> dict[str, Any]:
        """Have a call asked about; returns its question when the page shows it."""
        known = {each["id"] for each in await self.questions()}
        call = asyncio.create_task(self.client.call("deploy", **arguments))
        self._calls.add(call)
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = [each for each in await self.questions() if each["id"] not in known]
                if found:
                    break
        await self.card(found[0]).wait_for()
        asked: dict[str, Any] = found[0]
        return asked

    async def questions(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self.client.get("/v1/confirmations"))["confirmations"]
        return listed

    async def withdraw(self, question: dict[str, Any]) -> None:
        """Returns when the page shows that it is over."""
        await self.client.http.delete(f"/v1/calls/{question['call_id']}")
        await self.page.locator(f"article.closed[data-question='{question['id']}']").wait_for()

    def card(self, question: dict[str, Any]) -> Locator:
        return self.page.locator(f"article[data-question='{question['id']}']")

    def allow(self, question: dict[str, Any]) -> Locator:
        return self.card(question).get_by_role("button", name="Allow once")

    async def armed(self, question: dict[str, Any]) -> None:
        """Returns when keys would answer it."""
        await self.page.locator(f"[data-question='{question['id']}'][data-armed=true]").wait_for()

    async def open_ids(self) -> set[str]:
        return {each["id"] for each in await self.questions()}

    async def look(self, question: dict[str, Any]) -> dict[str, Any]:
        seen: dict[str, Any] = await self.card(question).evaluate(LOOK)
        return seen

    async def leave(self) -> None:
        for each in await self.questions():
            await self.client.http.delete(f"/v1/calls/{each['call_id']}")
        await asyncio.gather(*self._calls, return_exceptions=True)


@asynccontextmanager
async def desk(home: Path, workspace: Path, page: Page, preview: str | None = None) -> AsyncIterator[Desk]:
    made: list[Desk] = []

    def run(input: dict[str, Any], context: Any) -> str:
        return made[0].run(input, context)

    tool: Any = make_tool("deploy", SideEffects.EXECUTE, ANYTHING, run)
    if preview is not None:
        tool.preview = lambda self, input, environment: preview
    async with serving(home, workspace, tools=(tool,)) as instance:
        client = instance.client()
        await page.goto((await client.post("/v1/login")).json()["url"])
        await page.get_by_text("connected", exact=True).wait_for(state="attached")
        await page.evaluate("location.hash = '#/inbox'")
        await page.get_by_role("heading", name="Inbox").wait_for()
        made.append(Desk(instance, client, page))
        try:
            yield made[0]
        finally:
            await made[0].leave()
