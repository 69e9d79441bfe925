"""`Wired`: all components of a runtime, and protocols for components that features provide."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.policies import PathRules, PolicyBook, reload_event
from callgate.config.schema import SandboxLimitsTable, Settings
from callgate.core.calls import ToolCall
from callgate.core.commands import Launcher
from callgate.core.errors import ToolHostUnavailable
from callgate.core.sessions import Mode, PoolWorkspace, Root, Session
from callgate.core.tools import ToolFactory
from callgate.dispatch.commands.sandboxes import OFF, Enclosure, Sandbox, Surroundings
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.permission.confirmations import Answer
from callgate.dispatch.running import RunningCall
from callgate.dispatch.sites.examine import Site
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tools.checks import Registered
from callgate.dispatch.tools.sources import FixedTools
from callgate.events.bus import Bus
from callgate.feature import FEATURES, load, port
from callgate.instance.wiring.components import (
    audit_log,
    catalogue,
    custom_tool,
    feature_tools,
    find_shared_store,
    make_dispatcher,
    make_packs,
    make_skills,
    save_answer,
    session_log,
)
from callgate.runtime import Runtime
from callgate.sandbox import allowed_hosts
from callgate.sandbox.jails import Guarantee, Limits, Network, Profile, default_limits
from callgate.sessions.conversations import Conversations
from callgate.tools.files import DeleteFile, ListDir, PatchFile, ReadFile, WriteFile
from callgate.tools.search import FindFiles, SearchText
from callgate.tools.shell import Shell

if TYPE_CHECKING:
    from callgate.audit.log import AuditLog
    from callgate.core.content import Message
    from callgate.core.ids import TraceContext
    from callgate.core.models import Model
    from callgate.core.tasks import TaskSet
    from callgate.dispatch.call_files import CallFiles
    from callgate.sessions.shows import Screen, TurnEnd
    from callgate.sources.host_provider import HostedTools
    from callgate.sources.isolated import Isolates
    from callgate.sources.packs import Packs
    from callgate.sources.providers import AllProvidedTools, ProvidedTools
    from callgate.sources.skills import Skills

BUILT_IN: tuple[ToolFactory, ...] = (
    ReadFile,
    WriteFile,
    PatchFile,
    ListDir,
    DeleteFile,
    FindFiles,
    SearchText,
    Shell,
)


def surroundings(home: Home, settings: Settings) -> Surroundings:
    """Return the configured sandbox for commands."""
    sandbox = settings.sandbox
    if sandbox == "off":
        return OFF
    named = sandbox.network if isinstance(sandbox.network, list) else []
    word = sandbox.network if isinstance(sandbox.network, str) else "hosts" if named else "none"
    is_open = sandbox.network is None and sandbox.profile == "workspace"
    return Surroundings(
        profile=Profile(sandbox.profile),
        network=Network(word),
        asks_in_guarded=is_open,
        hosts=tuple(map(allowed_hosts.parse, named)),
        local_services=tuple(map(allowed_hosts.parse, sandbox.local_services)),
        home=os.path.expanduser("~"),
        callgate_home=home.path,
        readable=tuple(map(os.path.expanduser, sandbox.readable)),
        writable=tuple(map(os.path.expanduser, sandbox.writable)),
        hidden=tuple(map(os.path.expanduser, sandbox.hidden)),
        protected=tuple(map(os.path.normpath, sandbox.protected)),
        limits=_limits(sandbox.limits),
        require=tuple(map(Guarantee, sandbox.require)),
        path_rules=PathRules(home, BUILT_IN),
    )


def _limits(table: SandboxLimitsTable) -> Limits:
    """Return the configured limits, with defaults for this machine."""
    values = msgspec.structs.asdict(table).items()
    chosen = {k: None if v in (0, "none") else v for k, v in values if v is not None}
    return msgspec.structs.replace(default_limits(), **chosen)


class AnyAgent(Protocol):
    """A callgate agent: a model that works with the tools of a runtime."""

    async def turn(
        self, session: Session, prompt: str | Message, screen: Screen = ..., /
    ) -> TurnEnd: ...

    async def close(self) -> None: ...


class Tracing(Protocol):
    """Active telemetry."""

    ratio: float

    def current(self) -> TraceContext | None:
        """Return the span in which the program makes a call."""
        ...

    def close(self) -> None:
        """Send the remaining spans. Blocks."""
        ...


class Sharing(Protocol):
    """A store that other homes use too."""

    saving: TaskSet
    is_withheld: bool
    """Whether the shared rules are not known yet: then calls with effects are refused."""

    def share_artifacts(self, files: CallFiles) -> Callable[[str], Awaitable[None]]: ...

    def begin(self, policies: PolicyBook) -> None: ...

    async def follow(self) -> None:
        """Update the files of the home from the store. Never returns."""
        ...

    async def close(self) -> None: ...


_log = logging.getLogger("callgate")
_NO_WORKERS = "this callgate has no workers"

P = TypeVar("P")


class Wired:
    """A runtime with all its components."""

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
        self.sharing: Sharing | None = None
        """None: no other home uses the store."""
        self.sandbox = Sandbox(surroundings(home, settings))
        self.hosts: HostedTools | None = None
        """The configured hosts, once they were added."""
        self.mcp: ProvidedTools[Any] | None = None
        """The MCP servers, once one of their tools was looked up."""
        self.follow_mcp: Callable[[], None] = lambda: None
        """Applies changed settings of MCP servers. Raises `SettingsError`."""
        self._isolates: Isolates | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._agents: list[AnyAgent] = []
        self._components: dict[Callable[[Wired], Any], Any] = {}
        self.notices: list[str] = []
        """Notices for the user: new hosts, and packages and hosts without tools."""
        self.dispatcher = make_dispatcher(
            home,
            settings,
            policies=self.policies,
            sandbox=self.sandbox,
            bus=self.bus,
            log=self.log,
            audit=self._audit,
            dispatcher=dispatcher,
            save=self._save,
        )
        self.registry = self.dispatcher.registry
        self.registry.pool_refusal = self._pool_refusal
        self.dispatcher.sites.pool = self._pool_site
        self.tracing: Tracing | None = None
        """None: telemetry is off."""
        self._disable_tools()
        conversations = Conversations(
            self.log, self.bus, self.roots, self.dispatcher.authority.flows.tell
        )
        self.runtime = Runtime(self.dispatcher, self.bus, conversations, self.settings_state)
        for each in FEATURES:
            if each.is_needed(settings) and (feature := load(each.name)) is not None:
                feature.assemble(self)

    def part(self, make: Callable[[Wired], P]) -> P:
        """Return a feature's object for this runtime; `make` creates it once."""
        if make not in self._components:
            self._components[make] = make(self)
        part: P = self._components[make]
        return part

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close a component of a feature with the runtime."""
        self._closers.append(close)

    @property
    def audit(self) -> AuditLog | None:
        """None: there is no audit log."""
        return self._audit

    def trace(self, tracing: Tracing) -> None:
        """Give each call the span of its run."""
        from callgate.dispatch.commands.launchers import trace_call  # lazy: few have telemetry  # noqa: PLC0415

        self.tracing = tracing
        self.dispatcher.trace = partial(trace_call, tracing.ratio)

    def share(self, sharing: Sharing) -> None:
        """Use rules, trust, pins and artifacts of the homes that share the store.

        Blocks until the store was read, or does not answer.
        """
        self.sharing = sharing
        self.runtime.sessions.fetch_artifacts = sharing.share_artifacts(self.dispatcher.files)
        sharing.begin(self.policies)

    def _save(self, call: ToolCall, subject: Subject, answer: Answer) -> None:
        saving = None if self.sharing is None else self.sharing.saving
        save_answer(self.home, self.policies, saving, call, subject, answer)

    def _pool_refusal(self, tool: Registered, pool: PoolWorkspace) -> str | None:
        if port("workers") is None:
            return _NO_WORKERS
        refusal: str | None = self.workers.refusal(tool, pool)
        return refusal

    def _pool_site(self, running: RunningCall | None) -> Site:
        make = port("pool_site")
        if make is None:
            raise ToolHostUnavailable(
                f"The workspace is in a pool, and {_NO_WORKERS}.", reason="no_worker"
            )
        site: Site = make(self, running)
        return site

    def register(self, factory: ToolFactory) -> None:
        """Register a tool. A sync function runs in a separate process if possible."""
        self.runtime.tools.register(self.isolated(factory))

    def register_built_in(self) -> None:
        """Register the built-in tools, and the tools that only agents are offered."""
        self.registry.add(FixedTools(BUILT_IN))
        for source in feature_tools(self):
            self.registry.add(source)
        self.register_catalogue()

    def register_catalogue(self) -> None:
        """Register the tools of built-in packages, without loading them."""
        for source in (*catalogue(lambda: self.packs), custom_tool(self.runtime)):
            self.registry.add(source)

    @cached_property
    def packs(self) -> Packs:
        """The packages of tools, loaded on first use."""
        packs = make_packs(
            self.home, self.settings, self.bare_launcher, self.isolated, self.notices.append
        )
        self._closers.append(packs.close)
        return packs

    @cached_property
    def workers(self) -> Any:
        """The connected remote workers, and the calls that run there."""
        make = port("workers")
        if make is None:
            raise ToolHostUnavailable(f"{_NO_WORKERS}.".capitalize(), reason="no_worker")
        return make(self)

    def isolated(self, factory: ToolFactory) -> ToolFactory:
        """Return a tool that runs a sync function in a separate process; others are unchanged."""
        if getattr(factory, "isolate", False) is False or getattr(factory, "is_async", True):
            return factory
        if self._isolates is None:
            from callgate.sources.isolated import Isolates  # lazy: only for sync functions  # noqa: PLC0415

            self._isolates = Isolates(self.bare_launcher)
            self._closers.append(self._isolates.close)
        return self._isolates.of(factory)

    def warm(self) -> None:
        """Fork Python hosts from a warm process, if there are any.

        Only for a long-lived runtime: warming up takes as long as the start of one host.
        """
        if self._isolates is not None:
            self.sandbox.warm(os.environ)
        for environ in () if self.hosts is None else self.hosts.warm_environments():
            self.sandbox.warm(environ)

    def bare_launcher(self) -> Launcher:
        """Return the launcher for functions of the program itself: a process without a sandbox."""
        return self.sandbox.launcher(Enclosure(None), Session(workspace="/"))

    def open_agent(self, model: str | Model | None = None) -> Any:
        """Return an agent (`AnyAgent`) with a model by name, or the default one of the settings.

        Raises `ModelError` with a solution.
        """
        make = port("open_agent")
        if make is None:
            from callgate.core.models import ModelError, ModelErrorKind  # lazy: rare  # noqa: PLC0415

            raise ModelError(ModelErrorKind.REQUEST, "This callgate has no agent feature.")
        agent: AnyAgent = make(self, model)
        self._agents.append(agent)
        return agent

    def open_model(self) -> Model:
        """Return the default model of the settings. Raises `ModelError` with a solution."""
        make = port("open_model")
        if make is None:
            from callgate.core.models import ModelError, ModelErrorKind  # lazy: rare  # noqa: PLC0415

            raise ModelError(ModelErrorKind.REQUEST, "This callgate has no models.")
        model: Model = make(self)
        return model

    @cached_property
    def skills(self) -> Skills:
        """Instructions by name: the user's, and the ones of trusted workspaces."""
        return make_skills(self.home, self.settings)

    @property
    def hosting(self) -> AllProvidedTools:
        """The hosts and MCP servers, for status queries."""
        from callgate.sources.providers import AllProvidedTools  # lazy: only for an instance  # noqa: PLC0415

        return AllProvidedTools(self.hosts, lambda: self.mcp, self.policies.refresh)

    @property
    def chain(self) -> str | None:
        """The name of this process's chain in the audit log; None: there is no audit log."""
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
            self._follow_mcp()
        self.bus.emit(reload_event(problem, unread))
        if problem is None:
            _log.info("the settings were reloaded")
        else:
            _log.error("the settings cannot be used, calls with effects are refused: %s", problem)

    def _follow_mcp(self) -> None:
        try:
            self.follow_mcp()
        except SettingsError as error:
            _log.error("the MCP servers of the workspace cannot be used: %s", error)

    def _disable_tools(self) -> None:
        disabled = self.settings.tools.disable
        self.registry.disable_only(disabled, "disabled in settings")

    def session(
        self, workspace: str, mode: Mode | None = None, tags: frozenset[str] = frozenset()
    ) -> Session:
        """Return a session in a workspace, with the extra roots of the settings."""
        session = Session(
            workspace=workspace,
            mode=mode if mode is not None else self.settings.mode,
            tags=tags,
            extra_roots=self.roots(),
        )
        self.check_workspace(session.workspace)
        return session

    def check_workspace(self, workspace: str) -> None:
        """Raise `NotADirectoryError` for a missing directory, `SettingsError` for bad settings."""
        if not os.path.isdir(workspace):
            raise NotADirectoryError(f"the workspace {workspace} does not exist")
        self.policies.check_workspace(workspace)

    def roots(self) -> tuple[Root, ...]:
        return tuple(
            Root(os.path.expanduser(root.path), writable=root.access == "write")
            for root in self.settings.workspace.extra_roots
        )

    async def close(self) -> None:
        """Stop running work, and close the store and the audit log."""
        await self.runtime.close()
        await self.runtime.sessions.turns.close()
        for agent in self._agents:
            await agent.close()
        await self.registry.close()
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
