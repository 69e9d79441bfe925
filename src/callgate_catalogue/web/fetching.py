"""One request to the web, with its redirects: `fetch`. Every part is bounded.

    parse -> connect (checked) -> send -> redirect? -> again, with a new check
                                      -> body, decompressed up to the limit

Certificates are always checked. Proxies, cookies and connection reuse are off. A name is looked up
once, and the connection goes to a checked address. Bodies are decompressed in pieces, so a caller
can stop a decompression bomb.

Only asyncio limits the time here: two libraries that cancel one task at the same moment would
leave it cancelled permanently.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from functools import lru_cache
from urllib.parse import quote, urljoin

import httpcore2
import msgspec
from httpcore2 import SOCKET_OPTION, AsyncNetworkStream

from callgate import ToolExecutionError, __version__
from callgate.packs import addresses
from callgate.packs.http import CONNECT_S, is_untrusted
from callgate_catalogue.web.reach import Reach, Target, parse

Resolve = Callable[[str, int], Awaitable[list[str]]]

look_up: Resolve = addresses.look_up


class Judging(httpcore2.AsyncNetworkBackend):
    """Network backend of a connection pool."""

    def __init__(self, reach: Reach, resolve: Resolve) -> None:
        self._reach, self._resolve = reach, resolve
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        name = addresses.normal_host(f"[{host}]" if ":" in host else host)
        self._reach.ensure_named(name, port)
        found = await self._addresses(name, port)
        failure: Exception = httpcore2.ConnectError(f"{name} has no address")
        for address in self._reach.permitted(name, port, found):
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await self._network.connect_tcp(
                        address, port, None, local_address, socket_options
                    )
            except TimeoutError:
                failure = httpcore2.ConnectTimeout(f"{name} does not answer")
            except httpcore2.ConnectError as error:
                failure = error
        raise failure

    async def _addresses(self, name: str, port: int) -> list[str]:
        if addresses.is_address(name):
            return [name]
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._resolve(name, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"{name} could not be resolved") from None
        except (OSError, UnicodeError, ValueError):
            raise httpcore2.ConnectError(f"{name} has no address") from None


_PIECE = 256 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class Encoded:
    """Body without compression."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        """Check for the end of the data. Raises if it is missing."""


class _Deflated(Encoded):
    def __init__(self, gzip: bool) -> None:
        self._gzip = gzip
        self._inflate = zlib.decompressobj(_GZIP if gzip else zlib.MAX_WBITS)
        self._started = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inflate.eof:
                if not self._gzip or data[:2] != b"\x1f\x8b":
                    return  # ignore data after the end
                self._inflate = zlib.decompressobj(_GZIP)  # one more member
            yield self._inflated(data)
            data = self._inflate.unconsumed_tail or self._inflate.unused_data

    def _inflated(self, data: bytes) -> bytes:
        try:
            piece = self._inflate.decompress(data, _PIECE)
        except zlib.error:
            if self._gzip or self._started:
                raise _broken() from None
            self._inflate = zlib.decompressobj(_RAW)  # raw deflate of some servers
            try:
                piece = self._inflate.decompress(data, _PIECE)
            except zlib.error:
                raise _broken() from None
        self._started = True
        return piece

    def finish(self) -> None:
        if self._started and not self._inflate.eof:
            raise _broken()


def decoder(encoding: str) -> Encoded:
    """Return the decoder of a content-encoding: at most one of the requested ones."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return Encoded()
    if name in ("gzip", "x-gzip", "deflate"):
        return _Deflated(name != "deflate")
    raise ToolExecutionError(
        "The server used a compression that was not requested.",
        reason="web_encoding",
    )


def _broken() -> ToolExecutionError:
    return ToolExecutionError("The compression of the answer is broken.", reason="web_encoding")


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BECOMES_GET = frozenset({301, 302, 303})
_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_MOST_HEADERS = 100
_LONGEST_HEADER = 2_000
_IN_A_LOCATION = "!#$%&'()*+,/:;=?@[]~"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    timeout_s: float = 30.0
    max_bytes: int = 5 * 1024 * 1024
    max_redirects: int = 8


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    content: bytes | None = None
    leaves_origin: bool = True
    """Whether redirects to another host are followed. Otherwise only one to `https` or to the name
    with or without `www.` is: data for one host is not for another."""


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    """Final URL of the answer."""
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool = False
    redirects: tuple[str, ...] = ()
    """URLs of the redirects before it."""

    def header(self, name: str) -> str:
        return next((value for each, value in self.headers if each == name), "")


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool
    location: str | None
    """Target of a redirect."""


async def fetch(
    request: FetchRequest, reach: Reach, limits: RequestLimits, *, resolve: Resolve = look_up
) -> Fetched:
    """Send a request. Raises a `ToolError` of one sentence if there is no answer."""
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
                        f"More than {limits.max_redirects} redirects; the last is {request.url}.",
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
    # Servers send targets that browsers repair: encode them, then parse them strictly.
    location = quote(answer.location.strip(), safe=_IN_A_LOCATION, encoding="latin-1")
    try:
        return parse(urljoin(str(target), location))
    except ValueError:  # from urljoin
        return None


def _follows(request: FetchRequest, target: Target, following: Target) -> bool:
    if following.origin == target.origin or request.leaves_origin:
        return True
    is_upgrade = target.scheme == "http" and following.scheme == "https"
    has_web_port = {target.port, following.port} <= {80, 443}
    is_same = following.host.removeprefix("www.") == target.host.removeprefix("www.")
    return is_same and has_web_port and (is_upgrade or following.scheme == target.scheme)


def _redirected(
    request: FetchRequest, target: Target, following: Target, status: int
) -> FetchRequest:
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
    target: Target, request: FetchRequest, reach: Reach, limits: RequestLimits, resolve: Resolve
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
    """Return at most `limit` bytes, and whether more follow."""
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
    """Load the certificates of system and environment, which takes longer than most requests."""
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
        return _unreached(f"{where} does not accept the connection.")
    if isinstance(error, httpcore2.ConnectError):
        return _unreached(f"{where} cannot be reached.")
    if isinstance(error, httpcore2.LocalProtocolError | httpcore2.UnsupportedProtocol):
        return _unreached("The request is invalid and was not sent.")
    if isinstance(error, httpcore2.NetworkError | httpcore2.ProtocolError):
        return _unreached(f"{where} closed the connection, or does not use HTTP.")
    return error


def _unreached(message: str) -> ToolExecutionError:
    return ToolExecutionError(message, reason="web_unreachable")
