"""Connections to a server, and whether it is this machine.

Certificates are always checked, redirects never followed.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from ipaddress import ip_address

import httpx2

CONNECT_S = 10.0
_MOST_CONNECTIONS = 100
_MOST_UNREAD = 64 * 1024
_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def open_client(
    url: httpx2.URL, *, silent_s: float, proxy: str | None = None
) -> httpx2.AsyncClient:
    """A client for a server and others like it. Raises what httpx2 does where the proxy's
    address cannot be used.

    Args:
        silent_s: how long a server may be silent.
        proxy: an address, or `none`; without it the environment decides.
    """
    host = url.host
    origin = f"{url.scheme}://{f'[{host}]' if ':' in host else host}"
    # Nothing for this machine goes through a proxy that the environment names.
    direct = proxy == "none" or (proxy is None and is_loopback(host))
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(silent_s, connect=min(CONNECT_S, silent_s)),
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=20),
        proxy=None if proxy == "none" else proxy,
        mounts={origin: None} if direct else None,
        follow_redirects=False,
        # Loading the system's certificates takes long. Plain http needs none, and a
        # context without any trusts nobody.
        verify=True if url.scheme == "https" else _TRUSTS_NOBODY,
    )


async def post(
    client: httpx2.AsyncClient, url: httpx2.URL, content: bytes, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str]]:
    """The status and the headers of an answer. Of its body little is read: it may have no end."""
    async with client.stream("POST", url, content=content, headers=headers) as response:
        size = 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > _MOST_UNREAD:
                break
        return response.status_code, response.headers


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_untrusted(error: BaseException) -> bool:
    """Whether a request failed because the server's certificate is not trusted."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
