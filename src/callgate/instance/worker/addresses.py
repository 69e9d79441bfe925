"""Where a worker dials: a server's URL, encrypted unless the server is on the same machine."""

from __future__ import annotations

import ipaddress
import ssl
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

PATH = "/v1/workers/connect"
_SCHEMES = {"https": "wss", "wss": "wss", "http": "ws", "ws": "ws"}


class BadServer(ValueError):
    """A URL that is not dialled; `str` says why, and what helps."""


class ServerAddress(NamedTuple):
    url: str
    """Of the WebSocket, without its query."""
    encrypted: bool
    local: bool

    def dialled(self, **query: str) -> str:
        return f"{self.url}?{urlencode(query)}"


def read_server(text: str, *, insecure: bool = False) -> ServerAddress:
    """A server's URL, such as `https://callgate.example`. Raises `BadServer`."""
    try:
        split = urlsplit(text)
        host, port = split.hostname, split.port
    except ValueError as error:
        raise BadServer(f"{text!r} is no URL: {error}") from None
    scheme = _SCHEMES.get(split.scheme)
    if scheme is None or not host or split.query or split.fragment or split.username:
        raise BadServer(f"{text!r} is no URL of a server, such as https://callgate.example:443")
    local = _is_loopback(host)
    if scheme == "ws" and not local and not insecure:
        raise BadServer(
            f"{text} is not encrypted: the token and all that is worked on could be read on the"
            " way. Use https://, or --insecure if the network itself is private"
        )
    del port
    path = split.path.rstrip("/") + PATH
    url = urlunsplit((scheme, split.netloc, path, "", ""))
    return ServerAddress(url, scheme == "wss", local)


def tls_context(ca: str | None) -> ssl.SSLContext:
    """Trusts the system's authorities, or those of a file alone. Raises `BadServer`."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise BadServer(f"--ca {ca}: {error}") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
