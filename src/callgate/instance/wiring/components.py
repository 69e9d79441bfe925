"""The components of a runtime, from settings: its sandbox, its dispatcher, its sources of tools.

Tools are loaded on their first look-up.
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
from callgate.core.ids import owner_id
from callgate.core.stores import Store, StoreMisconfigured
from callgate.core.tasks import TaskSet
from callgate.core.tools import Preview, ToolFactory
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.dispatcher import CallLimits, ToolDispatcher
from callgate.dispatch.environments import Environments
from callgate.dispatch.permission.asking import Confirmations
from callgate.dispatch.permission.confirmations import Answer
from callgate.dispatch.permission.deciding import Authority
from callgate.dispatch.permission.flows import Flows
from callgate.dispatch.permission.grants import Grants
from callgate.dispatch.running import StopLimits
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import FixedTools, Lazy, ToolSource
from callgate.events.bus import Bus
from callgate.events.log import SessionLog
from callgate.feature import FEATURES, PACKS, load, port
from callgate.sessions.recovery import Recovery
from callgate.tools.files import DeleteFile, PatchFile, WriteFile
from callgate.tools.shell import Shell

if TYPE_CHECKING:  # loaded with the first of their tools
    from callgate.config.schema import EmbeddingsTable
    from callgate.config.stores import SharedStore
    from callgate.core.commands import Launcher
    from callgate.core.models import Key
    from callgate.feature import ShippedPack
    from callgate.runtime import Runtime
    from callgate.sources.packs import Embedder, Packs
    from callgate.sources.skills import Skills
    from callgate.workspace.undo.history import History

_log = logging.getLogger("callgate")
_UNDOABLE: tuple[ToolFactory, ...] = (WriteFile, PatchFile, DeleteFile, Shell)
"""Tools that change files only through the file API, or only by sandboxed commands."""


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
    save: Callable[[ToolCall, Subject, Answer], None],
) -> ToolDispatcher:
    """`save` writes an `always` answer to the user's settings."""
    limits = settings.limits
    synced = settings.durability.files == "synced"
    history = cache(partial(_open_history, home, settings))
    files = CallFiles(
        policies,
        home.path,
        history=history,
        synced=synced,
        undoable=_UNDOABLE,
        discards_failed=settings.sandbox != "off" and settings.sandbox.on_failure == "discard",
    )
    acp = settings.table("acp")
    environments = Environments(
        delegate_terminal=acp is None or acp.delegate_terminal, leases=sandbox.leases
    )
    registry = Registry(max_argument_bytes=limits.max_argument_bytes)
    models = {name: table.tags for name, table in (settings.table("models") or {}).items()}
    registry.tags.set_models(models, settings.table("model"))
    registry.tags.give("settings", settings.tags)
    grants = Grants(log)
    return dispatcher(
        authority=Authority(
            policies=policies,
            grants=grants,
            flows=Flows(log, bus, grants),
            confirmations=Confirmations(log, limits.confirmation_timeout_s, limits.max_questions),
            preview=partial(_preview, files, environments),
            save=save,
        ),
        files=files,
        sink=bus,
        log=log,
        audit=audit,
        registry=registry,
        limits=CallLimits(
            concurrency=limits.concurrency,
            max_timeout_s=limits.max_timeout_s,
            stop=StopLimits(grace_s=limits.cancel_grace_s, abandon_s=limits.abandon_s),
        ),
        sandbox=sandbox,
        environments=environments,
    )


def _open_history(home: Home, settings: Settings) -> History:
    from callgate.config.undo_store import open_history  # lazy: once a call may change a file  # noqa: PLC0415

    return open_history(home, settings)


async def _preview(
    files: CallFiles, environments: Environments, call: ToolCall, subject: Subject
) -> Preview | None:
    from callgate.dispatch.previews import preview_call  # lazy: few calls need approval  # noqa: PLC0415

    return await preview_call(files, environments, call, subject)


def save_answer(
    home: Home,
    policies: PolicyBook,
    saving: TaskSet | None,
    call: ToolCall,
    subject: Subject,
    answer: Answer,
) -> None:
    """Save an `always` answer. `saving` does this concurrently, for a shared store."""

    async def save() -> None:
        if await asyncio.to_thread(_write_answer, home, call, subject, answer):
            policies.refresh()

    if saving is not None:
        saving.start(save())
    elif _write_answer(home, call, subject, answer):
        policies.refresh()


def _write_answer(home: Home, call: ToolCall, subject: Subject, answer: Answer) -> bool:
    from callgate.config import saved  # lazy: only for a permanent answer  # noqa: PLC0415

    try:
        saved.save_answer(home, call, subject, answer)
    except (OSError, ValueError) as error:  # the answer counts, but only once
        _log.error("the answer could not be saved: %s", error)
        return False
    return True


