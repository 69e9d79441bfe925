"""Build MCP servers from settings: as tool sources of a runtime, or once for approval."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from callgate.config.home import Home
from callgate.config.pins import PinFiles, open_pins
from callgate.config.schema import Settings
from callgate.config.secret_opening import TokenFile
from callgate.config.trust import is_trusted
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError
from callgate.dispatch.commands.sandboxes import Sandbox, Surroundings
from callgate.features.mcp.client.definitions import Beliefs
from callgate.features.mcp.client.programs import (
    Described,
    Fill,
    ServerPackages,
    Tell,
    argv_of,
    from_environment,
    limits_of,
    reach_process,
    server_environment,
    start_timeout_s,
)
from callgate.features.mcp.client.server_requests import Asks, DispatchedAsks
from callgate.features.mcp.client.server_tools import ACCEPT, McpTools, Servers
from callgate.features.mcp.client.servers import ServerLocation, ServerSettings, TransportFactory
from callgate.features.mcp.settings import McpSettings, McpTable, OAuthTable, load_workspace_mcp
from callgate.instance.wiring.runtime import Wired
from callgate.redaction.texts import redact
from callgate.sources.logs import LifeLog
from callgate.sources.pins import Pinned

if TYPE_CHECKING:
    from callgate.features.mcp.client.logins import TokenStore


Login = Callable[[str], None]
"""Opens a login page in the user's browser."""


def _load_sdk() -> None:
    """Import the SDK. Called in a thread, because the import takes a second."""
    from callgate.features.mcp.client import http, logins  # lazy: with the SDK, which is heavy  # noqa: F401, PLC0415


def reach_address(
    table: McpTable,
    name: str,
    tokens: TokenStore,
    login: Login | None = None,
    fill: Fill = from_environment,
) -> TransportFactory:
    """Return the transport of a remote server. `login` opens the login page; None: no login."""

    async def reach(location: ServerLocation, log: LifeLog) -> Callable[[], Any]:
        headers = fill("headers", table.headers)
        await asyncio.to_thread(_load_sdk)
        from callgate.features.mcp.client.http import (  # lazy: with the SDK, which is heavy  # noqa: PLC0415
            transport,
        )

        auth = None
        if table.oauth is not False and "authorization" not in map(str.lower, headers):
            from callgate.features.mcp.client.logins import (  # lazy: with the SDK, which is heavy  # noqa: PLC0415
                provider,
            )

            oauth = table.oauth if isinstance(table.oauth, OAuthTable) else OAuthTable()
            secret = oauth.client_secret_env
            auth = provider(
                name,
                str(table.url),
                tokens,
                show=login,
                scopes=tuple(oauth.scopes),
                client_id=oauth.client_id,
                client_secret=None if secret is None else os.environ.get(secret),
                client_metadata_url=oauth.client_metadata_url,
                port=oauth.port,
            )
        return lambda: transport(
            str(table.url), headers, auth, login_hosts=tuple(table.login_hosts)
        )

    return reach


START_S = 60.0
"""Minimum start timeout for an editor's server: some fetch packages first."""
_SHORTEST_SECRET = 6


class ServerBuilder(msgspec.Struct, frozen=True):
    home: str
    """callgate's home, which contains the packages."""
    sandbox: Sandbox
    tokens: Callable[[str], TokenStore]
    """Returns the OAuth tokens of a pin."""
    login: Login | None = None
    """None: no user is present, so no login is possible."""
    tell: Tell | None = None
    """Receives the progress of package downloads."""

    def settings(self, name: str, table: McpTable, owner: str | None = None) -> ServerSettings:
        """`owner` is the workspace whose settings name the server; None: the user's settings."""
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
            reach=self._reach(Described(name, f"[mcp.{name}]"), pin, table),
        )

    def session_settings(self, name: str, table: McpTable) -> ServerSettings:
        """Return the settings of a server that an editor names for a session, without approval."""
        pin = f"{name}@{short_hash(repr((table.command, table.args)))}"
        return ServerSettings(
            name=name,
            # The command appears in logs, so its arguments, which may be secret, are omitted.
            command=("http", "") if table.url is not None else ("stdio", str(table.command)),
            start_timeout_s=max(START_S, start_timeout_s(table)),
            pin=name,
            of_session=True,
            covered=_cover(_secrets(table)),
            has_jail=self._has_jail(table),
            reach=self._reach(Described(name, "[acp.mcp]", approved=False), pin, table, _literally),
        )

    def packages(self, pin: str, table: McpTable) -> ServerPackages:
        return ServerPackages(self.home, pin, limits_of(table), self.sandbox, self.tell)

    def _has_jail(self, table: McpTable) -> bool:
        return table.url is None and self.sandbox.surroundings.profile is not None

    def _reach(
        self, described: Described, pin: str, table: McpTable, fill: Fill = from_environment
    ) -> TransportFactory:
        if table.url is None:
            return reach_process(table, self.sandbox, self.packages(pin, table), described, fill)
        return reach_address(table, described.name, self.tokens(pin), self.login, fill)


