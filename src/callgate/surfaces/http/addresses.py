"""Where we listen, and under which names a browser may speak of it.

A page of a foreign site can make a browser send requests to us: by a name that suddenly points
to this machine (its `Host` is then foreign), or across origins (its `Origin` is). Both are held
against a closed list here, on HTTP and on WebSocket alike.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from callgate.surfaces.accepting import BACKLOG

USUAL_HOST = "127.0.0.1"
USUAL_PORT = 4177
_OWN_NAMES = ("127.0.0.1", "[::1]", "localhost")


class BadAddress(ValueError):
    """An address at which we cannot, or are not to, listen. `str` says it in a sentence."""


class Address(NamedTuple):
    host: str
    """Without brackets."""
    port: int

    @property
    def written(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether nobody but this machine gets there."""
        if self.host == "localhost":
            return True
        found = _ip(self.host)
        return found is not None and found.is_loopback

    @property
    def is_any(self) -> bool:
        found = _ip(self.host)
        return found is not None and found.is_unspecified


def read_address(text: str, *, allow_remote: bool) -> Address:
    """An address such as `127.0.0.1:4177` or `[::1]:0`. Raises `BadAddress`."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_ipv6 = isinstance(_ip(host), ipaddress.IPv6Address)
    if not colon or not host or is_bracketed != is_ipv6 or not set("[]@/").isdisjoint(host):
        raise BadAddress(f"{text!r} is not HOST:PORT, such as {USUAL_HOST}:{USUAL_PORT}")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 65_536):
        raise BadAddress(f"{port!r} is not a port")
    address = Address(host.lower(), int(port))
    if not address.is_local and not allow_remote:
        raise BadAddress(
            f"{text} can be reached from other machines, where the token would be the only wall"
        )
    return address


def read_advertised(text: str) -> str:
    """A URL such as `https://gate-1.example:4177`, as we write it. Raises `BadAddress`."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.username is not None or parts.path not in ("", "/") or parts.query:
        raise BadAddress(
            f"{text!r} is not a URL by which other servers reach this one, such as "
            "https://gate-1.example:4177"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}"


def read_public(text: str) -> str:
    """The origin of a URL such as `https://callgate.example`. Raises `BadAddress`."""
    try:
        url = urlsplit(text.lower())
        usual = {"http": 80, "https": 443}.get(url.scheme)
        port = url.port
    except ValueError:
        usual = port = None
    if usual is None or not url.hostname or "@" in url.netloc or url.path not in ("", "/"):
        raise BadAddress(f"{text!r} is not a URL without a path, such as https://callgate.example")
    if url.query or url.fragment:
        raise BadAddress(f"{text!r} has more than a host and a port")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{url.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")


def bind(address: Address) -> socket.socket:
    """A listening socket. Raises `BadAddress`."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        listening = socket.socket(family, kind, protocol)  # by which asyncio knows it for TCP
    except (OSError, UnicodeError) as error:
        raise BadAddress(f"{address.written} is no address here: {error}") from error
    try:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        detail = error.strerror or str(error)
        raise BadAddress(f"{address.written} cannot be listened at: {detail}") from error
    return listening


class Names(NamedTuple):
    """Under which names we are known at an address that was bound."""

    address: Address
    private: str | None = None
    """A name for browsers that nobody else knows: cookies know no ports, so those of 127.0.0.1
    are shown to every server there that the person visits."""
    advertised: str | None = None
    """The URL that other servers are told to reach us by."""
    public: str | None = None
    """The origin of the load balancer before us, as `read_public` writes it."""

    def is_ours(self, host: str) -> bool:
        """Whether the value of a `Host` header means us."""
        known = (each.partition("://")[2] for each in (self.advertised, self.public) if each)
        if host.lower() in known:
            return True
        name, port = _split(host.lower(), self.address.port)
        if port != str(self.address.port):
            return False
        if name in _OWN_NAMES or name == self.private:
            return True
        if self.address.is_any:  # no name can be made to point at an address written in digits
            return _ip(name.strip("[]")) is not None
        return f"{name}:{port}" == self.address.written.lower()

    def is_own_origin(self, origin: str, host: str) -> bool:
        """Whether a page of an origin is ours, in a request to a host that is."""
        if self.public is not None and host.lower() == self.public.partition("://")[2]:
            return origin == self.public
        return origin == f"http://{host}"

    @property
    def servers_url(self) -> str:
        """Where other servers find us."""
        return self.advertised or self.url

    @property
    def page_url(self) -> str:
        """Where a browser finds us: behind a load balancer, or on this machine, whose browsers
        look up no `.localhost`."""
        if self.public is not None:
            return self.public
        if self.private is None or not self.address.is_local:
            return self.url
        return f"http://{self.private}:{self.address.port}"

    @property
    def url(self) -> str:
        """Where this machine finds us."""
        host = self.address.host
        if self.address.is_any:
            host = "::1" if ":" in host else "127.0.0.1"
        return f"http://{Address(host, self.address.port).written}"


def _split(host: str, port: int) -> tuple[str, str]:
    """Name and port of a `Host`; one without a port means 80."""
    if port == 80 and (host.endswith("]") or ":" not in host):
        return host, "80"
    name, _, port_text = host.rpartition(":")
    return name, port_text


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
