"""One request to the web, with its redirects: `fetch`. Everything about it is bounded.

    parse -> connect (judged) -> send -> redirect? -> again, judged anew
                                      -> body, decompressed as far as the limit goes

Certificates are always checked. No proxy is used, no cookie kept, no connection used twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import lru_cache
from urllib.parse import quote, urljoin

import httpcore2
import msgspec

from callgate import ToolExecutionError, __version__
from callgate.packs.http import is_untrusted
from callgate_catalogue.web.compression import Encoded, decoder
from callgate_catalogue.web.connecting import Judging, Resolve, look_up
from callgate_catalogue.web.reach import Reach, Target, parse

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BECOMES_GET = frozenset({301, 302, 303})
_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_MOST_HEADERS = 100
_LONGEST_HEADER = 2_000
_IN_A_LOCATION = "!#$%&'()*+,/:;=?@[]~"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    timeout_s: float = 30.0
    max_bytes: int = 5 * 1024 * 1024
    max_redirects: int = 8


class Request(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    content: bytes | None = None
    leaves_origin: bool = True
    """Whether a redirect to another host is followed; what was said to one is not for another."""


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    """Where the answer came from at last."""
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool = False
    redirects: tuple[str, ...] = ()
    """The addresses that led there."""

    def header(self, name: str) -> str:
        return next((value for each, value in self.headers if each == name), "")


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool
    location: str | None
    """Where a redirect leads to."""


async def fetch(
    request: Request, reach: Reach, limits: Limits, *, resolve: Resolve = look_up
) -> Fetched:
    """Raises a `ToolError` of one sentence where there is no answer."""
    target = parse(request.url)
    passed: list[str] = []
    try:
        async with asyncio.timeout(limits.timeout_s):
            while True:
                answer = await _once(target, request, reach, limits, resolve)
                following = _next(target, answer)
                if following is None or not _follows(request, target, following):
                    break
                passed.append(str(target))
                if len(passed) > limits.max_redirects:
                    raise ToolExecutionError(
                        f"More than {limits.max_redirects} redirects: {request.url} leads nowhere.",
                        reason="web_redirects",
                    )
                request = _redirected(request, target, following, answer.status)
                target = following
    except TimeoutError:
        raise ToolExecutionError(
            f"{target.authority} did not answer completely within {limits.timeout_s:g} s.",
            reason="web_timeout",
        ) from None
    return Fetched(
        url=str(target),
        status=answer.status,
        headers=answer.headers,
        body=answer.body,
        truncated=answer.truncated,
        redirects=tuple(passed),
    )


def _next(target: Target, answer: _Answer) -> Target | None:
    if answer.location is None:
        return None
    # Servers write what a browser would mend: it is encoded, and then read as strictly as ever.
    location = quote(answer.location.strip(), safe=_IN_A_LOCATION, encoding="latin-1")
    try:
        return parse(urljoin(str(target), location))
    except ValueError:  # of urljoin
        return None


def _follows(request: Request, target: Target, following: Target) -> bool:
    return following.origin == target.origin or request.leaves_origin


def _redirected(request: Request, target: Target, following: Target, status: int) -> Request:
    method, content, headers = request.method, request.content, dict(request.headers)
    if status in _BECOMES_GET and method not in SAFE:
        method, content = "GET", None
        headers = {name: value for name, value in headers.items() if name != "content-type"}
    if following.origin != target.origin:
        headers = {}
    return msgspec.structs.replace(
        request, url=str(following), method=method, content=content, headers=headers
    )


async def _once(
    target: Target, request: Request, reach: Reach, limits: Limits, resolve: Resolve
) -> _Answer:
    url = httpcore2.URL(
        scheme=target.scheme.encode(),
        host=target.host.encode(),
        port=target.port,
        target=target.path.encode(),
    )
    headers = {
        "host": target.authority,
        "user-agent": f"callgate/{__version__}",
        "accept": "*/*",
        "accept-encoding": "gzip, deflate",
        **request.headers,
    }
    if request.content is not None:
        headers["content-length"] = str(len(request.content))
    elif request.method not in SAFE:
        headers["content-length"] = "0"
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=_trust() if target.scheme == "https" else _TRUSTS_NOBODY,
        network_backend=Judging(reach, resolve),
    )
    try:
        async with (
            pool,
            pool.stream(
                request.method, url, headers=list(headers.items()), content=request.content
            ) as response,
        ):
            return await _answer(response, request.method, limits.max_bytes)
    except Exception as error:
        raise _failure(error, target) from None


async def _answer(response: httpcore2.Response, method: str, most: int) -> _Answer:
    headers = tuple(
        (name.decode("latin-1").lower(), value.decode("latin-1")[:_LONGEST_HEADER])
        for name, value in response.headers[:_MOST_HEADERS]
    )
    by_name = dict(headers)
    location = by_name.get("location") if response.status in _REDIRECTS else None
    if method == "HEAD":
        return _Answer(response.status, headers, b"", False, location)
    async with aclosing(response.aiter_stream()) as chunks:
        body, truncated = await _body(chunks, decoder(by_name.get("content-encoding", "")), most)
    return _Answer(response.status, headers, body, truncated, location)


async def _body(chunks: AsyncIterator[bytes], decode: Encoded, most: int) -> tuple[bytes, bool]:
    """At most so many bytes, and whether there were more."""
    body = bytearray()
    async for chunk in chunks:
        for piece in decode.feed(chunk):
            body += piece
            if len(body) > most:
                return bytes(body[:most]), True
    decode.finish()
    return bytes(body), False


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    """Of the system and the environment; loading it takes longer than most requests."""
    import httpx2  # lazy: heavy, for its choice of certificates  # noqa: PLC0415

    context: ssl.SSLContext = httpx2.create_ssl_context()
    return context


def _failure(error: Exception, target: Target) -> Exception:
    where = target.authority
    if is_untrusted(error):
        return ToolExecutionError(
            f"The certificate of {where} is not trusted.", reason="web_untrusted"
        )
    if isinstance(error, httpcore2.ConnectTimeout):
        return _unreached(f"{where} does not take the connection.")
    if isinstance(error, httpcore2.ConnectError):
        return _unreached(f"{where} cannot be reached.")
    if isinstance(error, httpcore2.LocalProtocolError | httpcore2.UnsupportedProtocol):
        return _unreached("The request cannot be sent as it is.")
    if isinstance(error, httpcore2.NetworkError | httpcore2.ProtocolError):
        return _unreached(f"{where} broke off, or does not speak HTTP.")
    return error


def _unreached(message: str) -> ToolExecutionError:
    return ToolExecutionError(message, reason="web_unreachable")