def pin_name(name: str, owner: str | None) -> str:
    return name if owner is None else f"{name}@{short_hash(owner)}"


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _literally(key: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the values unchanged: `${NAME}` in an editor's configuration is not a variable."""
    return dict(values)


def _secrets(table: McpTable) -> Iterator[str]:
    """Yield the values that may be secret."""
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


def ask_servers(
    servers: Servers, sandbox: Sandbox, workspace: str, names: Collection[str]
) -> Mapping[str, Pinned | ToolError]:
    """Start these servers concurrently and return the definitions of each, or its error.

    Pins nothing. Closes `servers` and `sandbox`.
    """
    if not names:
        return {}

    async def ask_one(name: str) -> Pinned | ToolError:
        try:
            return await servers.ask(name, ServerLocation(workspace))
        except ToolError as error:
            return error

    async def ask_all() -> Mapping[str, Pinned | ToolError]:
        await sandbox.ready()
        try:
            answers = await asyncio.gather(*map(ask_one, names))
        finally:
            await servers.close()
            sandbox.close()
        return dict(zip(names, answers, strict=True))

    return asyncio.run(ask_all())


def update_server_packages(
    table: McpTable, packages: ServerPackages, sandbox: Sandbox, log: LifeLog, workspace: str
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Fetch the newest packages of a server and return the versions before and after.

    Closes `sandbox` and `log`. Raises `ToolError` or `OSError`.
    """

    async def update() -> tuple[Mapping[str, str], Mapping[str, str]]:
        await sandbox.ready()
        try:
            env = server_environment(table)
            found = await packages.update(argv_of(table), env, log, [workspace])
        finally:
            sandbox.close()
            log.close()
        if found is None:
            raise ToolError(
                "callgate does not manage its packages: only npx, uvx and pipx run are supported"
            )
        return found

    return asyncio.run(update())


Tables = dict[str, tuple[McpTable, str | None]]
"""Server tables by name, each with the workspace whose settings name it; None: the user's."""


def tables(home: Home, settings: Settings, workspace: str) -> Tables:
    """Return the servers of the user's settings and, if it is trusted, of the workspace's settings.

    A server of the user takes precedence over one of the workspace with the same name.
    """
    found: Tables = {name: (table, None) for name, table in settings.of(McpSettings).mcp.items()}
    if is_trusted(home, workspace):
        real = os.path.realpath(workspace)
        for name, table in load_workspace_mcp(real).items():
            found.setdefault(name, (table, real))
    return found


def make_servers(
    home: Home,
    settings: Settings,
    sandbox: Sandbox,
    workspace: str,
    asks: Asks | None = None,
    login: Login | None = None,
    tell: Tell | None = None,
) -> Servers:
    """Build all configured servers.

    `login` opens a login page; None: no login. `tell` receives the progress of package downloads.
    """
    build = make_builder(home, sandbox, login, tell)
    found = tables(home, settings, workspace)
    servers = [build.settings(name, table, owner) for name, (table, owner) in found.items()]
    return Servers(servers, pin_files(home), asks)


def add_servers(wired: Wired, workspace: str) -> McpTools:
    """Add the configured servers to a runtime. They follow later changes of the settings."""
    current = tables(wired.home, wired.settings, workspace)
    asks = make_asks(wired)
    servers = make_servers(wired.home, wired.settings, wired.sandbox, workspace, asks)
    tools = McpTools(servers, wired.registry)

    def follow() -> None:
        nonlocal current
        current = take_over(tools, wired.home, wired.settings, wired.sandbox, workspace, current)

    wired.mcp, wired.follow_mcp = tools, follow
    return tools


def take_over(
    tools: McpTools,
    home: Home,
    settings: Settings,
    sandbox: Sandbox,
    workspace: str,
    before: Tables,
) -> Tables:
    """Replace the servers `before` with the servers of the present settings.

    Unchanged servers keep running. Raises `SettingsError`.
    """
    wanted = tables(home, settings, workspace)
    build = make_builder(home, sandbox)
    for name in before.keys() - wanted.keys():
        tools.drop(name)
    for name, (table, owner) in wanted.items():
        if before.get(name) != (table, owner):
            tools.put(build.settings(name, table, owner))
    return wanted


def make_wrapped(
    home: Home, name: str, table: McpTable, sandbox: Sandbox, asks: Asks, accept: str, tell: Tell
) -> Servers:
    """Build the single server of `callgate mcp wrap`.

    Its resources and prompts have effect `read`. `accept` is the command that approves its tools.
    """
    settings = make_builder(home, sandbox, None, tell).settings(name, table)
    beliefs = msgspec.structs.replace(settings.beliefs, beside=SideEffects.READ)
    wrapped = msgspec.structs.replace(settings, beliefs=beliefs, accept=accept)
    return Servers([wrapped], pin_files(home), asks)


def make_builder(
    home: Home, sandbox: Sandbox, login: Login | None = None, tell: Tell | None = None
) -> ServerBuilder:
    return ServerBuilder(home.path, sandbox, lambda pin: token_file(home, pin), login, tell)


def pin_files(home: Home) -> PinFiles:
    return open_pins(home, "mcp", ACCEPT)


def token_file(home: Home, pin: str) -> TokenFile:
    return TokenFile(os.path.join(home.path, "mcp", f"{pin}.tokens"), home.path)


def make_asks(wired: Wired) -> Asks:
    return DispatchedAsks(wired.runtime.calls.run, wired.registry, wired.open_model)


def update_packages(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    name: str,
    tell: Tell,
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Fetch the newest packages of a server and return the versions before and after.

    Must be called outside an event loop. Raises `ToolError` or `OSError`.
    """
    table, owner = tables(home, settings, workspace)[name]
    sandbox, pin = Sandbox(surroundings), pin_name(name, owner)
    packages = make_builder(home, sandbox, tell=tell).packages(pin, table)
    log = LifeLog(pin_files(home).log_path(pin))
    return update_server_packages(table, packages, sandbox, log, os.path.abspath(workspace))


def ask(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    names: Collection[str],
    login: Login | None = None,
    tell: Tell | None = None,
) -> Mapping[str, Pinned | ToolError]:
    """Start these servers concurrently and return the definitions of each, or its error.

    Pins nothing. Must be called outside an event loop.
    """
    sandbox = Sandbox(surroundings)
    servers = make_servers(home, settings, sandbox, workspace, login=login, tell=tell)
    return ask_servers(servers, sandbox, workspace, names)
