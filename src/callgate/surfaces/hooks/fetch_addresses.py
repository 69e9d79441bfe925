"""Refuses an agent's fetch of an address that callgate's own `web_fetch` refuses.

    host in one spelling -> an address: public, or in `[web] allow`
                         -> a name:     every address that it has now

The agent connects itself: a redirect, or a name with another address a moment later, is not seen
here. `callgate sandbox -- AGENT` with a list of hosts as network covers these.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from callgate.sandbox import allowed_hosts

_PORTS = {"http": 80, "https": 443}
_LOCAL = ("localhost", "local", "internal", "home.arpa", "lan", "intranet", "corp", "private")
"""Names below these belong to this machine or the network around it."""
_RESOLVE_S = 3.0


async def fetch_refusal(url: str, allow: Iterable[str]) -> str | None:
    """Return why an address may not be fetched; None if it may. `allow` is that of `[web]`."""
    try:
        split = urlsplit(url)
        host, port = allowed_hosts.split(split.netloc.removesuffix(":"))
    except ValueError as error:
        return f"The url cannot be used: {error}."
    port = port or _PORTS.get(split.scheme, 0)
    entries = list(allow)
    if allowed_hosts.is_address(host):
        found = [host]
    else:
        found = await _addresses(host, port)
        if not found and _is_local(host) and not _is_allowed(host, port, None, entries):
            found = ["127.0.0.1"]
    refused = next((each for each in found if not _is_allowed(host, port, each, entries)), None)
    if refused is None:
        return None
    return (
        f"{host}:{port} is not public: it is part of this machine or the network around it. To"
        " allow it, name it in [web] allow of settings.toml."
    )


def _is_local(name: str) -> bool:
    return "." not in name or name.endswith(tuple(f".{each}" for each in _LOCAL))


def _is_allowed(host: str, port: int, address: str | None, allow: list[str]) -> bool:
    """Whether a host may be fetched at an address; None: at whichever it has."""
    if address is not None and allowed_hosts.is_public(address):
        return True
    for entry in allow:
        if "/" in entry:
            if address is not None and ip_address(address) in ip_network(entry):
                return allowed_hosts.is_private(address)
            continue
        named = allowed_hosts.parse(entry)
        if named.covers(host, port) and (address is None or named.permits(address)):
            return True
    return False


async def _addresses(name: str, port: int) -> list[str]:
    """The addresses of a name; none if it has none, or none in time."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            rows = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return []
    return list(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows))
