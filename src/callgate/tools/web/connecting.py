"""Connections to addresses that were judged. There is no other look-up after the judgement, so a
name that changes its answer in between leads nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import httpcore2
from httpcore2 import SOCKET_OPTION, AsyncNetworkStream

from callgate.sandbox import allowed_hosts, egress
from callgate.tools.web.reach import Reach

Resolve = Callable[[str, int], Awaitable[list[str]]]

look_up: Resolve = egress.look_up


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
        name = allowed_hosts.normal_host(f"[{host}]" if ":" in host else host)
        self._reach.ensure_named(name, port)
        addresses = await self._addresses(name, port, timeout)
        failure: Exception = httpcore2.ConnectError(f"{name} has no address")
        for address in self._reach.permitted(name, port, addresses):
            try:
                return await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _addresses(self, name: str, port: int, timeout: float | None) -> list[str]:
        if allowed_hosts.is_address(name):
            return [name]
        try:
            async with asyncio.timeout(timeout):
                return await self._resolve(name, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"{name} could not be looked up") from None
        except (OSError, UnicodeError, ValueError):
            raise httpcore2.ConnectError(f"{name} has no address") from None
