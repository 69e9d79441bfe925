"""Builds a runtime with its tool sources, in order; and a separate dispatcher with defaults.

built-in, third-party agents, built-in packages, `custom`   `Wired.register_built_in`
`[tools] load`                                              `register_own`
hosts, MCP servers, packages that a user enabled            `_add_configured`
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError
from callgate.config.trust import is_trusted
from callgate.core.errors import ToolRegistrationError
from callgate.core.tools import ToolFactory
from callgate.dispatch import dispatcher
from callgate.dispatch.permission.confirmations import Confirmer
from callgate.dispatch.tools.sources import FixedTools, Lazy, ToolSource
from callgate.events.bus import Listener, Subscription
from callgate.feature import port
from callgate.instance.wiring.components import enabled_packs
from callgate.instance.wiring.runtime import Wired

if TYPE_CHECKING:
    from callgate.sources.host_provider import Answers


_MCP = ("mcp__*", "mcp.*")


Register = Callable[[Wired, str], None]
"""Registers the tools of a runtime for a workspace: one of the functions below."""


def build(home: Home, workspace: str, register: Register, *, audit: bool = True) -> Wired:
    """Build the runtime of a home. Raises `SettingsError` or `OSError`.

    `audit=False` is for a command that makes no calls.
    """
    wired = Wired(home, audit=audit)
    register(wired, workspace)
    return wired


def register_configured(wired: Wired, workspace: str) -> None:
    """Register the built-in tools, and all tools from the settings.

    Raises `SettingsError` with file and line. Then the runtime must not be used.
    """
    register_lazily(wired, workspace)
    wired.registry.load_all()


def register_lazily(wired: Wired, workspace: str) -> None:
    """Like `register_configured`, without loading the catalogue and the MCP servers.

    For a program that needs one tool: a source is loaded when one of its tools is looked up.
    """
    register_own(wired)
    _add_configured(wired, workspace, _learn(wired, workspace))


async def register_sources(wired: Wired, workspace: str) -> None:
    """Register the tools of configured hosts and MCP servers, while an event loop runs."""
    _add_configured(wired, workspace, await asyncio.to_thread(_learn, wired, workspace))
    wired.registry.load_all()


def register_known(wired: Wired, workspace: str) -> None:
    """Like `register_configured`, but do not start new hosts or report notices about hosts."""
    register_own(wired)
    _add_configured(wired, workspace, None)
    wired.registry.load_all()


def register_own(wired: Wired, _workspace: str = "") -> None:
    """Register the built-in tools, and the functions that the settings load."""
    loaded = _load_configured(wired)
    wired.register_built_in()
    for file, factory in loaded:
        try:
            wired.register(factory)
        except ToolRegistrationError as error:
            raise SettingsError(file, None, str(error)) from None


def _add_configured(wired: Wired, workspace: str, answers: Answers | None) -> None:
    """Add hosts, MCP servers and packages. `answers`: results of new hosts; None: not started."""
    _add_hosts(wired, workspace, answers)
    _add_mcp(wired, workspace)
    if wired.settings.packs.enable:
        wired.registry.add(enabled_packs(lambda: wired.packs))


def _learn(wired: Wired, workspace: str) -> Answers:
    if not wired.settings.hosts:
        return {}
    from callgate.instance.wiring.hosts import learn  # lazy: most homes have none  # noqa: PLC0415

    return learn(wired.home, wired.settings, wired.sandbox.surroundings, workspace)


def _add_hosts(wired: Wired, workspace: str, answers: Answers | None) -> None:
    """Add the pinned tools of hosts."""
    if not wired.settings.hosts:
        return
    from callgate.instance.wiring.hosts import make_hosts  # lazy: as above  # noqa: PLC0415
    from callgate.sources.host_provider import HostedTools  # lazy: most homes have none  # noqa: PLC0415

    registry = wired.registry
    hosts = make_hosts(wired.home, wired.settings, wired.sandbox, workspace)
    wired.hosts = HostedTools(hosts, registry)
    registry.add(wired.hosts)
    if answers is not None:
        wired.notices += wired.hosts.notices(answers)


def _add_mcp(wired: Wired, workspace: str) -> None:
    """Add the pinned tools of MCP servers. Starts no server."""
    has_servers = bool(wired.settings.table("mcp"))
    if os.path.lexists(workspace_settings(workspace)) and is_trusted(wired.home, workspace):
        # Read now, to report errors in the workspace's settings immediately.
        servers = port("workspace_servers")
        has_servers |= servers is not None and bool(servers(os.path.realpath(workspace)))
    if not has_servers:

        def add_first() -> None:
            """Add the servers when the changed settings name the first one."""
            add = port("add_servers")
            if wired.settings.table("mcp") and add is not None:
                wired.registry.add(add(wired, workspace))

        wired.follow_mcp = add_first
        return

    def load() -> ToolSource:
        add = port("add_servers")
        if add is None:
            return FixedTools(())
        tools = add(wired, workspace)
        wired.notices += tools.notices()
        source: ToolSource = tools
        return source

    wired.registry.add(Lazy(_MCP, load))


def _load_configured(wired: Wired) -> list[tuple[str, ToolFactory]]:
    specs = wired.settings.tools.load
    if not specs:
        return []
    from callgate.sources.functions import ToolLoadError, load_tools  # lazy: most homes load none  # noqa: PLC0415

    loaded: list[tuple[str, ToolFactory]] = []
    for spec in specs:
        try:
            factories = load_tools(spec, beside=wired.home.path)
        except ToolLoadError as error:
            raise SettingsError(error.file, error.line, error.problem) from error
        loaded += [(spec, factory) for factory in factories]
    return loaded


class ToolDispatcher(dispatcher.ToolDispatcher):
    """A dispatcher with defaults. Close it after use, or use it in an `async with`."""

    def __init__(
        self, *, home: str | os.PathLike[str] | None = None, confirm: Confirmer | None = None
    ) -> None:
        """Default home: `CALLGATE_HOME`. Without `confirm` calls that need approval are refused."""
        resolved_home = Home.from_environment() if home is None else Home(os.path.abspath(home))
        self._closed = False
        self._attached = ExitStack()
        self._wired = Wired(resolved_home, dispatcher=self._initialise)
        if confirm is not None:
            self._attached.enter_context(self.authority.confirmations.attach(confirm))

    def _initialise(self, **dependencies: Any) -> ToolDispatcher:
        super().__init__(**dependencies)
        return self

    def register(self, tool_factory: ToolFactory) -> None:
        """Register a tool. Raises `ToolRegistrationError` if its definition is wrong."""
        super().register(self._wired.isolated(tool_factory))

    def subscribe(self, listener: Listener, session_id: str | None = None) -> Callable[[], None]:
        """Call a function at each event, of one session or all. Return a function to unsubscribe.

        An exception of the listener is logged and affects no call.
        """
        return self._wired.bus.listen(listener, session_id)

    def events(
        self, *, session_id: str | None = None, types: Collection[str] | None = None
    ) -> Subscription:
        """Read events: `async for event in dispatcher.events()`.

        A slow reader gets a `Gap` instead of the events that it missed.
        """
        return self._wired.bus.subscribe(session_id=session_id, types=types)

    async def close(self) -> None:
        """Stop running calls, and close the store and the audit log. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._attached.close()
        await super().close()
        await self._wired.close()

    async def __aenter__(self) -> ToolDispatcher:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
