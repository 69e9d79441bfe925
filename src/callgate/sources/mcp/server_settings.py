"""From `[mcp.NAME]`, or what an editor names, to a server: how it is reached, what is believed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from callgate.core.mcp_servers import McpTable
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.redaction.texts import redact
from callgate.sources.mcp.addresses import Login, reach_address
from callgate.sources.mcp.definitions import Beliefs
from callgate.sources.mcp.programs import (
    Fill,
    from_environment,
    limits_of,
    reach_process,
    start_timeout_s,
)
from callgate.sources.mcp.servers import ServerSettings, TransportFactory
from callgate.sources.packages.server_packages import ServerPackages, Tell

if TYPE_CHECKING:  # it loads the SDK
    from callgate.sources.mcp.logins import TokenStore

START_S = 60.0
"""How long a server of an editor may take to start: some are fetched first."""
_SHORTEST_SECRET = 6


class ServerBuilder(msgspec.Struct, frozen=True):
    home: str
    """Where packages are."""
    sandbox: Sandbox
    tokens: Callable[[str], TokenStore]
    """What a login gave, by the name of a pin."""
    login: Login | None = None
    """Sends a person to a browser; without, nobody is there."""
    tell: Tell | None = None
    """Hears of packages that are fetched."""

    def settings(self, name: str, table: McpTable, owner: str | None = None) -> ServerSettings:
        """`owner`: the workspace that brought it; None: the user did."""
        pin = pin_name(name, owner)
        return ServerSettings(
            name=name,
            command=table.identity if owner is None else (*table.identity, *table.values),
            start_timeout_s=start_timeout_s(table),
            elicitation=table.elicitation,
            sampling=table.sampling,
            only_in=owner,
            pin=pin,
            beliefs=Beliefs(
                effect=table.effect,
                effects=table.effects,
                trusted=table.trusted,
                tools=None if table.tools is None else tuple(table.tools),
                exclude=tuple(table.exclude),
                paths=tuple(table.paths),
                timeout_s=table.timeout_s,
            ),
            has_jail=self._has_jail(table),
            reach=self._reach(name, pin, table),
        )

    def session_settings(self, name: str, table: McpTable) -> ServerSettings:
        """Of a server that an editor names for a session: nobody has approved it."""
        pin = f"{name}@{short_hash(repr((table.command, table.args)))}"
        return ServerSettings(
            name=name,
            # Without its arguments, which may be secret: it stands in logs, and is not pinned.
            command=("http", "") if table.url is not None else ("stdio", str(table.command)),
            start_timeout_s=max(START_S, start_timeout_s(table)),
            pin=name,
            of_session=True,
            covered=_cover(_secrets(table)),
            has_jail=self._has_jail(table),
            reach=self._reach(name, pin, table, _literally),
        )

    def packages(self, pin: str, table: McpTable) -> ServerPackages:
        return ServerPackages(self.home, pin, limits_of(table), self.sandbox, self.tell)

    def _has_jail(self, table: McpTable) -> bool:
        return table.url is None and self.sandbox.surroundings.profile is not None

    def _reach(
        self, name: str, pin: str, table: McpTable, fill: Fill = from_environment
    ) -> TransportFactory:
        if table.url is None:
            return reach_process(table, self.sandbox, self.packages(pin, table), fill)
        return reach_address(table, name, self.tokens(pin), self.login, fill)


def pin_name(name: str, owner: str | None) -> str:
    return name if owner is None else f"{name}@{short_hash(owner)}"


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _literally(key: str, values: Mapping[str, str]) -> dict[str, str]:
    """An editor says what it means: nothing in it stands for a variable of ours."""
    return dict(values)


def _secrets(table: McpTable) -> Iterator[str]:
    """What may be one."""
    yield from table.set_env.values()
    for value in table.headers.values():
        yield value
        yield value.partition(" ")[2]
    if table.url is not None:
        yield urlsplit(table.url).query


def _cover(secrets: Iterable[str]) -> Callable[[str], str]:
    found = sorted({each for each in secrets if len(each) >= _SHORTEST_SECRET}, key=len)

    def cover(text: str) -> str:
        for each in reversed(found):
            text = text.replace(each, "[REDACTED]")
        return redact(text)

    return cover
