"""`api_call`: one HTTP request, and its answer as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from callgate import TextBlock, ToolContext, ToolOutput, ToolValidationError
from callgate.packs.tools import Environment
from callgate_catalogue.web.charsets import decode, media_type
from callgate_catalogue.web.dependencies import Web
from callgate_catalogue.web.fetching import Fetched, Request, fetch
from callgate_catalogue.web.reach import parse
from callgate_catalogue.web.shown import cut

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
"""About the connection and not about the request: nobody else says these."""
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
    """The request as it would be sent."""
    request = _request(input)
    target = parse(request.url)
    lines = [f"{request.method} {target}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    text = "" if request.content is None else request.content.decode()
    more = f"\n[{len(text):,} characters in all]" if len(text) > _PREVIEWED else ""
    return "\n".join([*lines, *(["", text[:_PREVIEWED] + more] if text else [])])


def _request(input: Mapping[str, Any]) -> Request:
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
    return Request(
        url=input["url"], method=method, headers=headers, content=content, leaves_origin=False
    )


def _headers(given: Mapping[str, Any]) -> dict[str, str]:
    if len(given) > _MOST_HEADERS:
        raise ToolValidationError(
            f"headers: at most {_MOST_HEADERS} are taken.", reason="invalid_request"
        )
    headers: dict[str, str] = {}
    for name, value in given.items():
        small = name.lower()
        if not _NAME.match(name) or not isinstance(value, str) or not _VALUE.match(value):
            raise ToolValidationError(
                f"headers: {name[:80]!r} is no header, or its value is no line of text.",
                reason="invalid_request",
            )
        if small in _OURS or small in headers:
            raise ToolValidationError(
                f"headers: {name!r} cannot be set, or is there twice.", reason="invalid_request"
            )
        headers[small] = value
    return headers


def _body(got: Fetched) -> tuple[Any, str]:
    """As data where it is JSON, and as text."""
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
