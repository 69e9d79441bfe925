"""Which addresses the web tools may connect to. Pure.

Public addresses, unless `[web] only` names hosts; others only where `[web] allow` does:

    127.0.0.1:8080, [::1]:8080     this very address
    private:wiki.corp              a name, at whatever address around this machine it has
    10.1.0.0/16                    any name with an address in this network

The addresses at which clouds hand out secrets are reached by none of these but their own.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

import msgspec

from callgate import ToolPermissionDenied, ToolValidationError
from callgate.packs import addresses
from callgate.packs.addresses import AllowedHost

LONGEST_URL = 8_192
_PORTS = {"http": 80, "https": 443}


class Target(msgspec.Struct, frozen=True):
    """An address on the web, in one spelling."""

    scheme: str
    host: str
    """As `normal_host` gives it."""
    port: int
    path: str
    """With the query; begins with a slash."""

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse(url: str) -> Target:
    """Raises `ToolValidationError` for whatever is not plainly a page on the web."""
    if len(url) > LONGEST_URL or any(not "!" <= char <= "~" for char in url) or "\\" in url:
        raise _invalid(f"it has to be percent-encoded, with at most {LONGEST_URL:,} characters")
    try:
        split = urlsplit(url)
        if split.scheme not in _PORTS:
            raise _invalid("it must begin with http:// or https://")
        if "@" in split.netloc:
            raise _invalid("it must hold no user name or password")
        host, port = addresses.split(split.netloc.removesuffix(":"))
    except ValueError as error:
        raise _invalid(str(error)) from None
    query = f"?{split.query}" if split.query else ""
    return Target(split.scheme, host, port or _PORTS[split.scheme], (split.path or "/") + query)


def _invalid(why: str) -> ToolValidationError:
    return ToolValidationError(f"The url cannot be used: {why}.", reason="invalid_url")


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[AllowedHost, ...] = ()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    only: tuple[AllowedHost, ...] | None = None
    anywhere: bool = False
    """For an address that the user's own settings name."""

    @classmethod
    def of(cls, allow: list[str], only: list[str] | None) -> Reach:
        """Raises ValueError, which says what is wrong with an entry."""
        return cls(
            hosts=tuple(addresses.parse(each) for each in allow if "/" not in each),
            networks=tuple(_network(each) for each in allow if "/" in each),
            only=None if only is None else tuple(map(addresses.parse, only)),
        )

    def ensure_named(self, host: str, port: int) -> None:
        """Raises `ToolPermissionDenied` where the name alone says no."""
        if self.only is None or self.anywhere:
            return
        if not addresses.find((*self.only, *self.hosts), host, port):
            raise ToolPermissionDenied(
                f"{host}:{port} is not among the hosts that [web] only names in settings.toml.",
                reason="host_refused",
            )

    def permitted(self, host: str, port: int, addresses: list[str]) -> list[str]:
        """Those of a host's addresses that may be connected to; raises where none may."""
        found = [each for each in addresses if self._permits(host, port, each)]
        if addresses and not found:
            raise ToolPermissionDenied(
                f"{host}:{port} is not public: it is part of this machine or the network around"
                " it. To allow it, name it in [web] allow of settings.toml.",
                reason="address_refused",
            )
        return found

    def _permits(self, host: str, port: int, address: str) -> bool:
        if self.anywhere or addresses.is_public(address):
            return True
        if any(each.permits(address) for each in addresses.find(self.hosts, host, port)):
            return True
        number = ip_address(address)
        inside = any(number in network for network in self.networks)
        return inside and addresses.is_private(address)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no network: {error}") from None
