"""HTTP requests to a model's server: streaming, error handling, retries.

    ask -> once -> send -> status, content type -> SseDecoder -> Reader -> pieces
     ^       |
     +-------+  wait, if another attempt may succeed: nothing of a reply was acted on

Certificates are always checked, and redirects are never followed. Plain http is limited to this
machine, unless the settings permit more. No error contains a key or a header. `ServedModel` is the
common base of the models behind a server.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import httpx2

from callgate.core.http import back_off, is_loopback, is_untrusted, open_client
from callgate.core.models import Key, ModelError, ModelErrorKind, Piece, Price, Retrying
from callgate.core.version import __version__
from callgate.features.chat.models.prompts import encoded
from callgate.features.chat.models.replies import (
    MAX_BODY,
    Reader,
    ServerFailed,
    SseDecoder,
    SseError,
    malformed,
    status_error,
    stream_error,
)
from callgate.features.chat.settings import ModelTable
from callgate.redaction.texts import Masked

LONGEST_WAIT_S = 120.0
"""Maximum wait before a retry. If a server requests more, the request fails, because a user would
not know the reason for the wait.
"""
_EVENTS = "text/event-stream"
_DRAIN_S = 0.2
_BODY_S = 10.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")


class Server:
    """The address of a model, and the connections to it."""

    def __init__(
        self,
        table: ModelTable,
        base_url: str,
        path: str,
        key: Key | None,
        key_header: str = "authorization",
        headers: Mapping[str, str] = {},
    ) -> None:
        self._table = table
        self._key, self._key_header = key, key_header
        self._headers = headers
        secrets = [] if key is None else [key.reveal()]
        self.masked = Masked([*secrets, *table.headers.values(), *_secrets_of(table.proxy)])
        self._url = _checked_url(base_url.rstrip("/") + path, table)
        _check_headers(table.headers)
        self._client: httpx2.AsyncClient | None = None

    @property
    def host(self) -> str:
        return self._url.host

    async def ask(
        self, body: Mapping[str, Any], reader: Callable[[], Reader]
    ) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of the reply, and a `Retrying` for each failed attempt."""
        deadline = asyncio.get_running_loop().time() + self._table.total_timeout_s
        data = encoded(body)
        attempt = 0
        while True:
            attempt += 1
            try:
                async with aclosing(self._once(data, reader(), deadline)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except ModelError as error:
                wait = self._wait(error, attempt, deadline)
                if wait is None:
                    raise
                again = Retrying(error.kind, error.message, wait, attempt)
            yield again
            await asyncio.sleep(again.wait_s)

    async def fetch(self, body: Mapping[str, Any], most: int, retries: int | None = None) -> bytes:
        """Return a complete JSON response of at most `most` bytes.

        Args:
            retries: None: the number in the settings.
        """
        deadline = asyncio.get_running_loop().time() + self._table.total_timeout_s
        data = encoded(body)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._read_all(data, most, deadline)
            except ModelError as error:
                wait = self._wait(error, attempt, deadline, retries)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    async def _read_all(self, data: bytes, most: int, deadline: float) -> bytes:
        response = await self._send(data, deadline, "application/json")
        chunks = response.aiter_bytes()
        body = bytearray()
        try:
            while (chunk := await self._next(chunks, deadline)) is not None:
                body += chunk
                if len(body) > most:
                    raise malformed(f"it has more than {most:,} bytes")
        finally:
            await chunks.aclose()
            await response.aclose()
        return bytes(body)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _wait(
        self, error: ModelError, attempt: int, deadline: float, retries: int | None = None
    ) -> float | None:
        """Return the seconds until the next attempt; None if the error is final."""
        if not error.retryable or attempt > (self._table.retries if retries is None else retries):
            return None
        wait = back_off(attempt, random.random())  # noqa: S311 - only keeps clients out of step
        if error.retry_after_s is not None:
            wait = max(wait, error.retry_after_s)
        left = deadline - asyncio.get_running_loop().time()
        return wait if wait <= min(LONGEST_WAIT_S, left) else None

    async def _once(
        self, data: bytes, reader: Reader, deadline: float
    ) -> AsyncGenerator[Piece, None]:
        response = await self._send(data, deadline)
        chunks = response.aiter_bytes()
        try:
            decoder = SseDecoder()
            while (chunk := await self._next(chunks, deadline)) is not None:
                for event in decoder.feed(chunk):
                    for piece in reader.feed(event):
                        yield piece
                    if reader.done:
                        break
                if reader.done:
                    break
            yield reader.finish()
            await _drain(chunks)
        except SseError as error:
            raise malformed(str(error)) from None
        except ServerFailed as error:
            raise stream_error(error.failure, self.masked) from None
        finally:
            await chunks.aclose()
            await response.aclose()

    async def _send(self, data: bytes, deadline: float, media: str = _EVENTS) -> httpx2.Response:
        """Send the request. Return the response if its type is `media`."""
        client = self._opened()
        request = client.build_request(
            "POST", self._url, content=data, headers=self._all_headers(media)
        )
        try:
            async with asyncio.timeout_at(deadline):
                response = await client.send(request, stream=True)
        except httpx2.HTTPError as error:
            raise self._failure(error, started=False) from None
        except TimeoutError:
            raise self._too_long() from None
        try:
            if response.status_code != 200:
                body = await _body(response)
                now = datetime.now(UTC)
                raise status_error(response.status_code, response.headers, body, self.masked, now)
            if media not in response.headers.get("content-type", ""):
                if media == _EVENTS:
                    raise malformed("it is not a stream of events; is the base_url right?")
                raise malformed(f"it is not {media}; is the address right?")
        except BaseException:
            await response.aclose()
            raise
        return response

    def _all_headers(self, media: str) -> dict[str, str]:
        headers = {
            "accept": media,
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": f"callgate/{__version__}",
            **self._headers,
        }
        if self._key is not None:
            scheme = "Bearer " if self._key_header == "authorization" else ""
            headers[self._key_header] = scheme + self._key.reveal()
        return headers | {name.lower(): value for name, value in self._table.headers.items()}

    async def _next(self, chunks: AsyncGenerator[bytes, None], deadline: float) -> bytes | None:
        try:
            async with asyncio.timeout_at(deadline):
                return await anext(chunks, None)
        except httpx2.HTTPError as error:
            raise self._failure(error, started=True) from None
        except TimeoutError:
            raise self._too_long() from None

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is not None:
            return self._client
        try:
            self._client = open_client(
                self._url, silent_s=self._table.timeout_s, proxy=self._table.proxy
            )
        except (ValueError, ImportError, httpx2.InvalidURL):
            raise ModelError(
                ModelErrorKind.REQUEST, "The address of the proxy is invalid."
            ) from None
        return self._client

    def _failure(self, error: httpx2.HTTPError, *, started: bool) -> ModelError:
        host = self._url.host
        if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
            kind, message = ModelErrorKind.TIMEOUT, f"{host} does not accept the connection."
        elif isinstance(error, httpx2.TimeoutException):
            kind = ModelErrorKind.TIMEOUT
            message = f"{host} sent nothing for {self._table.timeout_s:g} seconds."
        elif isinstance(error, httpx2.ProxyError):
            kind, message = ModelErrorKind.UNREACHABLE, f"The proxy cannot connect to {host}."
        elif is_untrusted(error):
            return ModelError(
                ModelErrorKind.UNREACHABLE, f"The certificate of {host} is not trusted."
            )
        elif isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol):
            return ModelError(ModelErrorKind.REQUEST, "The request is invalid and cannot be sent.")
        elif isinstance(error, httpx2.DecodingError):
            return malformed("its compression is invalid")
        elif started:
            kind, message = ModelErrorKind.CUT, f"{host} closed the connection during its reply."
        else:
            kind, message = ModelErrorKind.UNREACHABLE, f"{host} cannot be reached."
        return ModelError(kind, message, retryable=True)

    def _too_long(self) -> ModelError:
        limit = self._table.total_timeout_s
        return ModelError(
            ModelErrorKind.TIMEOUT, f"There was no complete reply within {limit:g} seconds."
        )