def find_shared_store(home: Home, settings: Settings) -> SharedStore | None:
    """Return the configured store that other homes use too.

    Raises `SettingsError`, also if there is no key for the secrets in it.
    """
    if not settings.store.is_shared:
        return None
    from callgate.config.secret_opening import require_key  # lazy: few share  # noqa: PLC0415

    require_key(settings, os.environ)
    return shared_store(home, settings.store)


def session_log(
    home: Home, audit: AuditLog | None, shared: SharedStore | None = None
) -> tuple[SessionLog, Recovery]:
    """Return the only access to the store, which is opened on first use."""

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
    from callgate.config.secret_opening import AUDIT, key_finder  # lazy: few share  # noqa: PLC0415

    find_key = key_finder(home, AUDIT, lambda: audit.key)
    recovery = Recovery(log, audit, home.processes, shared.home, find_key)
    return log, recovery


def audit_log(home: Home, settings: Settings, shared: SharedStore | None = None) -> AuditLog:
    return AuditLog(
        home.audit,
        max_bytes=settings.audit.max_bytes,
        keep=settings.audit.keep,
        journals=home.processes,
        owner=owner_id() if shared is None else shared.owner_id(),
    )


def feature_tools(wired: object) -> Iterator[ToolSource]:
    """Yield the tools of features; a feature is loaded with the first look-up of one of them."""

    def load_tools(name: str) -> ToolSource:
        feature = load(name)
        if feature is None or feature.tools is None:
            return FixedTools(())
        source: ToolSource = feature.tools(wired)
        return source

    for each in FEATURES:
        if each.tools:
            yield Lazy(each.tools, partial(load_tools, each.name))


def make_skills(home: Home, settings: Settings) -> Skills:
    """Return the skills of a home, and of the workspaces that it trusts."""
    from callgate.config.trust import admits_skills  # lazy: only for a model at work  # noqa: PLC0415
    from callgate.sources.skills import Skills  # lazy: as above  # noqa: PLC0415

    def trusts(workspace: str) -> bool:
        try:
            return admits_skills(home, workspace)
        except SettingsError as error:
            _log.error("skills of workspaces are not used: %s", error)
            return False

    return Skills(
        home.path, trusts=trusts, unknown=getattr(settings.table("agent"), "unknown_slash", "error")
    )


def catalogue(packs: Callable[[], Packs]) -> Iterator[ToolSource]:
    """Yield the built-in packages."""

    def load(pack: ShippedPack) -> ToolSource:
        return packs().shipped_tools(pack)

    for pack in PACKS:
        if pack.tools:
            yield Lazy(pack.tools, partial(load, pack))


def enabled_packs(packs: Callable[[], Packs]) -> ToolSource:
    """Return the enabled packages. Their tools are unknown until they are loaded."""
    return Lazy((), lambda: packs().enabled_tools())


def custom_tool(runtime: Runtime) -> ToolSource:
    """Return `custom`, which some models know from training. It is not listed."""

    def load() -> ToolSource:
        from callgate.tools.loading import CUSTOM, factories  # lazy: few models call it  # noqa: PLC0415

        return FixedTools(factories(CUSTOM, runtime.calls.run), listed=False)

    return Lazy(("custom",), load)


def make_packs(
    home: Home,
    settings: Settings,
    launcher: Callable[[], Launcher],
    isolated: Callable[[ToolFactory], ToolFactory],
    report: Callable[[str], None],
) -> Packs:
    """Return the packages of tools, with the context for each."""
    from callgate.sources.packs import PackContext, Packs  # lazy: most calls need none  # noqa: PLC0415

    def context(name: str) -> PackContext:
        return PackContext(
            home=home.path,
            settings=settings.of_pack(name),
            find_key=partial(_find_key, home),
            open_embedder=partial(_open_embedder, home),
            launcher=launcher,
        )

    return Packs(context, settings.packs.enable, isolated, report)


def _find_key(home: Home, service: str, *, key_env: str | None, usual: str | None) -> Key | None:
    find = port("find_key")
    found: Key | None = None if find is None else find(home, service, key_env, usual)
    return found


def _open_embedder(home: Home, table: EmbeddingsTable) -> Embedder:
    make = port("open_embedder")
    if make is None:
        from callgate.core.models import ModelError, ModelErrorKind  # lazy: rare  # noqa: PLC0415

        raise ModelError(ModelErrorKind.REQUEST, "This callgate has no models for embeddings.")
    embedder: Embedder = make(home, table)
    return embedder
