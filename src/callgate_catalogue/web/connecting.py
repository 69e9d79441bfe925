"""Connections to addresses that were judged. There is no other look-up after the judgement, so a
name that changes its answer in between leads nowhere else.

Time is limited here and in `fetching` by asyncio alone: two libraries that cancel one task at the
same moment would leave it cancelled for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import httpcore2
from httpcore2 import SOCKET_OPTION, AsyncNetworkStream

from callgate.packs import addresses
from callgate.packs.http import CONNECT_S
from callgate_catalogue.web.reach import Reach

Resolve = Callable[[str, int], Awaitable[list[str]]]

look_up: Resolve = addresses.look_up


class Judging(httpcore2.AsyncNetworkBackend):
    """Makes every connection of a pool."""

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
            raise httpcore2.ConnectTimeout(f"{name} could not be looked up") from None
        except (OSError, UnicodeError, ValueError):
            raise httpcore2.ConnectError(f"{name} has no address") from None
