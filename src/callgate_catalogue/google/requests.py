"""Requests to Google. Every one goes through `Google.ask`: credentials, retries, limits, errors.

    token -> send -> 2xx ............................................> answer
      ^        |---> 401, once: another token
      +-- wait +---> 429, 5xx, no answer: again, if nothing can have been done by it
               +---> anything else: one sentence

A change that may have succeeded is not sent again: a mail must not go out twice. After that point
only idempotent requests (GET, PUT, PATCH, DELETE) are retried.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import httpx2
import msgspec

from callgate import (
    ToolContext,
    ToolError,
    ToolExecutionError,
    ToolOutput,
    ToolValidationError,
    __version__,
)
from callgate.packs.http import Masked, back_off, is_loopback, is_untrusted, open_client
from callgate_catalogue.google.accounts import Granted
from callgate_catalogue.google.outputs import (
    MAX_BODY,
    UNREADABLE,
    Failure,
    Refused,
    final,
    refusal,
    unknown_outcome,
    unreached,
)

SILENT_S = 60.0
ATTEMPTS = 5
LONGEST_WAIT_S = 30.0
"""Longest wait between attempts. If Google requests a longer one, the call fails and reports it."""
MAX_JSON = 32 * 1024 * 1024
MAX_DOWNLOAD = 64 * 1024 * 1024
MAX_PAGES = 100

_BASES = {
    "gmail": ("https://gmail.googleapis.com", "/gmail/v1"),
    "drive": ("https://www.googleapis.com", "/drive/v3"),
    "upload": ("https://www.googleapis.com", "/upload/drive/v3"),
    "calendar": ("https://www.googleapis.com", "/calendar/v3"),
    "docs": ("https://docs.googleapis.com", "/v1"),
    "sheets": ("https://sheets.googleapis.com", "/v4"),
    "tasks": ("https://tasks.googleapis.com", "/tasks/v1"),
}


class Credentials(Protocol):
    """Source of tokens. `accounts` implements it."""

    def why_not(self, *, writes: bool) -> str | None:
        """Return why no account is usable, as the end of a sentence; None if one is."""
        ...

    async def token(self, account: str | None, scopes: Collection[str], *, writes: bool) -> Granted:
        """Return a token of the account (or the default one) that has one of these scopes.

        Raises a `ToolError` that names the command to run.
        """
        ...

    async def renewed(self, refused: Granted) -> Granted:
        """Return a new token for one that Google rejected."""
        ...


class Answer(NamedTuple):
    body: bytes
    content_type: str

    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body) if self.body.strip() else {}
        except (ValueError, RecursionError):
            raise ToolExecutionError(
                "Google's answer is not JSON; is the endpoint right?", reason=UNREADABLE
            ) from None


class Page(NamedTuple):
    """Combined items of several pages of a list."""

    items: list[Any]
    more: bool
    """Whether more items exist."""


class Connections:
    """Connections of a runtime to Google, opened on first use."""

    def __init__(self, endpoint: str | None) -> None:
        self._endpoint = None if endpoint is None else _checked(endpoint)
        self._client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            url = httpx2.URL(self._endpoint or _BASES["gmail"][0])
            self._client, self._loop = open_client(url, silent_s=SILENT_S), loop
        return self._client

    def url(self, service: str, path: str) -> str:
        origin, base = _BASES[service]
        return f"{self._endpoint or origin}{base}{path}"

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()


class Google:
    """Requests of one call with one account."""

    def __init__(
        self,
        connections: Connections,
        credentials: Credentials,
        context: ToolContext,
        *,
        account: str | None,
        scopes: Collection[str],
        writes: bool,
    ) -> None:
        self._connections, self._credentials = connections, credentials
        self._context = context
        self._account, self._scopes, self._writes = account, tuple(scopes), writes
        self.unanswered = False
        """Whether a changing request is in flight."""
        self.heard = False
        """Whether Google has answered."""
        self._changed = False
        """Whether Google executed a changing request."""

    def with_scopes(self, *scopes: str) -> Google:
        """Return a client for an additional read with one of these scopes."""
        return Google(
            self._connections,
            self._credentials,
            self._context,
            account=self._account,
            scopes=scopes,
            writes=False,
        )

    async def get(self, service: str, path: str, params: Mapping[str, Any] = {}) -> Any:
        return (await self.ask("GET", service, path, params)).json()

    async def send(
        self,
        method: str,
        service: str,
        path: str,
        body: Any = None,
        params: Mapping[str, Any] = {},
        *,
        again: bool | None = None,
    ) -> Any:
        """Send a change as JSON. `again`: the change is idempotent."""
        content = None if body is None else msgspec.json.encode(body)
        answer = await self.ask(method, service, path, params, content, again=again)
        return answer.json()

    async def pages(
        self,
        service: str,
        path: str,
        params: Mapping[str, Any],
        key: str,
        most: int,
        size: str,
        largest: int,
    ) -> Page:
        """Return the first items of a list; `size` is the service's parameter for the page size."""
        found: list[Any] = []
        token: str | None = None
        for _ in range(MAX_PAGES):
            wanted = {size: min(most - len(found), largest)}
            page = await self.get(service, path, {**params, **wanted, "pageToken": token})
            found += page.get(key) or []
            token = page.get("nextPageToken")
            if not token or len(found) >= most:
                break
        return Page(found[:most], bool(token) or len(found) > most)

    async def ask(
        self,
        method: str,
        service: str,
        path: str,
        params: Mapping[str, Any] = {},
        content: bytes | None = None,
        content_type: str = "application/json",
        *,
        again: bool | None = None,
        limit: int = MAX_JSON,
    ) -> Answer:
        """Send one request, with retries. Raises a `ToolError` of one sentence."""
        repeats = method != "POST" if again is None else again
        changes = method != "GET"
        granted = await self._credentials.token(self._account, self._scopes, writes=self._writes)
        headers = {"user-agent": f"callgate/{__version__} (gzip)", "accept": "*/*"}
        if content is not None:
            headers["content-type"] = content_type
        request = (method, self._connections.url(service, path), _params(params), content)
        attempt, renewed, perhaps_done = 0, False, False
        while True:
            attempt += 1
            self.unanswered = changes
            got = await self._once(request, headers, granted, limit)
            self.unanswered = False
            if isinstance(got, Answer):
                self.heard, self._changed = True, self._changed or changes
                return got
            if isinstance(got, Refused):
                if method == "DELETE" and perhaps_done and got.status in (404, 410):
                    return Answer(b"", "")  # the previous attempt succeeded
                if got.status == 401 and not renewed:
                    granted, renewed = await self._credentials.renewed(granted), True
                    continue
                got = self._refusal(got, granted)
            perhaps_done = perhaps_done or got.done is None
            wait = None if perhaps_done and changes and not repeats else _wait(got, attempt)
            if wait is None:
                raise unknown_outcome(got) if changes and perhaps_done else final(got)
            self._context.progress(f"Google does not answer yet; retry in {wait:.1f} s")
            await asyncio.sleep(wait)

    def _refusal(self, answer: Refused, granted: Granted) -> Failure:
        masked = Masked([granted.token])
        scope = self._scopes[0]
        return refusal(answer, granted.account, scope, masked, datetime.now(UTC))

    async def _once(
        self,
        request: tuple[str, str, dict[str, str | list[str]], bytes | None],
        headers: Mapping[str, str],
        granted: Granted,
        limit: int,
    ) -> Answer | Refused | Failure:
        method, url, params, content = request
        client = self._connections.client()
        built = client.build_request(
            method,
            url,
            params=params or None,
            content=content,
            headers={**headers, "authorization": f"Bearer {granted.token}"},
        )
        try:
            response = await client.send(built, stream=True)
            try:
                if not 200 <= response.status_code < 300:
                    body = await _body(response, MAX_BODY)
                    return Refused(response.status_code, response.headers, body[:MAX_BODY])
                body = await _body(response, limit)
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            return _failure(error, built.url.host)
        if len(body) > limit:
            raise ToolExecutionError(
                f"Google's answer is larger than {limit:,} bytes.", reason="too_large"
            )
        return Answer(body, response.headers.get("content-type", ""))

    def misunderstood(self, error: Exception) -> ToolError:
        """Return the error for an unreadable answer."""
        if isinstance(error, ToolError):
            failure = error
        else:
            failure = ToolExecutionError("Google's answer is invalid.", reason=UNREADABLE)
        return unknown_outcome(Failure(failure)) if self._changed else failure


