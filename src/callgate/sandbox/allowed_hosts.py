"""Hosts that a command may reach: how they are written, and what each of them covers.

    pkgs.example.org                 this name, ports 80 and 443
    *.files.example.org       every name below it, and not the name itself
    example.com:8443         this port alone
    192.0.2.7, [2001:db8::7] an address, which may be any; no other spelling of it counts
    private:git.corp:8443    a name that may have an address in a private network

A name that is not `private` is reached at public addresses only, so that whoever owns a name
cannot lead a command into this machine or the network around it. Pure: names
are not looked up here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import cache

import msgspec

DEFAULT_PORTS = (80, 443)

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^\[\]:@/?#\\\s]+)(?::([1-9][0-9]{0,4}))?\Z")
_LONGEST_NAME = 253
_AMBIGUOUS = frozenset("\u00df\u1e9e\u03c2\u200c\u200d")
"""Letters for which the two standards of international names give different names."""
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
)  # the last: a cloud's own door to a machine
"""Reserved by the registries of special addresses. `is_global` of the standard library follows them
differently from one release of Python to the next, so the list is our own."""
_INSIDE = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "::1/128",
    "fc00::/7",
)
_METADATA = ("100.100.100.200/32", "fd00:ec2::/32")
"""Where clouds tell a machine its secrets. The usual one is link-local, and refused as such."""


class AllowedHost(msgspec.Struct, frozen=True):
    name: str
    """In the one spelling that `normal_host` gives."""
    ports: tuple[int, ...] = DEFAULT_PORTS
    below: bool = False
    """The names below it, instead of itself."""
    private: bool = False
    """It may have an address that is not public."""

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        port = "" if self.ports == DEFAULT_PORTS else f":{self.ports[0]}"
        return f"{_PRIVATE if self.private else ''}{'*.' if self.below else ''}{name}{port}"

    def covers(self, host: str, port: int) -> bool:
        """`host` as `normal_host` gives it."""
        return port in self.ports and self._names(host)

    def permits(self, address: str) -> bool:
        """Whether an address is one that this name, or this very address, may lead to."""
        return address == self.name or is_public(address) or (self.private and is_private(address))

    def _names(self, host: str) -> bool:
        if self.below:
            return host.endswith("." + self.name)  # no address does: a name ends in no number
        return host == self.name


def parse(text: str) -> AllowedHost:
    """One entry as a person writes it. Raises ValueError, which says what is wrong with it."""
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
        raise ValueError(f"{text!r} is an address, which stands for itself alone")
    ports = DEFAULT_PORTS if port is None else (port,)
    return AllowedHost(host, ports, below=below, private=private)


def split(authority: str) -> tuple[str, int | None]:
    """Host and port, the host as `normal_host` gives it. Raises ValueError."""
    found = _AUTHORITY.match(authority)
    if found is None:
        raise ValueError(f"{authority!r} is not a host")
    port = None if found[2] is None else int(found[2])
    if port is not None and port > 65535:
        raise ValueError(f"{authority!r} has no such port")
    return normal_host(found[1]), port


def normal_host(text: str) -> str:
    """The one spelling of a name or an address. Raises ValueError for whatever is neither.

    What ends in a number is an address and must be written as one: programs disagree about
    `0x7f.1` and `2130706433`, and so they are refused.
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
    """The entries that cover a host and port."""
    return tuple(each for each in hosts if each.covers(host, port))


def common(first: Iterable[AllowedHost], second: Iterable[AllowedHost]) -> tuple[AllowedHost, ...]:
    """What both lists cover."""
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
    """Whether an address is one of the wide internet's, whatever it is wrapped in."""
    number = ipaddress.ip_address(address)
    if isinstance(number, ipaddress.IPv6Address):
        inner = _within(number)
        if inner is not None:
            return is_public(str(inner))
        if not _is_in(number, _GLOBAL_V6):
            return False
    return not _is_in(number, _NEVER)


def is_private(address: str) -> bool:
    """Whether an address belongs to this machine or a network around it, and to no cloud."""
    number = ipaddress.ip_address(address)
    if _is_in(number, _METADATA):
        return False
    return _is_in(number, _INSIDE)


def _is_in(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, networks: tuple[str, ...]
) -> bool:
    return any(address in network for network in _read(networks))


@cache
def _read(
    networks: tuple[str, ...],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """At the first question: few commands ask about an address."""
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
    """The IPv4 address that an IPv6 one leads to."""
    if _is_in(address, _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _one_spelling(address: ipaddress.IPv6Address) -> str:
    return str(address.ipv4_mapped or address)
