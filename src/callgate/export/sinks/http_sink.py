"""An HTTP server that takes rows: one POST a batch, accepted by any 2xx.

No redirect is followed, and a token goes to no other place than it was meant for, nor over a
connection that others can read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import httpx2

from callgate.core.version import __version__
from callgate.export.formats import Encoding, Row
from callgate.export.sinks.sink import SinkRefused, SinkUnavailable, TooLarge
from callgate.http_client.clients import is_loopback, is_untrusted, open_client, post
from callgate.http_client.retries import retry_after

SILENT_S = 30.0
_LIMIT_S = 60.0
"""Of one request."""
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT_S = 300.0


class HttpSink:
    def __init__(self, url: str, encoding: Encoding, token: str | None = None) -> None:
        """`ValueError` for an address that nothing can be sent to."""
        try:
            self._url = httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise ValueError(str(error)) from None
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise ValueError("write http://HOST/PATH or https://HOST/PATH")
        if self._url.userinfo:
            raise ValueError("name the token with --token-env instead of in the address")
        if token is not None and self._url.scheme == "http" and not is_loopback(self._url.host):
            raise ValueError("a token is sent over https, or to this machine")
        self._encoding = encoding
        self._headers: Mapping[str, str] = {
            "content-type": encoding.media_type,
            "user-agent": f"callgate/{__version__}",
            **({} if token is None else {"authorization": f"Bearer {token}"}),
        }
        self._client = open_client(self._url, silent_s=SILENT_S)

    async def send(self, rows: Sequence[Row]) -> None:
        """The header `idempotency-key` names the rows: a server may know them from it."""
        head = [self._encoding.head] if self._encoding.head else []
        body = b"".join(line + b"\n" for line in (*head, *(row.line for row in rows)))
        key = f"{rows[0].id}-{rows[-1].id}-{len(rows)}"
        try:
            async with asyncio.timeout(_LIMIT_S):
                headers = {**self._headers, "idempotency-key": key}
                status, answered = await post(self._client, self._url, body, headers)
        except TimeoutError:
            raise SinkUnavailable(f"{self._url.host} takes too long") from None
        except httpx2.HTTPError as error:
            if is_untrusted(error):
                raise SinkRefused(f"the certificate of {self._url.host} is not trusted") from None
            problem = str(error) or type(error).__name__
            raise SinkUnavailable(f"{self._url.host} does not answer: {problem}") from None
        if 200 <= status < 300:
            return
        problem = f"{self._url.host} answered {status}"
        if status in _LATER:
            wait = retry_after(answered, datetime.now(UTC))
            raise SinkUnavailable(problem, None if wait is None else min(wait, _LONGEST_WAIT_S))
        if status == httpx2.codes.REQUEST_ENTITY_TOO_LARGE:
            raise TooLarge(problem)
        raise SinkRefused(problem)

    async def close(self) -> None:
        await self._client.aclose()
