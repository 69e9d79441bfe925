"""The web tools: `web_search`, `web_fetch` and `api_call`."""

from __future__ import annotations

import asyncio
import base64
import codecs
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from callgate import (
    ImageBlock,
    ImageSource,
    TextBlock,
    ToolContext,
    ToolExecutionError,
    ToolOutput,
    ToolValidationError,
)
from callgate.packs.files import image_type
from callgate.packs.http import Masked, quoted
from callgate.packs.tools import Environment, Key
from callgate_catalogue.pdfs import text_of
from callgate_catalogue.web.fetching import Fetched, FetchRequest, fetch
from callgate_catalogue.web.html import CHARS_PER_TOKEN, cut, decode, media_type
from callgate_catalogue.web.markdown import convert, without_unseen
from callgate_catalogue.web.reach import Reach, Web, parse

MOST_RESULTS = 10
_LONGEST_TITLE = 200
_LONGEST_URL = 2_048
_LONGEST_SNIPPET = 1_000
_NO_JSON = " SearXNG must have json among the search.formats of its settings."
_FOUND_NOTHING = "No results found"
"""Error text of ddgs for an empty result."""


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
    """Yield the results that fit, at least one; the last one may be truncated."""
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


def _searxng(base: str, query: str, key: Key | None) -> FetchRequest:
    params = urlencode({"q": query, "format": "json"})
    return FetchRequest(url=f"{base.rstrip('/')}/search?{params}", headers={})


def _brave(base: str, query: str, key: Key | None) -> FetchRequest:
    params = urlencode({"q": query, "count": MOST_RESULTS})
    headers = {"accept": "application/json"}
    if key is not None:
        headers["x-subscription-token"] = key.reveal()
    return FetchRequest(url=f"{base.rstrip('/')}/res/v1/web/search?{params}", headers=headers)


def _tavily(base: str, query: str, key: Key | None) -> FetchRequest:
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key.reveal()}"
    body = msgspec.json.encode({"query": query, "max_results": MOST_RESULTS})
    return FetchRequest(
        url=f"{base.rstrip('/')}/search", method="POST", headers=headers, content=body
    )


class _Service(NamedTuple):
    base: str | None
    ask: Callable[[str, str, Key | None], FetchRequest]
    where: tuple[str, ...]
    """Keys on the path to the results."""
    snippet: str


_SERVICES: Mapping[str, _Service] = {
    "searxng": _Service(None, _searxng, ("results",), "content"),
    "brave": _Service("https://api.search.brave.com", _brave, ("web", "results"), "description"),
    "tavily": _Service("https://api.tavily.com", _tavily, ("results",), "content"),
}


async def _service(query: str, web: Web) -> list[Result]:
    service, key = _SERVICES[str(web.table.search)], web.key()
    request = service.ask(web.table.search_url or service.base or "", query, key)
    # The user configured its address, but not the targets of its redirects.
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
    """Search without a key. The package sends its own requests, to services of its choice."""

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
        raise ToolExecutionError("ddgs found no search service.", reason="web_search") from error
    return [_result(row, "href", "body") for row in rows]


MOST_HTML = 2_000_000
"""Maximum characters that are converted to Markdown."""
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXTS = ("json", "xml", "yaml", "javascript", "ecmascript", "csv", "toml", "x-sh", "sql")
_SHOWN_HEADERS = frozenset(
    {
        "content-type",
        "content-length",
        "last-modified",
        "etag",
        "location",
        "allow",
        "date",
        "server",
        "cache-control",
    }
)
_SNIFFED = 512
_LONGEST_LOCATION = 2_000
_NOT_IN_TEXTS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


