"""Setup of the proxy for an ACP agent: its runtime, and the sandbox of its process.

options, settings, facts about the agent -> Enclosure -> launcher -> AgentProcess
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.core.calls import BY_ITS_AGENT, CallerKind, ToolCall
from callgate.core.commands import Command
from callgate.core.errors import ToolError
from callgate.core.local.disk import make_private_directory
from callgate.core.models import ModelError, ModelErrorKind
from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands.sandboxes import Enclosure
from callgate.dispatch.tools.sources import AGENT_HOOKS, FixedTools
from callgate.features.agents import agent_homes, known
from callgate.features.agents.proxy.agents import AgentLocation, AgentPool, Dependencies, Launch
from callgate.features.agents.proxy.proxy import Proxy
from callgate.features.agents.proxy.runners import AgentAction, AgentTurn
from callgate.features.agents.proxy.server import AgentHook, MakeChain, ProxyServer, installed_hook
from callgate.features.agents.settings import AgentsSettings
from callgate.features.chat.live_sessions import LiveSessions
from callgate.features.editor.editor_agent import session_in
from callgate.features.editor.peer import EditorPeer
from callgate.features.editor.settings import EditorSettings, ProxyTable
from callgate.features.editor.stdio import serve_client
from callgate.instance.watchdog import watch_runtime
from callgate.instance.wiring.builder import build, register_own
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import Outcome
from callgate.protocol.acp.initialize import Initialize
from callgate.protocol.jsonrpc import INTERNAL_ERROR, RpcError
from callgate.sandbox import allowed_hosts, sight
from callgate.sandbox.jails import Network, Profile
from callgate.sandbox.plans import child_environment, without_secrets_keys

_NODE_PROXY = {"NODE_USE_ENV_PROXY": "1"}
"""Variable that makes Node use the sandbox's proxy, which it needs for named hosts."""
_EMPTY = "callgate-acp-"
"""Prefix of the temporary directory of the first process."""
_TMP = "/tmp"  # noqa: S108  # compared with, not written to
_WRITES = (Mode.ASK, Mode.GUARDED, Mode.WRITE)
_WITHOUT_SANDBOX = (Mode.ASK, Mode.WRITE)


class ProxyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line, which take precedence over the settings."""

    argv: tuple[str, ...] = ()
    """The agent's command; empty in a proxy chain, where a conductor starts the agent."""
    workspace: str | None = None
    mode: str | None = None
    network: str | list[str] | None = None
    profile: str | None = None
    env: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    unstable: bool = False


async def serve_proxy(requests: int, answers: int, options: ProxyOptions) -> int:
    """Serve the editor that writes to `requests` and reads `answers`; returns the exit code."""
    return await serve_client(
        requests, answers, partial(ProxyServer, partial(_make, options), options.unstable)
    )


async def _make(
    options: ProxyOptions, peer: EditorPeer, client: Initialize, make_chain: MakeChain | None
) -> Proxy:
    """Create the proxy. Raises `RpcError`."""
    if not options.argv and make_chain is None:
        raise RpcError(
            INTERNAL_ERROR, "the agent's command is missing: callgate acp-proxy -- AGENT"
        )
    wired = await asyncio.to_thread(_open)
    try:
        hook = _bound_hook(wired, options) if make_chain is None else None
        dependencies = make_dependencies(wired, options, hook)
        watch_runtime(wired)
        info = client.client_info
        name = None if info is None else info.name
        if make_chain is None:
            proxy = Proxy(dependencies, peer, name, partial(AgentPool, dependencies))
            if hook is not None:
                hook.serve(proxy, wired.settings.of(AgentsSettings).hooks.tools)
            return proxy
        return Proxy(dependencies, peer, name, partial(make_chain, dependencies.first_location))
    except BaseException:
        await wired.close()
        raise


def _open() -> Wired:
    try:
        wired = build(Home.from_environment(), "", register_own)
        factories = (AgentAction, AgentTurn)
        wired.registry.add(FixedTools(factories, listed=False))
    except (SettingsError, OSError) as error:
        raise RpcError(INTERNAL_ERROR, f"callgate cannot start: {error}") from error
    return wired


