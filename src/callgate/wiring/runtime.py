"""From settings to a runtime: the one place where concrete classes meet."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.agent.plans import UpdatePlan
from callgate.agent.subagents import SpawnAgent, Subagents
from callgate.audit.log import AuditLog
from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError, load_workspace_mcp
from callgate.config.mcp import McpTable
from callgate.config.policies import PolicyBook
from callgate.config.saved import save_rule, saved_rule
from callgate.config.schema import SandboxLimitsTable, Settings
from callgate.config.trust import is_trusted
from callgate.core.calls import ToolCall
from callgate.core.commands import Launcher
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied, ToolRegistrationError
from callgate.core.events import SETTINGS_REJECTED, SETTINGS_RELOADED, Event
from callgate.core.ids import ulid
from callgate.core.sessions import Mode, Root, Session
from callgate.core.settings_state import SettingsState
from callgate.core.stores import Store
from callgate.core.tools import Preview, ToolFactory
from callgate.dispatch.authorize import Authority
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.call_records import MISMATCH
from callgate.dispatch.commands.sandboxes import OFF, Enclosure, Sandbox, Surroundings
from callgate.dispatch.dispatcher import Limits, ToolDispatcher
from callgate.dispatch.environments import Environments
from callgate.dispatch.failures import log_failure
from callgate.dispatch.permission.asking import Confirmations
from callgate.dispatch.permission.confirmations import Answer
from callgate.dispatch.permission.grants import Grants
from callgate.dispatch.registry import Registry
from callgate.dispatch.running import StopLimits
from callgate.dispatch.subjects import Subject
from callgate.events.bus import Bus
from callgate.events.log import SessionLog
from callgate.policy.path_rules import PathRule, binding_processes
from callgate.runtime import Runtime
from callgate.sandbox import allowed_hosts
from callgate.sandbox.default_limits import default_limits
from callgate.sandbox.jails import Limits as JailLimits
from callgate.sandbox.jails import Network
from callgate.sandbox.profiles import Profile
from callgate.sessions.conversations import Conversations
from callgate.sessions.recovery import record, recover
from callgate.shipped import PACKS, ShippedPack
from callgate.tools.files import DeleteFile, ListDir, PatchFile, ReadFile, WriteFile
from callgate.tools.search import FindFiles, SearchText
from callgate.tools.shell import Shell
from callgate.workspace.undo.history import History

if TYPE_CHECKING:  # heavy, and most homes have none
    from callgate.agent.agent import Agent
    from callgate.agent.skills import Skills
    from callgate.core.models import Model
    from callgate.sources.isolated import Isolates
    from callgate.sources.provider import ProvidedTools
    from callgate.wiring.hosts import HostedTools
    from callgate.wiring.mcp import AllProvidedTools, McpTools
    from callgate.wiring.packs import Packs

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

_MCP = ("mcp__*", "mcp.*")
"""The names of tools that are loaded once one of them is looked at."""

_LIVE = ("policy", "tools", "sandbox", "workspace", "agent", "model", "models")
"""Parts of the settings that are read when they are used; of `tools` what is disabled, of
`sandbox` all but whether there is one."""

_PREVIEW_S = 60.0
"""After this a question is asked without a preview; a host may have to be started for one."""

_log = logging.getLogger("callgate")


class Wired:
    """A runtime and what it was made from."""

    def __init__(
        self,
        home: Home,
        *,
        audit: bool = True,
        make_dispatcher: Callable[..., ToolDispatcher] = ToolDispatcher,
    ) -> None:
        self.home = home
        self.policies = PolicyBook(home, changed=self._settings_changed)
        self.bus = Bus()
        settings = self._first_settings = self.policies.settings
        limits = settings.limits
        self._audit = audit_log(home, settings) if audit else None
        self.log = SessionLog(self._open_store)
        self.sandbox = Sandbox(surroundings(home, settings))
        self.hosts: HostedTools | None = None
        """Those of the settings, once their tools were registered."""
        self.mcp: McpTools | None = None
        """The MCP servers, once their tools were registered."""
        self._isolates: Isolates | None = None
        self._packs: Packs | None = None
        self._agents: list[Agent] = []
        self.notices: list[str] = []
        """What the user should know: new hosts, and packages and hosts that provide no tools."""
        history = History(os.path.join(home.path, "undo"))
        files = CallFiles(self.policies, home.path, history=history)
        environments = Environments(
            delegate_terminal=settings.acp.delegate_terminal, leases=self.sandbox.leases
        )
        authority = Authority(
            policies=self.policies,
            grants=Grants(self.log),
            confirmations=Confirmations(self.log, limits.confirmation_timeout_s),
            preview=lambda call, subject: _preview(files, environments, call, subject),
            save=self._save,
        )
        self.dispatcher = make_dispatcher(
            authority=authority,
            files=files,
            sink=self.bus,
            log=self.log,
            audit=self._audit,
            registry=Registry(max_argument_bytes=limits.max_argument_bytes),
            limits=Limits(
                concurrency=limits.concurrency,
                max_timeout_s=limits.max_timeout_s,
                stop=StopLimits(grace_s=limits.cancel_grace_s, abandon_s=limits.abandon_s),
            ),
            sandbox=self.sandbox,
            environments=environments,
        )
        models = {name: table.tags for name, table in settings.models.items()}
        self.dispatcher.registry.tags.set_models(models, settings.model)
        self.dispatcher.registry.tags.give("settings", settings.tags)
        self._disable_tools()
        conversations = Conversations(self.log, self.bus, self.roots)
        self.runtime = Runtime(self.dispatcher, self.bus, conversations, self.settings_state)
        self.subagents = Subagents(self.dispatcher, self.runtime.turns)

    def register(self, factory: ToolFactory) -> None:
        """Register a tool. A sync function runs in a process of its own, where it can be."""
        self.runtime.register(self.isolated(factory))

    def register_built_in(self) -> None:
        """Register the built-in tools, and those that only an agent at work is offered."""
        for factory in BUILT_IN:
            self.runtime.register(factory)
        for factory in (partial(SpawnAgent, self.subagents), UpdatePlan):
            self.runtime.register(factory)
            name = factory().definition.name
            self.dispatcher.registry.offer_where(name, self.subagents.why_not)
        self.expect_catalogue()

    def expect_catalogue(self) -> None:
        """Have the tools of the packages that we ship, without a look at them."""
        registry = self.dispatcher.registry
        for pack in PACKS:
            if pack.tools:
                registry.expect(pack.tools, partial(self._use_shipped, pack))
        registry.expect(("custom",), self._register_custom)

    def expect_enabled(self) -> None:
        """Have the tools of the packages that the settings enable, once a tool is missed or all
        are listed: their names are not known before."""
        if self.settings.packs.enable:
            self.dispatcher.registry.expect_unnamed(self._use_enabled)

    @property
    def packs(self) -> Packs:
        """The packages of tools, once one is looked at."""
        if self._packs is None:
            from callgate.wiring.packs import Packs  # lazy: most calls need none  # noqa: PLC0415

            self._packs = Packs(
                self.runtime, self.home, self.settings, self._bare_launcher, self.isolated
            )
        return self._packs

    def _use_shipped(self, pack: ShippedPack) -> None:
        self.packs.use_shipped(pack)

    def _use_enabled(self) -> None:
        self.packs.use_enabled()
        self.notices += self.packs.notices

    def _register_custom(self) -> None:
        from callgate.tools.catalogue import CUSTOM  # lazy: few models call it  # noqa: PLC0415
        from callgate.tools.loading import factories  # lazy: as above  # noqa: PLC0415

        for factory in factories(CUSTOM, self.runtime.call):
            self.runtime.register(factory)
        for row in CUSTOM:
            self.dispatcher.registry.unlist(row.definition.name)

    def isolated(self, factory: ToolFactory) -> ToolFactory:
        """The tool of a sync function in a process of its own; any other as it is."""
        if getattr(factory, "isolate", False) is False or getattr(factory, "is_async", True):
            return factory
        if self._isolates is None:
            from callgate.sources.isolated import Isolates  # lazy: only for sync functions  # noqa: PLC0415

            self._isolates = Isolates(self._bare_launcher)
        return self._isolates.of(factory)

    def warm(self) -> None:
        """Have hosts in Python forked from a warm process, where there may be any. For a runtime
        that lives on: it takes as long to warm up as one host to start."""
        if self._isolates is not None:
            self.sandbox.warm(os.environ)
        for environ in () if self.hosts is None else self.hosts.warm_environments():
            self.sandbox.warm(environ)

    def _bare_launcher(self) -> Launcher:
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
    def hosting(self) -> ProvidedTools | AllProvidedTools | None:
        """The hosts and the MCP servers, for whoever wants to know how they are."""
        if self.mcp is None:
            return self.hosts
        from callgate.wiring.mcp import AllProvidedTools  # lazy: most homes have no MCP servers  # noqa: PLC0415

        return AllProvidedTools(self.hosts, self.mcp)

    @property
    def settings(self) -> Settings:
        return self.policies.settings

    def settings_state(self, workspace: str) -> SettingsState:
        """By what calls in a workspace are decided now."""
        problem = self.policies.look(workspace)
        return SettingsState(
            version=self.policies.version(workspace),
            problem=None if problem is None else str(problem),
            restart_for=restart_for(self._first_settings, self.settings),
        )

    def _settings_changed(self) -> None:
        problem = self.policies.problem
        if problem is None:
            self._disable_tools()
            unread = restart_for(self._first_settings, self.settings)
            if "sandbox" not in unread:
                self.sandbox.renew(surroundings(self.home, self.settings))
            payload = {"restart_for": list(unread)}
            self.bus.emit(_of_no_session(SETTINGS_RELOADED, payload))
            _log.info("the settings were reloaded")
        else:
            self.bus.emit(_of_no_session(SETTINGS_REJECTED, {"problem": str(problem)}))
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

    async def _open_store(self) -> Store:
        from callgate.storage.sqlite.store import SqliteStore  # lazy: once something is stored  # noqa: PLC0415

        store: Store = await SqliteStore.open(self.home.path)
        try:
            interrupted = await recover(store)
        except BaseException:
            await store.close()
            raise
        if self._audit is not None and interrupted:
            record(self._audit, interrupted)
        return store

    async def close(self) -> None:
        """Stop what runs and let go of the store and the audit log."""
        await self.runtime.close()
        await self.runtime.turns.close()
        for agent in self._agents:
            await agent.close()
        if self.hosts is not None:
            await self.hosts.close()
        if self.mcp is not None:
            await self.mcp.close()
        if self._isolates is not None:
            await self._isolates.close()
        if self._packs is not None:
            await self._packs.close()
        self.sandbox.close()
        await self.log.close()
        if self._audit is not None:
            self._audit.close()

    def _save(self, call: ToolCall, subject: Subject, answer: Answer) -> None:
        try:
            self._save_rule(call, subject, answer)
        except (OSError, ValueError) as error:  # the answer counts, but only this once
            _log.error("the answer could not be saved: %s", error)

    def _save_rule(self, call: ToolCall, subject: Subject, answer: Answer) -> None:
        rule = saved_rule(
            tool=subject.tool.name,
            decision=answer.decision,
            workspace=call.session.workspace,
            arguments=subject.checked.arguments,
            arguments_sha256=subject.checked.sha256,
            resolved_paths=subject.resolved_paths,
            pattern=answer.pattern,
            network=subject.widened,
        )
        save_rule(self.home, rule)
        self.policies.refresh()


def register_configured(wired: Wired, workspace: str) -> None:
    """Register the built-in tools, those that the settings load, and those of their hosts.

    `SettingsError` names the file, and the line of it, that cannot be used. The runtime is
    not to be used then.
    """
    register_lazily(wired, workspace)
    wired.dispatcher.registry.meet_all()


def register_lazily(wired: Wired, workspace: str) -> None:
    """The same for whoever means one tool: of the catalogue and of MCP servers nothing is looked
    at before a tool is meant that may be theirs."""
    register_own(wired)
    if wired.settings.hosts:
        from callgate.wiring.hosts import learn  # lazy: most homes have none  # noqa: PLC0415

        surrounding = wired.sandbox.surroundings
        answers = learn(wired.home, wired.settings, surrounding, workspace)
        wired.notices += _register_hosts(wired, workspace).notices(answers)
    _expect_mcp(wired, workspace)
    wired.expect_enabled()


async def register_sources(wired: Wired, workspace: str) -> None:
    """Register the tools of the hosts and MCP servers in the settings, where an event loop runs."""
    if wired.settings.hosts:
        from callgate.wiring.hosts import learn  # lazy: most homes have none  # noqa: PLC0415

        surrounding = wired.sandbox.surroundings
        answers = await asyncio.to_thread(learn, wired.home, wired.settings, surrounding, workspace)
        wired.notices += _register_hosts(wired, workspace).notices(answers)
    _expect_mcp(wired, workspace)
    wired.expect_enabled()
    wired.dispatcher.registry.meet_all()


def register_known(wired: Wired, workspace: str) -> None:
    """The same, without a look at hosts that are new: nothing is started."""
    register_own(wired)
    if wired.settings.hosts:
        _register_hosts(wired, workspace)
    _expect_mcp(wired, workspace)
    wired.expect_enabled()
    wired.dispatcher.registry.meet_all()


def register_own(wired: Wired) -> None:
    """Register the built-in tools, and those that the settings load."""
    loaded = _load_configured(wired)
    wired.register_built_in()
    for file, factory in loaded:
        try:
            wired.register(factory)
        except ToolRegistrationError as error:
            raise SettingsError(file, None, str(error)) from None


def _register_hosts(wired: Wired, workspace: str) -> HostedTools:
    """The tools of hosts, as they are pinned."""
    from callgate.wiring.hosts import HostedTools, make_hosts  # lazy: most homes have none  # noqa: PLC0415

    hosts = make_hosts(wired.home, wired.settings, wired.sandbox, workspace)
    hosted = HostedTools(hosts, wired.dispatcher.registry)
    hosted.register_all()
    wired.hosts = hosted
    return hosted


def _expect_mcp(wired: Wired, workspace: str) -> None:
    """The tools of MCP servers, as they are pinned. Nothing is started."""
    workspace_servers: Mapping[str, McpTable] = {}
    if os.path.lexists(workspace_settings(workspace)) and is_trusted(wired.home, workspace):
        # Read now: errors in the workspace's settings are reported at once.
        workspace_servers = load_workspace_mcp(os.path.realpath(workspace))
    if workspace_servers or wired.settings.mcp:
        wired.dispatcher.registry.expect(_MCP, partial(_register_mcp, wired, workspace))


def _register_mcp(wired: Wired, workspace: str) -> None:
    from callgate.wiring.mcp import register_servers  # lazy: most homes have none  # noqa: PLC0415

    tools = register_servers(wired.home, wired.settings, wired.sandbox, workspace, wired.runtime)
    wired.mcp = tools
    wired.notices += [] if tools is None else tools.notices()


def _load_configured(wired: Wired) -> list[tuple[str, ToolFactory]]:
    specs = wired.settings.tools.load
    if not specs:
        return []
    from callgate.sources.modules import ToolLoadError, load_tools  # lazy: most homes load none  # noqa: PLC0415

    loaded: list[tuple[str, ToolFactory]] = []
    for spec in specs:
        try:
            factories = load_tools(spec, beside=wired.home.path)
        except ToolLoadError as error:
            raise SettingsError(error.file, error.line, error.problem) from error
        loaded += [(spec, factory) for factory in factories]
    return loaded


def surroundings(home: Home, settings: Settings) -> Surroundings:
    """What the settings put around commands."""
    sandbox = settings.sandbox
    if sandbox == "off":
        return OFF
    named = sandbox.network if isinstance(sandbox.network, list) else []
    word = sandbox.network if isinstance(sandbox.network, str) else "hosts" if named else "none"
    return Surroundings(
        profile=Profile(sandbox.profile),
        network=Network(word),
        hosts=tuple(map(allowed_hosts.parse, named)),
        home=os.path.expanduser("~"),
        callgate_home=home.path,
        readable=tuple(map(os.path.expanduser, sandbox.readable)),
        writable=tuple(map(os.path.expanduser, sandbox.writable)),
        hidden=tuple(map(os.path.expanduser, sandbox.hidden)),
        protected=tuple(map(os.path.normpath, sandbox.protected)),
        limits=_limits(sandbox.limits),
        path_rules=PathRules(home),
    )


class PathRules(msgspec.Struct, frozen=True):
    """The path rules that bind processes which serve many calls, as the files say when one
    starts."""

    home: Home

    def __call__(self, workspace: str, *names: str) -> tuple[PathRule, ...]:
        """`names`: of tools that the process runs, beside those of no special name."""
        definitions = (factory().definition for factory in BUILT_IN)
        files = {
            name: definition.side_effects or SideEffects.EXECUTE
            for definition in definitions
            if definition.path_params and not definition.sandboxed
            for name in (definition.name, *definition.aliases)
        }
        try:
            book = PolicyBook(self.home)(workspace)
        except SettingsError as error:
            raise ToolPermissionDenied(
                f"The settings cannot be used: {error}", reason="settings_invalid"
            ) from None
        return binding_processes(book, book.directory or workspace, files, names)


def _limits(table: SandboxLimitsTable) -> JailLimits:
    """What the settings say, and for the rest what this machine suggests."""
    values = msgspec.structs.asdict(table).items()
    chosen = {k: None if v in (0, "none") else v for k, v in values if v is not None}
    return msgspec.structs.replace(default_limits(), **chosen)


def restart_for(first: Settings, now: Settings) -> tuple[str, ...]:
    """Parts of the settings that differ, and that only a start reads."""
    changed = [
        name
        for name in Settings.__struct_fields__
        if name not in _LIVE and getattr(first, name) != getattr(now, name)
    ]
    if first.tools.load != now.tools.load:
        changed.append("tools.load")
    if (first.sandbox == "off") != (now.sandbox == "off"):  # what starts commands depends on it
        changed.append("sandbox")
    return tuple(changed)


def _of_no_session(type: str, payload: Mapping[str, Any]) -> Event:
    return Event(
        id=ulid(), timestamp=time.time(), session_id="", type=type, actor="system", payload=payload
    )


def audit_log(home: Home, settings: Settings) -> AuditLog:
    return AuditLog(home.audit, max_bytes=settings.audit.max_bytes, keep=settings.audit.keep)


async def _preview(
    files: CallFiles, environments: Environments, call: ToolCall, subject: Subject
) -> Preview | None:
    """What a call will do, in the tool's own words about the arguments that will run."""
    tool = subject.tool.factory()
    preview = getattr(tool, "preview", None)
    if preview is None:
        return None
    if hasattr(tool, "preview_for"):  # a host's: it sees the state of the session
        preview = lambda input, environment: tool.preview_for(call.session.id, input)  # noqa: E731
    environment = environments.open(call.session, files.open(call, subject))
    try:
        async with asyncio.timeout(_PREVIEW_S):
            result = preview(subject.checked.arguments, environment)
            if inspect.isawaitable(result):
                result = await result
        return result if result is None or isinstance(result, Preview) else Preview(str(result))
    except ToolPermissionDenied as error:
        if error.reason == MISMATCH:  # it tried to write: nobody is asked about that
            raise
        log_failure(_log, error, "preview of tool %s failed", subject.tool.name)
        return None
    except Exception as error:  # a tool's own code: the question is asked without a preview
        log_failure(_log, error, "preview of tool %s failed", subject.tool.name)
        return None
