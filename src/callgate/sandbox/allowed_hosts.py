"""Hosts that a command may reach: the syntax of an entry, and the hosts that it covers.

    pkgs.example.org                 this name, ports 80 and 443
    *.files.example.org       every name below it, but not the name itself
    example.com:8443         this port only
    192.0.2.7, [2001:db8::7] an address, even a private one; only this spelling counts
    private:git.corp:8443    a name that may have an address in a private network

A name that is not `private` is reached only at public addresses, so that the owner of a name cannot
redirect a command to this machine or the network around it. Only `look_up` resolves names; the rest
is pure.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import msgspec

DEFAULT_PORTS = (80, 443)

Resolve = Callable[[str, int], Awaitable[list[str]]]

_RESOLVERS = ThreadPoolExecutor(4, "callgate-resolver")
"""A separate pool, so that slow lookups do not delay other threads of the runtime."""

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^\[\]:@/?#\\\s]+)(?::([1-9][0-9]{0,4}))?\Z")
_LOCAL_URL = re.compile(
    r"\b(https?|socks[45][ah]?)://(?:[^\s/@\"']*@)?"
    r"(localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::([1-9][0-9]{0,4}))?(?![\w.:-])",
    re.IGNORECASE,
)
_LONGEST_NAME = 253
_AMBIGUOUS = frozenset("\u00df\u1e9e\u03c2\u200c\u200d")
"""Letters that the two standards of international names translate differently."""
_PRIVATE = "private:"

_NAT64 = ("64:ff9b::/96",)
_GLOBAL_V6 = ("2000::/3",)
_NEVER = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
    "2001::/23",
    "2001:db8::/32",
    "3fff::/20",
    "168.63.129.16/32",
)  # the last: the internal service of a cloud
"""Reserved by the registries of special addresses. The list is explicit, because `is_global` of the
standard library differs between releases of Python."""
_INSIDE = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "::1/128",
    "fc00::/7",
)
_METADATA = ("100.100.100.200/32", "fd00:ec2::/32", "169.254.0.0/16", "fe80::/10")
"""Addresses of cloud metadata services: two, and all link-local ones."""


class AllowedHost(msgspec.Struct, frozen=True):
    name: str
    """In the spelling of `normal_host`."""
    ports: tuple[int, ...] = DEFAULT_PORTS
    below: bool = False
    """Whether it covers the names below it, instead of itself."""
    private: bool = False
    """Whether it may have a private address."""

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        port = "" if self.ports == DEFAULT_PORTS else f":{self.ports[0]}"
        return f"{_PRIVATE if self.private else ''}{'*.' if self.below else ''}{name}{port}"

    def covers(self, host: str, port: int) -> bool:
        """Whether the entry covers a host, in the spelling of `normal_host`."""
        return port in self.ports and self._names(host)

    def permits(self, address: str) -> bool:
        """Whether the entry permits a connection to an address of its host."""
        return address == self.name or is_public(address) or (self.private and is_private(address))

    def _names(self, host: str) -> bool:
        if self.below:
            return host.endswith("." + self.name)  # never an address: a name ends in no number
        return host == self.name


def parse(text: str) -> AllowedHost:
    """Parse one entry of the settings. Raises `ValueError` with the problem."""
    entry = text.removeprefix(_PRIVATE)
    private = entry != text
    if "://" in entry or "/" in entry:
        raise ValueError(f"{text!r} must be a host without a scheme or a path")
    if entry in ("*", "*."):
        raise ValueError(f"{text!r} would be every host")
    below = entry.startswith("*.")
    host, port = split(entry[2:] if below else entry)
    address = is_address(host)
    if address and (below or private):
        raise ValueError(f"{text!r} is an address, which covers only itself")
    ports = DEFAULT_PORTS if port is None else (port,)
    return AllowedHost(host, ports, below=below, private=private)


def local_services(texts: Iterable[str]) -> tuple[AllowedHost, ...]:
    """Return the services of this machine whose URLs are in the texts of settings."""
    found: dict[AllowedHost, None] = {}
    for scheme, host, port in _LOCAL_URL.findall("\n".join(texts)):
        usual = "443" if scheme.lower() == "https" else "80"
        try:
            found[parse(f"{host}:{port or usual}")] = None
        except ValueError:  # no address or port, such as 127.0.0.999
            continue
    return tuple(found)


def split(authority: str) -> tuple[str, int | None]:
    """Split host and port, the host as by `normal_host`. Raises `ValueError`."""
    found = _AUTHORITY.match(authority)
    if found is None:
        raise ValueError(f"{authority!r} is not a host")
    port = None if found[2] is None else int(found[2])
    if port is not None and port > 65535:
        raise ValueError(f"{authority!r} has no such port")
    return normal_host(found[1]), port


def normal_host(text: str) -> str:
    """Return the canonical spelling of a name or an address. Raises `ValueError` for other text.

    Text that ends in a number must be a plain address: programs disagree about `0x7f.1` and
    `2130706433`, so they are refused.
    """
    if text.startswith("["):
        if "%" in text or not text.endswith("]"):
            raise ValueError(f"{text!r} is not an address")
        return _one_spelling(ipaddress.IPv6Address(text[1:-1]))
    if len(text) > _LONGEST_NAME + 1 or not _AMBIGUOUS.isdisjoint(text):
        raise ValueError(f"{text[:80]!r} is not a host name with one meaning; write it as xn--")
    try:
        name = text if text.isascii() else text.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(f"{text!r} is not a host name") from None
    name = name.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.match(labels[-1]):
        return str(ipaddress.IPv4Address(name))
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.match, labels)):
        raise ValueError(f"{text!r} is not a host name")
    return name


def find(hosts: Iterable[AllowedHost], host: str, port: int) -> tuple[AllowedHost, ...]:
    """Return the entries that cover a host and port."""
    return tuple(each for each in hosts if each.covers(host, port))


def common(first: Iterable[AllowedHost], second: Iterable[AllowedHost]) -> tuple[AllowedHost, ...]:
    """Return the hosts that both lists cover."""
    others = tuple(second)
    both = (_overlap(one, other) for one in first for other in others)
    return tuple(dict.fromkeys(each for each in both if each is not None))


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Whether an address is public, including one inside another address."""
    number = ipaddress.ip_address(address)
    if isinstance(number, ipaddress.IPv6Address):
        inner = _within(number)
        if inner is not None:
            return is_public(str(inner))
        if not _is_in(number, _GLOBAL_V6):
            return False
    return not _is_in(number, _NEVER)