def _bound_hook(wired: Wired, options: ProxyOptions) -> AgentHook | None:
    """Return callgate's hook of the agent, if it is installed and the agent is sandboxed."""
    hook = installed_hook(wired.home.path, options.argv)
    if hook is None or wired.sandbox.surroundings.profile is None:
        return None
    try:
        hook.bind()
    except OSError as error:
        message = f"callgate cannot listen for the agent's hook: {error}"
        raise RpcError(INTERNAL_ERROR, message) from error
    return hook


def make_dependencies(
    wired: Wired, options: ProxyOptions, hook: AgentHook | None = None
) -> Dependencies:
    settings = wired.settings
    table = _with_options(settings.of(EditorSettings).acp.proxy, options)
    mode = Mode(options.mode) if options.mode is not None else settings.mode
    name = known.find(options.argv)[0] if options.argv else "agent"

    def open_session(workspace: str | None, id: str) -> Session:
        session = session_in(wired, workspace or os.getcwd(), id)
        if hook is not None:
            session.tags |= {AGENT_HOOKS}
        return session

    def refusal(session: Session, tool: str, arguments: dict[str, Any]) -> str | None:
        call = ToolCall(
            tool=tool,
            arguments=arguments,
            session=session,
            caller=CallerKind.AGENT,
            handover=BY_ITS_AGENT,
        )
        try:
            decision = wired.runtime.permission.explain(call)[1]
        except ToolError as error:
            return str(error)
        return decision.sentence if decision.outcome is Outcome.DENY else None

    def grant_once(session: Session, tool: str, arguments: dict[str, Any]) -> None:
        """Grant one call with exactly these arguments, as the dispatcher will see them."""
        call = ToolCall(tool=tool, arguments=arguments, session=session, caller=CallerKind.AGENT)
        wired.runtime.permission.allow_once(call)

    first = _first_workspace(options)

    async def close() -> None:
        if hook is not None:
            await hook.close()
        await wired.close()
        if os.path.basename(first).startswith(_EMPTY):
            shutil.rmtree(first, ignore_errors=True)

    return Dependencies(
        runtime=wired.runtime,
        sessions=LiveSessions(wired.runtime, open_session, _no_model),
        mode=mode,
        name=name,
        first_location=AgentLocation(first),
        launch=partial(_launch, wired, options.argv, table, mode, hook),
        runs_in=f"the agent's own process, {_around(table, wired)}",
        grant_once=grant_once,
        refusal=refusal,
        longest_arguments=settings.of(EditorSettings).acp.longest_arguments,
        start_timeout_s=table.start_timeout_s,
        cancel_patience_s=table.cancel_patience_s,
        extensions=tuple(table.extensions),
        close=close,
    )


def _with_options(table: ProxyTable, options: ProxyOptions) -> ProxyTable:
    changes: dict[str, Any] = {
        name: value
        for name in ("network", "profile")
        if (value := getattr(options, name)) is not None
    }
    for name in ("env", "writable", "readable"):
        changes[name] = [*getattr(table, name), *getattr(options, name)]
    return msgspec.structs.replace(table, **changes)


def _no_model(name: str | None) -> Any:
    raise ModelError(ModelErrorKind.REQUEST, "The agent behind the proxy uses its own model.")


def _first_workspace(options: ProxyOptions) -> str:
    """Return the workspace of the first process.

    The working directory of an editor from a desktop menu is the home. The agent must not get
    access to it, so an empty directory replaces it.
    """
    if options.workspace is not None:
        return os.path.realpath(os.path.expanduser(options.workspace))
    here, home = os.path.realpath(os.getcwd()), os.path.realpath(os.path.expanduser("~"))
    if os.path.commonpath([here, home]) != here:
        return here
    return os.path.realpath(tempfile.mkdtemp(prefix=_EMPTY))


