"""From settings to a runtime: the one place where concrete classes meet."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING

from callgate.config.home import Home
from callgate.config.policies import PolicyBook, reload_event
from callgate.config.schema import Settings
from callgate.core.commands import Launcher
from callgate.core.sessions import Mode, Root, Session
from callgate.core.tools import ToolFactory
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.tools.sources import FixedTools
from callgate.events.bus import Bus
from callgate.runtime import Runtime
from callgate.sessions.conversations import Conversations
from callgate.wiring.components import (
    agent_tools,
    audit_log,
    catalogue,
    custom_tool,
    find_shared_store,
    hooked_tools,
    make_dispatcher,
    make_packs,
    make_sharing,
    make_tracing,
    make_workers,
    session_log,
)
from callgate.wiring.surroundings import BUILT_IN, surroundings

if TYPE_CHECKING:  # heavy, and most homes have none
    from callgate.agent.agent import Agent
    from callgate.agent.skills import Skills
    from callgate.agent.subagents import Subagents
    from callgate.core.models import Model
    from callgate.sources.hosts.host_tools import HostedTools
    from callgate.sources.isolated import Isolates
    from callgate.sources.mcp.server_tools import McpTools
    from callgate.sources.packs.packs import Packs
    from callgate.sources.provider_tools import AllProvidedTools
    from callgate.sources.workers.placing import PooledCalls

_log = logging.getLogger("callgate")


class Wired:
    """A runtime and what it was made from."""

    def __init__(
        self,
        home: Home,
        *,
        audit: bool = True,
        dispatcher: Callable[..., ToolDispatcher] = ToolDispatcher,
    ) -> None:
        self.home = home
        self.policies = PolicyBook(home, changed=self._settings_changed)
        self.settings_state = self.policies.state
        self.bus = Bus()
        settings = self.policies.settings
        self.shared = find_shared_store(home, settings)
        self._audit = audit_log(home, settings, self.shared) if audit else None
        self.log, self.recovery = session_log(home, self._audit, self.shared)
        self.sharing = make_sharing(home, self.shared, self.log, self._audit)
        self.sandbox = Sandbox(surroundings(home, settings))
        self.hosts: HostedTools | None = None
        """Those of the settings, once they were added."""
        self.mcp: McpTools | None = None
        """The MCP servers, once a tool of theirs was looked at."""
        self._isolates: Isolates | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._agents: list[Agent] = []
        self.notices: list[str] = []
        """What the user should know: new hosts, and packages and hosts that provide no tools."""
        self.dispatcher = make_dispatcher(
            home,
            settings,
            policies=self.policies,
            sandbox=self.sandbox,
            bus=self.bus,
            log=self.log,
            audit=self._audit,
            dispatcher=dispatcher,
            saving=None if self.sharing is None else self.sharing.saving,
        )
        self.dispatcher.confinement.placement = lambda: self.workers
        self.dispatcher.registry.pool_refusal = lambda tool, pool: self.workers.refusal(tool, pool)
        self.tracing = make_tracing(home, settings, self._audit, self.dispatcher)
        """None: telemetry is off."""
        self._disable_tools()
        conversations = Conversations(
            self.log, self.bus, self.roots, self.dispatcher.authority.flows.tell
        )
        self.runtime = Runtime(self.dispatcher, self.bus, conversations, self.settings_state)
        if self.sharing is not None:
            self.sharing.begin(self.runtime, self.policies)

    def register(self, factory: ToolFactory) -> None:
        """Register a tool. A sync function runs in a process of its own, where it can be."""
        self.runtime.register(self.isolated(factory))

    def register_built_in(self) -> None:
        """Register the built-in tools, and those that only an agent at work is offered."""
        self.dispatcher.registry.add(FixedTools(BUILT_IN))
        self.dispatcher.registry.add(agent_tools(lambda: self.subagents))
        self.dispatcher.registry.add(hooked_tools())
        self.register_catalogue()

    def register_catalogue(self) -> None:
        """Have the tools of the packages that we ship, without a look at them."""
        for source in (*catalogue(lambda: self.packs), custom_tool(self.runtime)):
            self.dispatcher.registry.add(source)

    @cached_property
    def packs(self) -> Packs:
        """The packages of tools, once one is looked at."""
        packs = make_packs(
            self.home, self.settings, self.bare_launcher, self.isolated, self.notices.append
        )
        self._closers.append(packs.close)
        return packs

    @cached_property
    def subagents(self) -> Subagents:
        """Which agent is at work in which session, and those that work for it."""
        from callgate.agent.subagents import Subagents  # lazy: only for a model at work  # noqa: PLC0415

        return Subagents(self.dispatcher, self.runtime.turns)

    @cached_property
    def workers(self) -> PooledCalls:
        """The remote workers that are connected, and the calls that run there."""
        workers = make_workers(self.log, self.policies)
        self._closers.append(workers.pools.close)
        return workers

    def isolated(self, factory: ToolFactory) -> ToolFactory:
        """The tool of a sync function in a process of its own; any other as it is."""
        if getattr(factory, "isolate", False) is False or getattr(factory, "is_async", True):
            return factory
        if self._isolates is None:
            from callgate.sources.isolated import Isolates  # lazy: only for sync functions  # noqa: PLC0415

            self._isolates = Isolates(self.bare_launcher)
            self._closers.append(self._isolates.close)
        return self._isolates.of(factory)

    def warm(self) -> None:
        """Have hosts in Python forked from a warm process, where there may be any. For a runtime
        that lives on: it takes as long to warm up as one host to start."""
        if self._isolates is not None:
            self.sandbox.warm(os.environ)
        for environ in () if self.hosts is None else self.hosts.warm_environments():
            self.sandbox.warm(environ)

    def bare_launcher(self) -> Launcher:
        """For functions of the program itself: nothing is around them but their own process."""
        return self.sandbox.launcher(Enclosure(None), Session(workspace="/"))

    def open_agent(self, model: str | Model | None = None) -> Agent:
        """An agent with the model of that name, or the usual one of the settings.

        Raises `ModelError`, which says what to do."""
        from callgate.wiring.agents import make_agent, open_model  # lazy: only for a model at work  # noqa: PLC0415

        if model is None or isinstance(model, str):
            opened = open_model(self.home, self.settings, model)
        else:
            opened = model
        agent = make_agent(
            self.runtime,
            self.home,
            self.settings,
            opened,
            self.skills,
            self.subagents,
            self.packs,
        )
        self._agents.append(agent)
        return agent

    @cached_property
    def skills(self) -> Skills:
        """Instructions that are asked for by name: the user's, and those of trusted workspaces."""
        from callgate.wiring.agents import make_skills  # lazy: only for a model at work  # noqa: PLC0415

        return make_skills(self.home, self.settings)

    @property
    def hosting(self) -> HostedTools | AllProvidedTools | None:
        """The hosts and the MCP servers, for whoever wants to know how they are."""
        if self.mcp is None:
            return self.hosts
        from callgate.sources.provider_tools import AllProvidedTools  # lazy: most homes have none  # noqa: PLC0415

        return AllProvidedTools(self.hosts, self.mcp)

    @property
    def chain(self) -> str | None:
        """The name of our chain in the audit log; None: nothing is recorded."""
        return None if self._audit is None else self._audit.end[0]

    @property
    def settings(self) -> Settings:
        return self.policies.settings

    def _settings_changed(self) -> None:
        problem = self.policies.problem
        unread = self.policies.restart_for
        if problem is None:
            self._disable_tools()
            if "sandbox" not in unread:
                self.sandbox.renew(surroundings(self.home, self.settings))
        self.bus.emit(reload_event(problem, unread))
        if problem is None:
            _log.info("the settings were reloaded")
        else:
            _log.error("the settings cannot be used, calls with effects are refused: %s", problem)

    def _disable_tools(self) -> None:
        disabled = self.settings.tools.disable
        self.dispatcher.registry.disable_only(disabled, "disabled in settings")

    def session(
        self, workspace: str, mode: Mode | None = None, tags: frozenset[str] = frozenset()
    ) -> Session:
        """A session in a workspace, with the extra roots of the settings."""
        session = Session(
            workspace=workspace,
            mode=mode if mode is not None else self.settings.mode,
            tags=tags,
            extra_roots=self.roots(),
        )
        self.check_workspace(session.workspace)
        return session

    def check_workspace(self, workspace: str) -> None:
        """Raises where there is none, and a `SettingsError` where its settings are wrong."""
        if not os.path.isdir(workspace):
            raise NotADirectoryError(f"the workspace {workspace} is not there")
        self.policies.check_workspace(workspace)

    def roots(self) -> tuple[Root, ...]:
        return tuple(
            Root(os.path.expanduser(root.path), writable=root.access == "write")
            for root in self.settings.workspace.extra_roots
        )

    async def close(self) -> None:
        """Stop what runs and let go of the store and the audit log."""
        await self.runtime.close()
        await self.runtime.turns.close()
        for agent in self._agents:
            await agent.close()
        await self.dispatcher.registry.close()
        for close in self._closers:
            await close()
        self.sandbox.close()
        if self.sharing is not None:
            await self.sharing.close()
        await self.log.close()
        if self._audit is not None:
            self._audit.close(is_stored=self.log.is_settled)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
