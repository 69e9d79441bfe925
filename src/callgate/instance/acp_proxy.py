"""An ACP agent behind the gate: its runtime, and the sandbox in which its process is started.

options, settings, what is known of the agent -> Enclosure -> launcher -> AgentProcess
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
from callgate.config.schema import ProxyTable
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.commands import Command
from callgate.core.directories import make_private_directory
from callgate.core.errors import ToolError
from callgate.core.models import ModelError, ModelErrorKind
from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands.sandboxes import Enclosure
from callgate.dispatch.permission.grants import Grant
from callgate.dispatch.tools.sources import FixedTools
from callgate.instance import agent_homes, known_agents
from callgate.instance.editor_agent import session_in
from callgate.instance.proxy_hooks import AgentHook, installed_hook
from callgate.instance.watchdog import watch_runtime
from callgate.policy.rules import Outcome
from callgate.protocol.acp.initialize import Initialize
from callgate.protocol.jsonrpc import INTERNAL_ERROR, RpcError
from callgate.sandbox import allowed_hosts, sight, tool_chains
from callgate.sandbox.jails import Network, Profile
from callgate.sandbox.launch import child_environment, without_secrets_keys
from callgate.surfaces.acp.peer import Peer
from callgate.surfaces.acp.stdio import serve_client
from callgate.surfaces.acp_proxy.dependencies import AgentPlace, Dependencies, Launch
from callgate.surfaces.acp_proxy.pool import AgentPool
from callgate.surfaces.acp_proxy.proxy import Proxy
from callgate.surfaces.acp_proxy.runners import AgentAction, AgentTurn
from callgate.surfaces.acp_proxy.server import MakeChain, ProxyServer
from callgate.surfaces.live_sessions import LiveSessions
from callgate.tools.agent_tools import TAG
from callgate.wiring.registration import register_own
from callgate.wiring.runtime import Wired

_NODE_PROXY = {"NODE_USE_ENV_PROXY": "1"}
"""Node reaches named hosts through the sandbox's proxy only if it is told to."""
_EMPTY = "callgate-acp-"
"""How a directory is called that is made for the process that is greeted."""
_TMP = "/tmp"  # noqa: S108  # compared with, not written to
_WRITES = (Mode.ASK, Mode.GUARDED, Mode.WRITE)
_WITHOUT_SANDBOX = (Mode.ASK, Mode.WRITE)


class ProxyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line, over what the settings say."""

    argv: tuple[str, ...] = ()
    """The agent; none in a chain, where a conductor starts it."""
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
    options: ProxyOptions, peer: Peer, client: Initialize, make_chain: MakeChain | None
) -> Proxy:
    """`RpcError` says why there is none."""
    if not options.argv and make_chain is None:
        raise RpcError(INTERNAL_ERROR, "which agent? callgate acp-proxy -- AGENT")
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
                hook.serve(proxy, wired.settings.hooks.tools)
            return proxy
        return Proxy(dependencies, peer, name, partial(make_chain, dependencies.first_place))
    except BaseException:
        await wired.close()
        raise


def _open() -> Wired:
    try:
        wired = Wired(Home.from_environment())
        register_own(wired)
        factories = (AgentAction, AgentTurn)
        wired.dispatcher.registry.add(FixedTools(factories, listed=False))
    except (SettingsError, OSError) as error:
        raise RpcError(INTERNAL_ERROR, f"callgate cannot start: {error}") from error
    return wired


def _bound_hook(wired: Wired, options: ProxyOptions) -> AgentHook | None:
    """The hook of callgate that the agent has, if it runs in the sandbox."""
    hook = installed_hook(wired.home.path, options.argv, known_agents.find(options.argv)[0])
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
    table = _with_options(settings.acp.proxy, options)
    mode = Mode(options.mode) if options.mode is not None else settings.mode
    name = known_agents.find(options.argv)[0] if options.argv else "agent"

    def open_session(workspace: str | None, id: str) -> Session:
        session = session_in(wired, workspace or os.getcwd(), id)
        if hook is not None:
            session.tags |= {TAG}
        return session

    def refusal(session: Session, tool: str, arguments: dict[str, Any]) -> str | None:
        call = ToolCall(tool=tool, arguments=arguments, session=session, caller=CallerKind.AGENT)
        try:
            decision = wired.dispatcher.examine(call, by_agent=True)[1]
        except ToolError as error:
            return str(error)
        return decision.sentence if decision.outcome is Outcome.DENY else None

    def grant_once(session: Session, tool: str, arguments: dict[str, Any]) -> None:
        """Bound to exactly these arguments, as the dispatcher will see them."""
        try:
            call = ToolCall(
                tool=tool, arguments=arguments, session=session, caller=CallerKind.AGENT
            )
            subject, decision = wired.dispatcher.examine(call)
        except ToolError:  # it is refused in a moment, for the same reason
            return
        if decision.outcome is Outcome.ASK:  # or it would be left over
            grant = Grant(tool=tool, arguments_sha256=subject.checked.sha256, uses=1)
            wired.dispatcher.authority.grants.add(session, grant)

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
        first_place=AgentPlace(first),
        launch=partial(_launch, wired, options.argv, table, mode, hook),
        runs_in=f"the agent's own process, {_around(table, wired)}",
        grant_once=grant_once,
        refusal=refusal,
        longest_arguments=settings.acp.longest_arguments,
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
    raise ModelError(ModelErrorKind.REQUEST, "The agent behind the proxy has a model of its own.")


def _first_workspace(options: ProxyOptions) -> str:
    """Where the process works that is greeted. Editors that are started from a menu have the home
    as their directory: the agent is not to have all of that."""
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
    place: AgentPlace,
) -> Launch:
    """What starts the agent in its sandbox."""
    sandbox, agent = wired.sandbox, known_agents.find(argv)[1]
    if sandbox.surroundings.profile is None and mode not in _WITHOUT_SANDBOX:
        raise ToolError(f"Mode {mode} needs the sandbox around the agent, which is off.")
    await sandbox.ready()
    ours = without_secrets_keys(os.environ)
    passed = {
        name: ours[name] for name in (*agent.env, *agent.addresses, *table.env) if name in ours
    }
    home = os.path.expanduser("~")
    environ = {**child_environment(os.environ), **passed}
    roots = [*place.roots, *map(Root, map(os.path.expanduser, table.readable))]
    programs = tool_chains.of_program(argv, place.workspace, environ, home)
    session = Session(
        workspace=place.workspace,
        mode=Mode.WRITE,  # `writes` says whether the agent may: a shell of ours has its own jail
        extra_roots=(*wired.roots(), *roots, *map(Root, programs)),
    )
    enclosure = _enclosure(table, wired, known_agents.model_hosts(agent, ours))
    if enclosure.network is Network.HOSTS:
        environ |= _NODE_PROXY
    directory = os.path.realpath(place.workspace)  # a link to it may not be there for the agent
    command = Command(argv=tuple(argv), cwd=directory, env=environ)
    view = agent_homes.HomeView()
    if enclosure.profile is not None:
        view = await asyncio.to_thread(
            agent_homes.open_view,
            agent,
            home,
            environ,
            wired.home.path,
            workspace=place.workspace,
            persists=mode in _WRITES,
        )
    try:
        enclosure = msgspec.structs.replace(
            enclosure,
            writes=mode in _WRITES,
            program_roots=tuple(_made(map(os.path.expanduser, table.writable))),
            revealed=view.roots if hook is None else (*view.roots, *hook.roots),
            unix_sockets=hook is not None,
            replacements=view.replacements,
        )
        launcher = sandbox.process_launcher(enclosure, session)
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


def _made(paths: Any) -> list[str]:
    found = list(paths)
    for path in found:
        if not os.path.lexists(path):
            make_private_directory(path)
    return found
