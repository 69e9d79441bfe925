"""`web_fetch`: a page, as someone who reads would want it."""

from __future__ import annotations

import asyncio
import base64
import codecs
import re
from typing import Any

from callgate import ImageBlock, ImageSource, TextBlock, ToolContext, ToolExecutionError, ToolOutput
from callgate.packs.files import image_type
from callgate_catalogue.pdfs import text_of
from callgate_catalogue.web.charsets import decode, media_type
from callgate_catalogue.web.dependencies import Web
from callgate_catalogue.web.fetching import Fetched, Request, fetch
from callgate_catalogue.web.markdown import convert, without_unseen
from callgate_catalogue.web.shown import cut

MOST_HTML = 2_000_000
"""Characters that are turned into Markdown."""
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
_NOT_IN_TEXTS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


async def fetch_page(input: dict[str, Any], context: ToolContext, web: Web) -> ToolOutput:
    method = input.get("method", "GET")
    accept = {"accept": "text/html,text/markdown;q=0.9,application/json;q=0.9,*/*;q=0.5"}
    request = Request(url=input["url"], method=method, headers=accept)
    got = await fetch(request, web.reach, web.limits, resolve=web.resolve)
    kind = media_type(got.header("content-type")) or _guess(got.body)
    metadata = {
        "url": got.url,
        "status": got.status,
        "content_type": kind,
        "bytes": len(got.body),
        "redirects": list(got.redirects),
    }
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
    """What there is to read, and its title."""
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
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16, which is full of zeros
        return True
    if kind.startswith("text/") or kind.endswith(_TEXTS):
        return b"\0" not in body[:_SNIFFED]
    return _reads_as_text(body[:_SNIFFED])


def _reads_as_text(head: bytes) -> bool:
    """Many servers send out texts as bytes of no kind."""
    try:
        text = codecs.utf_8_decode(head, "strict", False)[0]  # the last may be half there
    except UnicodeDecodeError:
        return False
    return _NOT_IN_TEXTS.search(text) is None


def _guess(body: bytes) -> str:
    """Where a server does not say."""
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