def is_private(address: str) -> bool:
    """Whether an address belongs to this machine or a network around it, and not to a cloud."""
    return not is_metadata(address) and _is_in(ipaddress.ip_address(address), _INSIDE)


def is_metadata(address: str) -> bool:
    """Whether a metadata service may have an address, which returns credentials."""
    return _is_in(ipaddress.ip_address(address), _METADATA)


def _is_in(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, networks: tuple[str, ...]
) -> bool:
    return any(address in network for network in _read(networks))


@cache
def _read(
    networks: tuple[str, ...],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Parse the networks on first use, because few commands need them."""
    return tuple(map(ipaddress.ip_network, networks))


def _overlap(one: AllowedHost, other: AllowedHost) -> AllowedHost | None:
    ports = tuple(port for port in one.ports if port in other.ports)
    narrow, wide = (other, one) if one.below and not other.below else (one, other)
    if narrow.below and wide.below and len(narrow.name) < len(wide.name):
        narrow, wide = wide, narrow
    if narrow.below:
        inside = narrow.name == wide.name or narrow.name.endswith("." + wide.name)
    else:
        inside = wide._names(narrow.name)
    if not ports or not inside:
        return None
    return AllowedHost(narrow.name, ports, narrow.below, one.private and other.private)


def _within(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address inside an IPv6 one."""
    if _is_in(address, _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _one_spelling(address: ipaddress.IPv6Address) -> str:
    return str(address.ipv4_mapped or address)


async def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a name from the system's resolver."""
    import asyncio  # lazy: settings are read without it  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(
        _RESOLVERS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    texts = (str(address[0]).partition("%")[0] for *_, address in found)
    return list(dict.fromkeys(str(ipaddress.ip_address(text)) for text in texts))
