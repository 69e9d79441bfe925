"""From settings to MCP servers: how each is reached, and what may be asked back.

    settings -> `make_servers` -> `McpTools`  their tools in a registry, and how each server is
             -> `ask`                         start them once, to hear what they say

Nothing is started before a call needs it: what is offered is what a person has approved
(`callgate mcp approve`). Loaded only where the settings name MCP servers.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.config.home import Home
from callgate.config.load import load_workspace_mcp
from callgate.config.mcp import McpTable
from callgate.config.mcp_tokens import TokenFile
from callgate.config.pins import PinFiles
from callgate.config.schema import Settings
from callgate.config.trust import is_trusted
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError, ToolRegistrationError
from callgate.core.models import Model
from callgate.core.sessions import Session
from callgate.dispatch.commands.sandboxes import Sandbox, Surroundings
from callgate.dispatch.registry import Registry
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.redaction.texts import redact
from callgate.runtime import Runtime
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.definitions import Beliefs
from callgate.sources.mcp.message_log import LoggedMessage
from callgate.sources.mcp.questions import DispatchedAsks
from callgate.sources.mcp.servers import ServerLocation, ServerSettings, TransportFactory
from callgate.sources.mcp.source import Servers
from callgate.sources.pins import PinDoubt, Pinned
from callgate.sources.proposals import Proposal, hash_of, propose
from callgate.sources.provider import ProvidedTools
from callgate.wiring.mcp_programs import (
    Fill,
    argv_of,
    from_environment,
    reach_process,
    server_environment,
    start_timeout_s,
)
from callgate.wiring.packages import ServerPackages, Tell, limits_of

if TYPE_CHECKING:  # most homes have none
    from callgate.wiring.hosts import HostedTools

PREFIX = "mcp."
Login = Callable[[str], None]
Tables = dict[str, tuple[McpTable, str | None]]
"""By name, with the workspace that brought each; None: the user did."""


def tables(home: Home, settings: Settings, workspace: str) -> Tables:
    """The servers of the user and those that the workspace brings, if it is trusted. The user's
    own come first: nothing replaces them."""
    found: Tables = {name: (table, None) for name, table in settings.mcp.items()}
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
    """`login` sends a person to a browser; without, nobody is there. `tell` hears of packages that
    are fetched."""
    found = tables(home, settings, workspace)
    specs = [
        _settings(name, table, owner, home, sandbox, login, tell)
        for name, (table, owner) in found.items()
    ]
    return Servers(specs, pin_files(home), asks)


def make_wrapped(
    home: Home, name: str, table: McpTable, sandbox: Sandbox, asks: Asks, accept: str, tell: Tell
) -> Servers:
    """One server, which stands for itself: what it has beside tools is only read. `accept` is the
    command that approves what it says."""
    settings = _settings(name, table, None, home, sandbox, None, tell)
    beliefs = msgspec.structs.replace(settings.beliefs, beside=SideEffects.READ)
    wrapped = msgspec.structs.replace(settings, beliefs=beliefs, accept=accept)
    return Servers([wrapped], pin_files(home), asks)


def pin_files(home: Home) -> PinFiles:
    return PinFiles(home.path, "mcp", Servers.accept)


def _settings(
    name: str,
    table: McpTable,
    owner: str | None,
    home: Home,
    sandbox: Sandbox,
    login: Login | None,
    tell: Tell | None,
) -> ServerSettings:
    pin = _pin(name, owner)
    if table.url is None:
        packages = ServerPackages(home.path, pin, limits_of(table), sandbox, tell)
        reach = reach_process(table, sandbox, packages)
    else:
        reach = reach_address(table, home, pin, login)
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
        has_jail=table.url is None and sandbox.surroundings.profile is not None,
        reach=reach,
    )


def _pin(name: str, owner: str | None) -> str:
    return name if owner is None else f"{name}@{short_hash(owner)}"


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def token_file(home: Home, pin: str) -> TokenFile:
    return TokenFile(os.path.join(home.path, "mcp", f"{pin}.tokens"))


def reach_address(
    table: McpTable, home: Home, pin: str, login: Login | None, fill: Fill = from_environment
) -> TransportFactory:
    async def reach(place: ServerLocation, log: LifeLog) -> Callable[[], Any]:
        headers = fill("headers", table.headers)
        from callgate.sources.mcp.http import transport  # lazy: with the SDK, which is heavy  # noqa: PLC0415

        auth = None
        named = {name.lower() for name in headers}
        if table.oauth is not False and "authorization" not in named:
            from callgate.sources.mcp.logins import provider  # lazy: with the SDK, which is heavy  # noqa: PLC0415

            oauth = table.oauth if table.oauth is not True else None
            auth = provider(
                pin.partition("@")[0],
                str(table.url),
                token_file(home, pin),
                show=login,
                scopes=() if oauth is None else tuple(oauth.scopes),
                client_id=None if oauth is None else oauth.client_id,
                client_secret=None
                if oauth is None or oauth.client_secret_env is None
                else os.environ.get(oauth.client_secret_env),
                client_metadata_url=None if oauth is None else oauth.client_metadata_url,
                port=None if oauth is None else oauth.port,
            )
        return lambda: transport(
            str(table.url), headers, auth, login_hosts=tuple(table.login_hosts)
        )

    return reach


class McpTools(ProvidedTools):
    """The MCP servers of a runtime."""

    _hosts: Servers

    def __init__(self, servers: Servers, registry: Registry) -> None:
        super().__init__(servers, registry)
        self.servers = servers
        self._notices: dict[str, str] = {}
        self._looked_at: dict[str, Pinned] = {}
        """What servers said when a person last looked."""

    def register_all(self) -> None:
        for name in self.servers.in_order():
            try:
                pinned = self.servers.pinned(name)
                if pinned is None:
                    self._notices[name] = f"is new: callgate mcp approve {name} looks at its tools"
                    continue
                self.offer(name, self.servers.factories_of(name, pinned))
            except PinDoubt as doubt:
                self._notices[name] = f"brings no tools: {doubt}"
            except ToolRegistrationError:
                pass  # `entries` reports it

    def offer(self, host: str, factories: Any) -> None:
        super().offer(host, factories)
        only_in = self.servers.only_in(host)
        if only_in is None:
            return

        def why_not(session: Session) -> str | None:
            here = os.path.realpath(session.workspace) == only_in
            return None if here else f"it belongs to the workspace {only_in}"

        for name in self._names[host]:
            self._registry.offer_where(name, why_not)

    def notices(self) -> list[str]:
        """What whoever started us should know: servers that brought no tools, and why."""
        notices = self._notices
        return [
            f"MCP server {name} {notices[name]}" for name in self.servers.hosts if name in notices
        ]

    def entry(self, name: str) -> HostEntry:
        found = super().entry(name)
        return msgspec.structs.replace(found, command=[redact(each) for each in found.command])

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        return self.servers.hosts[name].messages.reader()

    async def look(self, name: str, workspace: str) -> Proposal:
        servers = self.servers
        proposed = await servers.ask(self._known(name), ServerLocation(workspace))
        doubt = servers.doubt(name)
        before = servers.pinned(name) if doubt is None else doubt.pinned
        self._looked_at[name] = proposed
        return propose(
            proposed,
            servers.definitions_of(name, proposed),
            servers.compare(name, before, proposed),
            is_new=before is None and doubt is None,
            doubt=None if doubt is None else doubt.problem,
        )

    async def approve(self, name: str, sha256: str) -> HostEntry:
        proposed = self._looked_at.get(self._known(name))
        if proposed is None or hash_of(proposed) != sha256:
            raise ToolError("It says something else by now: look again.", reason="not_looked_at")
        self.servers.pin(name, proposed)
        self.servers.hosts[name].log.note("approved by a person at the dashboard")
        return await self.renew(name, forget=False)


class AllProvidedTools:
    """Hosts and MCP servers in one list: a server is called `mcp.NAME` there."""

    def __init__(self, hosts: HostedTools | None, mcp: McpTools) -> None:
        self._hosts = hosts
        self._mcp = mcp

    def entries(self) -> list[HostEntry]:
        hosts = [] if self._hosts is None else self._hosts.entries()
        return [*hosts, *map(_named, self._mcp.entries())]

    async def renew(self, name: str, *, forget: bool) -> HostEntry:
        """Raises `KeyError`, `ToolError` or `ToolRegistrationError`."""
        if name.startswith(PREFIX):
            return _named(await self._mcp.renew(name.removeprefix(PREFIX), forget=forget))
        if self._hosts is None:
            raise KeyError(name)
        return await self._hosts.renew(name, forget=forget)

    def log_path(self, name: str) -> str:
        """Raises `KeyError`."""
        return self._of(name).log_path(name.removeprefix(PREFIX))

    def messages(self, name: str) -> Callable[[], list[LoggedMessage]]:
        return self._of(name).messages(name.removeprefix(PREFIX))

    async def look(self, name: str, workspace: str) -> Proposal:
        return await self._of(name).look(name.removeprefix(PREFIX), workspace)

    async def approve(self, name: str, sha256: str) -> HostEntry:
        return _named(await self._of(name).approve(name.removeprefix(PREFIX), sha256))

    def _of(self, name: str) -> ProvidedTools:
        if name.startswith(PREFIX):
            return self._mcp
        if self._hosts is None:
            raise KeyError(name)
        return self._hosts


def _named(entry: HostEntry) -> HostEntry:
    return msgspec.structs.replace(entry, name=PREFIX + entry.name)


def register_servers(
    home: Home, settings: Settings, sandbox: Sandbox, workspace: str, runtime: Runtime
) -> McpTools | None:
    """Register what is pinned; None where there are no servers."""
    if not tables(home, settings, workspace):
        return None
    asks = make_asks(home, settings, runtime)
    servers = make_servers(home, settings, sandbox, workspace, asks)
    tools = McpTools(servers, runtime.dispatcher.registry)
    tools.register_all()
    return tools


def make_asks(home: Home, settings: Settings, runtime: Runtime) -> Asks:
    def open_model() -> Model:
        from callgate.wiring.agents import open_model  # lazy: only where a server asks for one  # noqa: PLC0415

        return open_model(home, settings, None)

    return DispatchedAsks(runtime.call, runtime.dispatcher.registry, open_model)


def update_packages(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    name: str,
    tell: Tell,
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Fetch the newest packages of a server: the versions before, and now. Raises a `ToolError` or
    OSError. To be called where no event loop runs."""
    table, owner = tables(home, settings, workspace)[name]
    pin = _pin(name, owner)
    sandbox = Sandbox(surroundings)
    packages = ServerPackages(home.path, pin, limits_of(table), sandbox, tell)
    log = LifeLog(pin_files(home).log_path(pin))

    async def update() -> tuple[Mapping[str, str], Mapping[str, str]]:
        await sandbox.ready()
        try:
            env = server_environment(table)
            found = await packages.update(argv_of(table), env, log, [os.path.abspath(workspace)])
        finally:
            sandbox.close()
            log.close()
        if found is None:
            raise ToolError("its packages are not fetched by us")
        return found

    return asyncio.run(update())


def ask(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    names: Collection[str],
    login: Login | None = None,
    tell: Tell | None = None,
) -> Mapping[str, Pinned | ToolError]:
    """Start these servers, side by side: what each says of itself, or why it says nothing. Pins
    nothing. To be called where no event loop runs."""
    if not names:
        return {}
    sandbox = Sandbox(surroundings)
    servers = make_servers(home, settings, sandbox, workspace, login=login, tell=tell)

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