async def fetch_page(input: dict[str, Any], context: ToolContext, web: Web) -> ToolOutput:
    method = input.get("method", "GET")
    accept = {"accept": "text/html,text/markdown;q=0.9,application/json;q=0.9,*/*;q=0.5"}
    request = FetchRequest(url=input["url"], method=method, headers=accept, leaves_origin=False)
    got = await fetch(request, web.reach, web.limits, resolve=web.resolve)
    kind = media_type(got.header("content-type")) or _guess(got.body)
    metadata = {
        "url": got.url,
        "status": got.status,
        "content_type": kind,
        "bytes": len(got.body),
        "redirects": list(got.redirects),
    }
    location = got.header("location")
    if 300 <= got.status < 400 and location:
        metadata["location"] = location[:_LONGEST_LOCATION]
        first = f"{got.status} {got.url}\n\nIt redirects to another host, which was not contacted:"
        return ToolOutput(
            content=[TextBlock(f"{first} {location[:_LONGEST_LOCATION]}")],
            success=True,
            metadata=metadata,
        )
    if method != "GET":
        return _head(got, metadata)
    if image_type(got.body) is not None and got.status < 400:
        return _image(got, metadata)
    text, title = await _text(got, kind, raw=input.get("raw", False), context=context)
    shown = cut(
        text, input.get("maxTokens", 8_000), context, name="page.md", complete=not got.truncated
    )
    first = f"{got.status} {got.url}" + (f"\n{title}" if title else "")
    return ToolOutput(
        content=[TextBlock(f"{first}\n\n{shown.text or _nothing(got.body, kind)}")],
        success=got.status < 400,
        metadata=metadata | ({"title": title} if title else {}),
        truncated=shown.truncated,
    )


async def _text(got: Fetched, kind: str, *, raw: bool, context: ToolContext) -> tuple[str, str]:
    """Return the readable text and its title."""
    if kind == "application/pdf" or got.body.startswith(b"%PDF-"):
        if got.truncated:
            raise ToolExecutionError(
                f"The PDF is larger than {len(got.body):,} bytes.", reason="too_large"
            )
        return await text_of(got.body, context), ""
    if not _is_text(kind, got.body):
        size = f"{'more than ' if got.truncated else ''}{len(got.body):,} bytes"
        raise ToolExecutionError(
            f"{got.url} is {kind or 'something'} ({size}), which cannot be read as text.",
            reason="not_text",
        )
    text, _ = decode(got.body, got.header("content-type") or kind, cut=got.truncated)
    if kind in _HTML and not raw:
        page = await asyncio.to_thread(
            convert, text[:MOST_HTML], got.url, context.cancel_event.is_set
        )
        return page.markdown, page.title
    return without_unseen(text), ""


def _nothing(body: bytes, kind: str) -> str:
    if kind in _HTML and b"<script" in body.lower():
        return "(empty: scripts make this page, and none are run)"
    return "(empty)"


def _is_text(kind: str, body: bytes) -> bool:
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16, which has many zero bytes
        return True
    if kind.startswith("text/") or kind.endswith(_TEXTS):
        return b"\0" not in body[:_SNIFFED]
    return _reads_as_text(body[:_SNIFFED])


def _reads_as_text(head: bytes) -> bool:
    """Detect texts that a server sends without a media type."""
    try:
        text = codecs.utf_8_decode(head, "strict", False)[0]  # the last character may be incomplete
    except UnicodeDecodeError:
        return False
    return _NOT_IN_TEXTS.search(text) is None


def _guess(body: bytes) -> str:
    """Guess the media type if the server sends none."""
    head = body[:_SNIFFED].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "text/html"
    return "application/octet-stream" if b"\0" in head else "text/plain"


def _head(got: Fetched, metadata: dict[str, Any]) -> ToolOutput:
    lines = [f"{name}: {value}" for name, value in got.headers if name in _SHOWN_HEADERS]
    text = "\n".join([f"{got.status} {got.url}", *map(without_unseen, lines)])
    return ToolOutput(content=[TextBlock(text)], success=got.status < 400, metadata=metadata)


def _image(got: Fetched, metadata: dict[str, Any]) -> ToolOutput:
    if got.truncated:
        raise ToolExecutionError(
            f"The picture is larger than {len(got.body):,} bytes.", reason="too_large"
        )
    data = base64.b64encode(got.body).decode()
    block = ImageBlock(source=ImageSource(data=data), media_type=image_type(got.body) or "")
    return ToolOutput(content=[TextBlock(f"{got.status} {got.url}"), block], metadata=metadata)