class Call(NamedTuple):
    """Arguments of a tool's function."""

    google: Google
    input: dict[str, Any]
    context: ToolContext


def _wait(failure: Failure, attempt: int) -> float | None:
    """Return the seconds until the next attempt; None without one."""
    wait = back_off(attempt, random.random())  # noqa: S311 - jitter
    wait = max(wait, failure.retry_after_s or 0.0)
    return wait if failure.passes and attempt < ATTEMPTS and wait <= LONGEST_WAIT_S else None


async def understood(google: Google, work: Awaitable[ToolOutput]) -> ToolOutput:
    """Convert errors of a tool's function that an undocumented answer of Google causes.

    The functions assume the documented format. A change may have succeeded, and is not repeated.
    """
    try:
        return await work
    except ToolError as error:
        raise google.misunderstood(error) if error.reason == UNREADABLE else error from error
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        if not google.heard:
            raise  # a defect of callgate
        raise google.misunderstood(error) from error


async def _body(response: httpx2.Response, limit: int) -> bytes:
    """Read the body, at most a little more than the limit."""
    pieces, size = [], 0
    async with aclosing(_chunks(response)) as chunks:
        async for chunk in chunks:
            pieces.append(chunk)
            size += len(chunk)
            if size > limit:
                break
    return b"".join(pieces)


async def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_bytes():
        yield chunk


def _failure(error: httpx2.HTTPError, host: str) -> Failure:
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return unreached(f"{host} does not accept the connection.", sent=False)
    if is_untrusted(error):
        refused = unreached(f"The certificate of {host} is not trusted.", sent=False)
        return refused._replace(passes=False)
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return unreached(f"{host} cannot be reached.", sent=False)
    if isinstance(error, httpx2.TimeoutException):
        return unreached(f"{host} was silent for {SILENT_S:g} seconds.", sent=True)
    if isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol):
        refused = unreached("The request is invalid and was not sent.", sent=False)
        return refused._replace(passes=False)
    return unreached(f"{host} closed the connection before it answered.", sent=True)


def _params(params: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """Return query parameters as text, without None."""
    return {
        name: [str(each) for each in value]
        if isinstance(value, list | tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in params.items()
        if value is not None
    }


def path(template: str, **segments: str) -> str:
    """Insert ids into a path; each stays one segment."""
    for name, part in segments.items():
        if not part or part in (".", "..") or any(ord(char) < 32 for char in part):
            raise ToolValidationError(f"{name}: {part!r} is no id.")
    return template.format(**{name: quote(part, safe="") for name, part in segments.items()})


def _checked(endpoint: str) -> str:
    try:
        url = httpx2.URL(endpoint)
    except (httpx2.InvalidURL, ValueError):
        url = httpx2.URL("")
    if url.scheme == "https" or (url.scheme == "http" and is_loopback(url.host)):
        return endpoint.rstrip("/")
    raise ToolExecutionError(
        "The endpoint of [google] must begin with https://, or lead to this machine.",
        reason="settings_invalid",
    )
