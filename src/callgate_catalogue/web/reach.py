"""Addresses that the web tools may connect to. Pure.

Public addresses, unless `[web] only` names hosts; other addresses only with `[web] allow`:

    127.0.0.1:8080, [::1]:8080     exactly this address
    private:wiki.corp              a name with any private address
    10.1.0.0/16                    any name with an address in this network

Metadata addresses of clouds need an entry with exactly their address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from callgate import ToolPermissionDenied, ToolValidationError
from callgate.packs import addresses
from callgate.packs.addresses import AllowedHost
from callgate.packs.tools import ModelError
from callgate_catalogue.settings import USUAL_VARIABLES, WebTable

if TYPE_CHECKING:
    from callgate.packs.tools import Key
    from callgate_catalogue.web.fetching import RequestLimits, Resolve


class Web:
    def __init__(
        self,
        table: WebTable,
        key: Callable[[], Key | None] = lambda: None,
        resolve: Resolve | None = None,
    ) -> None:
        """`key` returns the search service's key; `resolve` replaces the name resolution."""
        self.table = table
        self.key = key
        self._resolve = resolve

    @cached_property
    def reach(self) -> Reach:

        return Reach.of(self.table.allow, self.table.only)

    @cached_property
    def limits(self) -> RequestLimits:
        from callgate_catalogue.web.fetching import RequestLimits  # lazy: with the first call  # noqa: PLC0415

        return RequestLimits(
            timeout_s=self.table.timeout_s,
            max_bytes=self.table.max_bytes,
            max_redirects=self.table.max_redirects,
        )

    @cached_property
    def resolve(self) -> Resolve:
        from callgate_catalogue.web.fetching import look_up  # lazy: with the first call  # noqa: PLC0415

        return self._resolve or look_up

    def why_no_search(self) -> str | None:
        """Return the missing part of the search configuration and its fix; None if complete."""
        kind = self.table.search
        if kind is None:
            return (
                "no search service is configured; name one in [web] search of settings.toml:"
                " searxng, brave, tavily or ddgs"
            )
        if kind == "searxng" and self.table.search_url is None:
            return "the address of SearXNG is missing: [web] search_url of settings.toml"
        if kind == "ddgs" and not _is_installed("ddgs"):
            return "ddgs is not installed: pip install 'callgate[search]'"
        return self._why_no_key(kind) if kind in USUAL_VARIABLES else None

    def _why_no_key(self, kind: str) -> str | None:
        try:
            found = self.key()
        except ModelError as error:
            return f"the key of {kind} cannot be used: {error.message.removesuffix('.')}"
        return None if found else f"the key of {kind} is missing: callgate keys set {kind}"


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec  # lazy: few ask  # noqa: PLC0415

    return find_spec(package) is not None


LONGEST_URL = 8_192
_PORTS = {"http": 80, "https": 443}


class Target(msgspec.Struct, frozen=True):
    """Normalized web address."""

    scheme: str
    host: str
    """Host in the form of `normal_host`."""
    port: int
    path: str
    """Path with query; begins with a slash."""

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
    """Parse a URL. Raises `ToolValidationError` unless it is clearly a web address."""
    if len(url) > LONGEST_URL or any(not "!" <= char <= "~" for char in url) or "\\" in url:
        raise _invalid(f"it must be percent-encoded, with at most {LONGEST_URL:,} characters")
    try:
        split = urlsplit(url)
        if split.scheme not in _PORTS:
            raise _invalid("it must begin with http:// or https://")
        if "@" in split.netloc:
            raise _invalid("it must not contain a user name or password")
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
    """Allow any address, for URLs from the user's own settings."""

    @classmethod
    def of(cls, allow: list[str], only: list[str] | None) -> Reach:
        """Parse the settings. Raises `ValueError` with the defect of an entry."""
        return cls(
            hosts=tuple(addresses.parse(each) for each in allow if "/" not in each),
            networks=tuple(_network(each) for each in allow if "/" in each),
            only=None if only is None else tuple(map(addresses.parse, only)),
        )

    def ensure_named(self, host: str, port: int) -> None:
        """Raise `ToolPermissionDenied` if the name alone is refused."""
        if self.only is None or self.anywhere:
            return
        if not addresses.find((*self.only, *self.hosts), host, port):
            raise ToolPermissionDenied(
                f"{host}:{port} is not among the hosts that [web] only names in settings.toml.",
                reason="host_refused",
            )

    def permitted(self, host: str, port: int, addresses: list[str]) -> list[str]:
        """Return the permitted addresses of a host. Raises if none is permitted."""
        found = [each for each in addresses if self._permits(host, port, each)]
        if addresses and not found:
            raise ToolPermissionDenied(
                f"{host}:{port} is not public: it is part of this machine or the network around"
                " it. Add it to [web] allow of settings.toml to allow it.",
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
