"""`web_search`: one question to the search service of the settings, and its answers as a list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from callgate import TextBlock, ToolContext, ToolExecutionError, ToolOutput
from callgate.packs.http import Masked, quoted
from callgate.packs.tools import Key
from callgate_catalogue.web.dependencies import Web
from callgate_catalogue.web.fetching import Fetched, Request, fetch
from callgate_catalogue.web.markdown import convert, without_unseen
from callgate_catalogue.web.reach import Reach
from callgate_catalogue.web.shown import CHARS_PER_TOKEN

MOST_RESULTS = 10
_LONGEST_TITLE = 200
_LONGEST_URL = 2_048
_LONGEST_SNIPPET = 1_000
_NO_JSON = " SearXNG must have json among the search.formats of its settings."
_FOUND_NOTHING = "No results found"
"""How ddgs says so, as an error."""


class Result(NamedTuple):
    title: str
    url: str
    snippet: str


async def search(input: dict[str, Any], context: ToolContext, web: Web) -> ToolOutput:
    missing = web.why_no_search()
    if missing is not None:
        raise ToolExecutionError(f"web_search cannot be used: {missing}.", reason="not_configured")
    query, tokens = input["query"], input.get("maxTokens", 2_000)
    if web.table.search == "ddgs":
        found = await _ddgs(query, web)
    else:
        found = await _service(query, web)
    results = list(_fitting(map(_clean, found), tokens * CHARS_PER_TOKEN))
    lines = [
        f"{number}. {each.title}\n   {each.url}" + (f"\n   {each.snippet}" if each.snippet else "")
        for number, each in enumerate(results, start=1)
    ]
    return ToolOutput(
        content=[TextBlock("\n".join(lines) or "Nothing was found")],
        value=[each._asdict() for each in results],
        metadata={"count": len(results), "service": web.table.search},
        truncated=len(results) < len(found),
    )


def _fitting(results: Iterable[Result], room: int) -> Iterable[Result]:
    """As many as there is room for, but at least one; the last with less of its text."""
    for number, each in enumerate(results):
        room -= len(each.title) + len(each.url) + 16
        if room < 0 and number:
            return
        yield each._replace(snippet=each.snippet[: max(room, 0)])
        room -= len(each.snippet)
        if room <= 0:
            return


def _clean(result: Result) -> Result:
    title, snippet = (
        " ".join(convert(text[: _LONGEST_SNIPPET * 2], "").markdown.split())
        for text in (result.title, result.snippet)
    )
    return Result(
        title[:_LONGEST_TITLE] or "(no title)",
        without_unseen(result.url)[:_LONGEST_URL],
        snippet[:_LONGEST_SNIPPET],
    )


# --- services -----------------------------------------------------------------------------


def _searxng(base: str, query: str, key: Key | None) -> Request:
    params = urlencode({"q": query, "format": "json"})
    return Request(url=f"{base.rstrip('/')}/search?{params}", headers={})


def _brave(base: str, query: str, key: Key | None) -> Request:
    params = urlencode({"q": query, "count": MOST_RESULTS})
    headers = {"accept": "application/json"}
    if key is not None:
        headers["x-subscription-token"] = key.reveal()
    return Request(url=f"{base.rstrip('/')}/res/v1/web/search?{params}", headers=headers)


def _tavily(base: str, query: str, key: Key | None) -> Request:
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key.reveal()}"
    body = msgspec.json.encode({"query": query, "max_results": MOST_RESULTS})
    return Request(url=f"{base.rstrip('/')}/search", method="POST", headers=headers, content=body)


class _Service(NamedTuple):
    base: str | None
    ask: Callable[[str, str, Key | None], Request]
    where: tuple[str, ...]
    """The keys that lead to the results."""
    snippet: str


_SERVICES: Mapping[str, _Service] = {
    "searxng": _Service(None, _searxng, ("results",), "content"),
    "brave": _Service("https://api.search.brave.com", _brave, ("web", "results"), "description"),
    "tavily": _Service("https://api.tavily.com", _tavily, ("results",), "content"),
}


async def _service(query: str, web: Web) -> list[Result]:
    service, key = _SERVICES[str(web.table.search)], web.key()
    request = service.ask(web.table.search_url or service.base or "", query, key)
    # Its address is the user's own word; where it leads to from there is not.
    request = msgspec.structs.replace(request, leaves_origin=False)
    got = await fetch(request, Reach(anywhere=True), web.limits, resolve=web.resolve)
    if got.status != 200:
        masked = Masked([] if key is None else [key.reveal()])
        answer = got.body[:2_000].decode("utf-8", "replace")
        detail = "." if answer.lstrip()[:1] == "<" else quoted(answer, masked)
        if web.table.search == "searxng" and got.status == 403:
            detail = f".{_NO_JSON}"
        raise ToolExecutionError(
            f"{web.table.search} answered {got.status}{detail}", reason="web_search"
        )
    return _results(got, service)


def _results(got: Fetched, service: _Service) -> list[Result]:
    try:
        found: Any = msgspec.json.decode(got.body)
    except (ValueError, RecursionError):
        raise ToolExecutionError(
            f"The search service did not answer in JSON.{_NO_JSON}", reason="web_search"
        ) from None
    for key in service.where:
        found = found.get(key) if isinstance(found, dict) else None
    rows = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return [_result(row, "url", service.snippet) for row in rows[:MOST_RESULTS]]


def _result(row: Mapping[str, Any], url: str, snippet: str) -> Result:
    title, address, text = (row.get(key) for key in ("title", url, snippet))
    return Result(*(each if isinstance(each, str) else "" for each in (title, address, text)))


async def _ddgs(query: str, web: Web) -> list[Result]:
    """Keyless. The package makes its own requests, to services of its choice."""

    def ask() -> list[Mapping[str, Any]]:
        ddgs: Any = import_module("ddgs")
        engine = ddgs.DDGS(timeout=max(int(web.table.timeout_s), 1))
        return list(engine.text(query, max_results=MOST_RESULTS))

    try:
        async with asyncio.timeout(web.table.timeout_s):
            rows = await asyncio.to_thread(ask)
    except TimeoutError:
        raise ToolExecutionError("ddgs did not answer in time.", reason="web_timeout") from None
    except Exception as error:  # foreign code
        if str(error).startswith(_FOUND_NOTHING):
            return []
        raise ToolExecutionError("ddgs found nobody to ask.", reason="web_search") from error
    return [_result(row, "href", "body") for row in rows]
