"""From settings to the components of a runtime: its sandbox, its dispatcher, its sources of tools.

Nothing is loaded for tools before one of them is looked at.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

from callgate.audit.log import AuditLog
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.policies import PolicyBook
from callgate.config.schema import Settings
from callgate.config.stores import open_store, shared_store
from callgate.core.calls import ToolCall
from callgate.core.effects import SideEffects
from callgate.core.ids import owner_id
from callgate.core.stores import Store, StoreMisconfigured
from callgate.core.task_sets import TaskSet
from callgate.core.tools import Preview, ToolFactory
from callgate.dispatch.authorize import Authority
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.dispatcher import Limits, ToolDispatcher
from callgate.dispatch.environments import Environments
from callgate.dispatch.permission.asking import Confirmations
from callgate.dispatch.permission.confirmations import Answer
from callgate.dispatch.permission.flows import Flows
from callgate.dispatch.permission.grants import Grants
from callgate.dispatch.running import StopLimits
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import FixedTools, Lazy, OnCondition, ToolSource
from callgate.events.bus import Bus
from callgate.events.log import SessionLog
from callgate.sessions.recovery import Recovery
from callgate.shipped import PACKS

if TYPE_CHECKING:  # loaded with the first of their tools
    from callgate.agent.subagents import Subagents
    from callgate.config.stores import SharedStore
    from callgate.core.commands import Launcher
    from callgate.core.models import Key
    from callgate.runtime import Runtime
    from callgate.shipped import ShippedPack
    from callgate.sources.packs.packs import Packs
    from callgate.sources.packs.values import Embedder
    from callgate.sources.workers.placing import PooledCalls
    from callgate.telemetry.tracing import Tracing
    from callgate.tools.tables import EmbeddingsTable
    from callgate.wiring.sharing import Sharing
    from callgate.workspace.undo.history import History

_log = logging.getLogger("callgate")


def make_dispatcher(
    home: Home,
    settings: Settings,
    *,
    policies: PolicyBook,
    sandbox: Sandbox,
    bus: Bus,
    log: SessionLog,
    audit: AuditLog | None,
    dispatcher: Callable[..., ToolDispatcher],
    saving: TaskSet | None = None,
) -> ToolDispatcher:
    """`saving`: answers are saved beside the call, because a store is waited for."""
    limits = settings.limits
    synced = settings.durability.files == "synced"
    history = cache(partial(_open_history, home, synced))
    files = CallFiles(policies, home.path, history=history, synced=synced)
    environments = Environments(
        delegate_terminal=settings.acp.delegate_terminal, leases=sandbox.leases
    )
    registry = Registry(max_argument_bytes=limits.max_argument_bytes)
    models = {name: table.tags for name, table in settings.models.items()}
    registry.tags.set_models(models, settings.model)
    registry.tags.give("settings", settings.tags)
    grants = Grants(log)
    return dispatcher(
        authority=Authority(
            policies=policies,
            grants=grants,
            flows=Flows(log, bus, grants),
            confirmations=Confirmations(log, limits.confirmation_timeout_s),
            preview=partial(_preview, files, environments),
            save=partial(_save, home, policies)
            if saving is None
            else partial(_save_later, saving, home, policies),
        ),
        files=files,
        sink=bus,
        log=log,
        audit=audit,
        registry=registry,
        limits=Limits(
            concurrency=limits.concurrency,
            max_timeout_s=limits.max_timeout_s,
            stop=StopLimits(grace_s=limits.cancel_grace_s, abandon_s=limits.abandon_s),
        ),
        sandbox=sandbox,
        environments=environments,
    )


def _open_history(home: Home, synced: bool) -> History:
    from callgate.workspace.undo.history import History  # lazy: once a call may change a file  # noqa: PLC0415

    return History(os.path.join(home.path, "undo"), synced=synced)


async def _preview(
    files: CallFiles, environments: Environments, call: ToolCall, subject: Subject
) -> Preview | None:
    from callgate.dispatch.previews import preview_call  # lazy: only where a person is asked  # noqa: PLC0415

    return await preview_call(files, environments, call, subject)


def _save(
    home: Home, policies: PolicyBook, call: ToolCall, subject: Subject, answer: Answer
) -> None:
    if _write_answer(home, call, subject, answer):
        policies.refresh()


def _save_later(
    saving: TaskSet,
    home: Home,
    policies: PolicyBook,
    call: ToolCall,
    subject: Subject,
    answer: Answer,
) -> None:
    async def save() -> None:
        if await asyncio.to_thread(_write_answer, home, call, subject, answer):
            policies.refresh()

    saving.start(save())


def _write_answer(home: Home, call: ToolCall, subject: Subject, answer: Answer) -> bool:
    from callgate.config.saved import save_answer  # lazy: only for an answer for good  # noqa: PLC0415

    try:
        save_answer(home, call, subject, answer)
    except (OSError, ValueError) as error:  # the answer counts, but only this once
        _log.error("the answer could not be saved: %s", error)
        return False
    return True


def find_shared_store(home: Home, settings: Settings) -> SharedStore | None:
    """Return the store that the settings name, which other homes use too. Raises `SettingsError`,
    also where there is no key for the secrets in it."""
    if not settings.store.is_shared:
        return None
    from callgate.config.secrets.shared_keys import require_key  # lazy: few share  # noqa: PLC0415

    require_key(settings, os.environ)
    return shared_store(home, settings.store)


def session_log(
    home: Home, audit: AuditLog | None, shared: SharedStore | None = None
) -> tuple[SessionLog, Recovery]:
    """The way to the store, which is opened once something is read or stored."""

    async def open_and_recover() -> Store:
        try:
            if audit is None:
                return await open_store(home, shared)
            store = await open_store(
                home, shared, owner=audit.owner, before_commit=audit.sync_before_store
            )
        except SettingsError as error:
            raise StoreMisconfigured(f"{error}.") from error
        return await recovery.enter(store)

    log = SessionLog(open_and_recover, audit)
    if shared is None or audit is None:
        recovery = Recovery(log, audit, home.processes)
        return log, recovery
    from callgate.config.secrets.shared_keys import AUDIT, key_finder  # lazy: few share  # noqa: PLC0415

    find_key = key_finder(home, AUDIT, lambda: audit.key)
    recovery = Recovery(log, audit, home.processes, shared.home, find_key)
    return log, recovery


def make_sharing(
    home: Home, shared: SharedStore | None, log: SessionLog, audit: AuditLog | None
) -> Sharing | None:
    if shared is None:
        return None
    from callgate.wiring.sharing import Sharing  # lazy: most homes share nothing  # noqa: PLC0415

    return Sharing(home, shared, log, audit)


def audit_log(home: Home, settings: Settings, shared: SharedStore | None = None) -> AuditLog:
    return AuditLog(
        home.audit,
        max_bytes=settings.audit.max_bytes,
        keep=settings.audit.keep,
        journals=home.processes,
        owner=owner_id() if shared is None else shared.owner_id(),
    )


def make_tracing(
    home: Home, settings: Settings, audit: AuditLog | None, dispatcher: ToolDispatcher
) -> Tracing | None:
    """Telemetry, where the settings have it on and calls are recorded."""
    if not settings.telemetry.enabled or audit is None:
        return None
    from importlib.util import find_spec  # lazy: most homes have none  # noqa: PLC0415

    from callgate.dispatch.commands.traced_launchers import trace_call  # lazy: as above  # noqa: PLC0415
    from callgate.telemetry.tracing import Tracing, is_disabled  # lazy: as above  # noqa: PLC0415

    if is_disabled(os.environ):
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        _log.error("telemetry is on and cannot be sent: install callgate[otel]")
        return None
    tracing = Tracing(
        home.audit,
        os.path.join(home.path, "exports", "telemetry.json"),
        with_arguments=settings.telemetry.arguments,
        flush_s=settings.telemetry.flush_seconds,
    )
    dispatcher.trace = partial(trace_call, tracing.ratio)
    return tracing


def agent_tools(subagents: Callable[[], Subagents]) -> ToolSource:
    """What only an agent at work is offered."""

    def load() -> ToolSource:
        from callgate.agent.plans import UpdatePlan  # lazy: only for a model at work  # noqa: PLC0415
        from callgate.agent.subagents import SpawnAgent  # lazy: as above  # noqa: PLC0415

        factories = (partial(SpawnAgent, subagents()), UpdatePlan)
        return OnCondition(FixedTools(factories), subagents().why_not)

    return Lazy(("spawn_agent", "update_plan"), load)


def hooked_tools() -> ToolSource:
    """What only sessions of agents with hooks see."""

    def load() -> ToolSource:
        from callgate.tools.agent_tools import factories  # lazy: few have hooks  # noqa: PLC0415

        return FixedTools(tuple(factories()))

    return Lazy(tuple(f"agent_{effect.value}" for effect in SideEffects), load)


def catalogue(packs: Callable[[], Packs]) -> Iterator[ToolSource]:
    """The packages that we ship."""

    def load(pack: ShippedPack) -> ToolSource:
        return packs().shipped_tools(pack)

    for pack in PACKS:
        if pack.tools:
            yield Lazy(pack.tools, partial(load, pack))


def enabled_packs(packs: Callable[[], Packs]) -> ToolSource:
    """The packages that the settings enable. Their names are not known before they are loaded."""
    return Lazy((), lambda: packs().enabled_tools())


def custom_tool(runtime: Runtime) -> ToolSource:
    """`custom`, which some models were taught, and nobody is told of."""

    def load() -> ToolSource:
        from callgate.tools.catalogue import CUSTOM  # lazy: few models call it  # noqa: PLC0415
        from callgate.tools.loading import factories  # lazy: as above  # noqa: PLC0415

        return FixedTools(factories(CUSTOM, runtime.call), listed=False)

    return Lazy(("custom",), load)


def make_packs(
    home: Home,
    settings: Settings,
    launcher: Callable[[], Launcher],
    isolated: Callable[[ToolFactory], ToolFactory],
    report: Callable[[str], None],
) -> Packs:
    """The packages of tools, and what each is given of the runtime."""
    from callgate.sources.packs.packs import Packs  # lazy: most calls need none  # noqa: PLC0415
    from callgate.sources.packs.values import PackContext  # lazy: as above  # noqa: PLC0415

    def context(name: str) -> PackContext:
        return PackContext(
            home=home.path,
            settings=settings.of_pack(name),
            find_key=partial(_find_key, home),
            open_embedder=partial(_open_embedder, home),
            launcher=launcher,
        )

    return Packs(context, settings.packs.enable, isolated, report)


def make_workers(log: SessionLog, policies: PolicyBook) -> PooledCalls:
    """Remote workers, of whom none is connected yet."""
    from callgate.sources.workers.placing import PooledCalls  # lazy: most homes have none  # noqa: PLC0415
    from callgate.sources.workers.pools import WorkerPools  # lazy: as above  # noqa: PLC0415

    return PooledCalls(WorkerPools(log.store), policies)


def _find_key(home: Home, service: str, *, key_env: str | None, usual: str | None) -> Key | None:
    from callgate.config.keys import find_service_key  # lazy: only where a service wants one  # noqa: PLC0415

    return find_service_key(service, home, os.environ, key_env=key_env, usual=usual)


def _open_embedder(home: Home, table: EmbeddingsTable) -> Embedder:
    from callgate.config.embeddings import open_embedder  # lazy: only where a search wants one  # noqa: PLC0415

    return open_embedder(home, table)