async def _launch(
    wired: Wired,
    argv: Sequence[str],
    table: ProxyTable,
    mode: Mode,
    hook: AgentHook | None,
    location: AgentLocation,
) -> Launch:
    """Return the launcher and the command of the agent in its sandbox."""
    sandbox, agent = wired.sandbox, known.find(argv)[1]
    if sandbox.surroundings.profile is None and mode not in _WITHOUT_SANDBOX:
        raise ToolError(
            f"Mode {mode} needs a sandbox, which is turned off. Turn it on, or use mode ask."
        )
    await sandbox.ready()
    ours = without_secrets_keys(os.environ)
    passed = {
        name: ours[name] for name in (*agent.env, *agent.addresses, *table.env) if name in ours
    }
    home = os.path.expanduser("~")
    environ = {**child_environment(os.environ), **passed}
    roots = [*location.roots, *map(Root, map(os.path.expanduser, table.readable))]
    programs = sight.of_program(argv, location.workspace, environ, home)
    session = Session(
        workspace=location.workspace,
        mode=Mode.WRITE,  # `writes` controls the agent's access: callgate's shell has its own jail
        extra_roots=(*wired.roots(), *roots, *map(Root, programs)),
    )
    enclosure = _enclosure(table, wired, known.model_hosts(agent, ours))
    if enclosure.network is Network.HOSTS:
        environ |= _NODE_PROXY
    elif agent.name in known.KNOWN:
        services = known.local_services(agent.name, environ, location.workspace)
        enclosure = msgspec.structs.replace(enclosure, services=services)
    directory = os.path.realpath(location.workspace)  # the sandbox may not contain a link to it
    command = Command(argv=tuple(argv), cwd=directory, env=environ)
    view = agent_homes.HomeView()
    if enclosure.profile is not None:
        view = await asyncio.to_thread(
            agent_homes.open_view,
            agent,
            home,
            environ,
            wired.home.path,
            workspace=location.workspace,
            persists=mode in _WRITES,
        )
    try:
        enclosure = msgspec.structs.replace(
            enclosure,
            writes=mode in _WRITES,
            program_roots=tuple(_created(map(os.path.expanduser, table.writable))),
            revealed=view.roots if hook is None else (*view.roots, *hook.roots),
            unix_sockets=hook is not None,
            replacements=view.replacements,
        )
        launcher = sandbox.process_launcher(enclosure, session, "agent")
    except BaseException:
        view.close()
        raise
    command = msgspec.structs.replace(command, env={**environ, **view.environment})

    def hidden_paths(text: str) -> tuple[str, ...]:
        if enclosure.profile is None:
            return ()
        jail = sandbox.jail(enclosure, session)
        if jail.fresh_tmp:
            jail = msgspec.structs.replace(jail, opaque=(*jail.opaque, _TMP))
        return sight.unseen(jail, home, text)

    return Launch(agent_homes.ViewLauncher(launcher, view), command, hidden_paths)


def _around(table: ProxyTable, wired: Wired) -> str:
    if wired.sandbox.surroundings.profile is None:
        return "outside the sandbox"
    return "in an open sandbox" if table.profile == "open" else "in the sandbox around the agent"


def _enclosure(table: ProxyTable, wired: Wired, model: Sequence[str]) -> Enclosure:
    if wired.sandbox.surroundings.profile is None:
        return Enclosure(None, Network.ALL)
    if table.profile == "open":
        return Enclosure(Profile.OPEN, Network.ALL)
    network = table.network
    if isinstance(network, list) or network == "agent":
        named = model if network == "agent" else network
        hosts = tuple(dict.fromkeys(map(allowed_hosts.parse, named)))
        if not hosts:
            return Enclosure(Profile.WORKSPACE, Network.NONE)
        return Enclosure(Profile.WORKSPACE, Network.HOSTS, hosts=hosts)
    return Enclosure(Profile.WORKSPACE, Network(network))


def _created(paths: Any) -> list[str]:
    found = list(paths)
    for path in found:
        if not os.path.lexists(path):
            make_private_directory(path)
    return found