async def _body(response: httpx2.Response) -> bytes:
    """Return the first bytes of an error response, as far as it can be read."""
    body = b""
    try:
        async with asyncio.timeout(_BODY_S), aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) >= MAX_BODY:
                    break
    except (httpx2.HTTPError, TimeoutError):
        pass
    return body[:MAX_BODY]


async def _drain(chunks: AsyncGenerator[bytes, None]) -> None:
    """Read the rest of a stream, so that its connection can be reused."""
    try:
        async with asyncio.timeout(_DRAIN_S):
            async for _ in chunks:
                pass
    except (httpx2.HTTPError, TimeoutError):
        pass


def _checked_url(text: str, table: ModelTable) -> httpx2.URL:
    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, ValueError):
        raise ModelError(ModelErrorKind.REQUEST, "The base_url is not a valid URL.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ModelError(ModelErrorKind.REQUEST, "The base_url must start with https://.")
    if url.userinfo or url.query or url.fragment:
        raise ModelError(
            ModelErrorKind.REQUEST, "The base_url must not contain a user, password, ? or #."
        )
    if url.scheme == "http" and not table.insecure_http and not is_loopback(url.host):
        raise ModelError(
            ModelErrorKind.REQUEST,
            f"{url.host} is another machine, and http:// would send key and prompt unencrypted."
            " Use https://, or set insecure_http = true.",
        )
    return url


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.match(name) or not (value.isascii() and value.isprintable()):
            raise ModelError(ModelErrorKind.REQUEST, f"The header {name!r} cannot be sent.")


def _secrets_of(proxy: str | None) -> list[str]:
    """Return the user and password of a proxy, in encoded and decoded form."""
    if proxy is None or "@" not in proxy:
        return []
    userinfo = proxy.rpartition("@")[0].rpartition("/")[2]
    secrets = [userinfo, *userinfo.split(":", 1)]
    return [*secrets, *map(unquote, secrets)]


class ServedModel:
    def __init__(
        self, name: str, table: ModelTable, server: Server, *, context_tokens: int
    ) -> None:
        """`context_tokens` is the default size of the context window."""
        self.name = name
        self.images = table.images is not False
        self.native_tools = table.tools == "native"
        self.constrained = bool(table.constrain)
        self.small = bool(table.small)
        self.catalogue_names = table.names == "catalogue"
        self.context_tokens = table.context_tokens or context_tokens
        self.price: Price | None = table.price
        self._table = table
        self._server = server

    async def close(self) -> None:
        await self._server.close()

    async def _ask(
        self, request: dict[str, Any], reader: Callable[[], Reader]
    ) -> AsyncGenerator[Piece, None]:
        """Send the request, with a new reader for each attempt."""
        async with aclosing(self._server.ask(request, reader)) as pieces:
            async for piece in pieces:
                yield piece