_SHOWN_TOKENS = 8_000
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z")
_VALUE = re.compile(r"[\x20-\x7e\t]{0,8192}\Z")
_OURS = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "accept-encoding",
        "proxy-authorization",
        "proxy-connection",
    }
)
"""Headers about the connection, which only callgate sets."""
_MOST_HEADERS = 50
_PREVIEWED = 2_000


async def call(input: dict[str, Any], context: ToolContext, web: Web) -> ToolOutput:
    got = await fetch(_request(input), web.reach, web.limits, resolve=web.resolve)
    body, text = _body(got)
    shown = cut(text, _SHOWN_TOKENS, context, name="body.txt", complete=not got.truncated)
    headers: dict[str, str] = {}
    for name, value in got.headers:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    lines = [f"{got.status} {got.url}", *(f"{name}: {value}" for name, value in headers.items())]
    return ToolOutput(
        content=[TextBlock("\n".join([*lines, "", shown.text]))],
        value={
            "status": got.status,
            "url": got.url,
            "headers": headers,
            "body": shown.text if shown.truncated else body,
        },
        success=got.status < 400,
        metadata={"status": got.status, "bytes": len(got.body), "redirects": list(got.redirects)},
        truncated=shown.truncated,
    )


def preview(input: dict[str, Any], environment: Environment, web: Web) -> str:
    """Return the request as it would be sent."""
    request = _request(input)
    target = parse(request.url)
    lines = [f"{request.method} {target}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    text = "" if request.content is None else request.content.decode()
    more = f"\n[{len(text):,} characters in all]" if len(text) > _PREVIEWED else ""
    return "\n".join([*lines, *(["", text[:_PREVIEWED] + more] if text else [])])


def _request(input: Mapping[str, Any]) -> FetchRequest:
    headers = _headers(input.get("headers", {}))
    method, body = input.get("method", "GET"), input.get("body")
    content: bytes | None = None
    if isinstance(body, str):
        content = body.encode()
        headers.setdefault("content-type", "text/plain; charset=utf-8")
    elif body is not None:
        content = msgspec.json.encode(body)
        headers.setdefault("content-type", "application/json")
    if content is not None and method in ("GET", "HEAD"):
        raise ToolValidationError(f"body: a {method} has none.", reason="invalid_request")
    return FetchRequest(
        url=input["url"], method=method, headers=headers, content=content, leaves_origin=False
    )


def _headers(given: Mapping[str, Any]) -> dict[str, str]:
    if len(given) > _MOST_HEADERS:
        raise ToolValidationError(
            f"headers: at most {_MOST_HEADERS} are accepted.", reason="invalid_request"
        )
    headers: dict[str, str] = {}
    for name, value in given.items():
        small = name.lower()
        if not _NAME.match(name) or not isinstance(value, str) or not _VALUE.match(value):
            raise ToolValidationError(
                f"headers: {name[:80]!r} is not a header, or its value is not a line of text.",
                reason="invalid_request",
            )
        if small in _OURS or small in headers:
            raise ToolValidationError(
                f"headers: {name!r} cannot be set, or is duplicated.", reason="invalid_request"
            )
        headers[small] = value
    return headers


def _body(got: Fetched) -> tuple[Any, str]:
    """Return the body as data if it is JSON, and as text."""
    text, _ = decode(got.body, got.header("content-type"), cut=got.truncated)
    kind = media_type(got.header("content-type"))
    if (kind.endswith(("/json", "+json")) or not kind) and not got.truncated and text.strip():
        try:
            return msgspec.json.decode(got.body), text
        except (ValueError, RecursionError):
            pass
    if b"\0" in got.body and not kind.startswith("text/"):
        text = f"({len(got.body):,} bytes of {kind or 'something'}, which is no text)"
    return text, text
