"""`callgate sandbox -- COMMAND`: prepares what is around a program, and runs it there.

    settings -> places of the program -> jail -> plan -> order -> `terminal_runs`

The workspace is writable, our home is masked, and of the user's home there is what any command
sees and the agent's own directories (`agent_homes`). An agent that we know gets its hooks for this
run. What an agent or git would run outside later stays as it is, or stays missing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping

import msgspec

from callgate.cli.errors import CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.sandboxed_agents import terminal_runs
from callgate.cli.sandboxed_agents.agent_files import without_later_runs
from callgate.config.agents.settings_files import (
    AGENTS,
    hook_directory,
    sockets_directory,
    user_file,
)
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import HooksTable, Settings
from callgate.core.commands import Command, LeftBehind, Stream
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.core.sessions import Root, Session
from callgate.dispatch.commands.path_search import find
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.instance import known_agents
from callgate.instance.agent_homes import HomeView, open_view
from callgate.instance.known_agents import KnownAgent
from callgate.sandbox import allowed_hosts, kernel, tool_chains
from callgate.sandbox.backends import landlock, seccomp
from callgate.sandbox.jails import Jail, Network, Profile
from callgate.sandbox.masks import with_masks
from callgate.sandbox.plans import (
    Backend,
    Bubblewrap,
    CannotGuarantee,
    Landlock,
    Namespaces,
    Seccomp,
    choose,
)
from callgate.sandbox.processes.ordering import order as make_order
from callgate.surfaces.socket.instances import live
from callgate.wiring.surroundings import surroundings
from callgate.workspace.executed_later import now, take_stock


def sandbox(options: Namespace) -> int:
    refuse_within_a_call("callgate sandbox")
    if not options.words:
        raise CliError("name a program: callgate sandbox -- COMMAND ...")
    home = Home.from_environment()
    try:
        settings = load_user(home)[0]
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    if settings.sandbox == "off":
        raise CliError("the settings turn the sandbox off: [sandbox]")
    argv: list[str] = list(options.words)
    agent = _agent_of(argv[0])
    if agent is not None and not options.no_hooks:
        _refuse_switches(home.path, agent, argv, options.workspace)
        argv = _with_hooks(home.path, agent, argv, settings.hooks)
    workspace = os.path.realpath(options.workspace)
    around = Sandbox(surroundings(home, settings))
    env = _environment()
    try:
        with _view(settings.hooks, home.path, argv[0], workspace, env) as view:
            jail = _jail(around, settings, workspace, argv[0], agent, options.network, view)
            command = Command(argv=tuple(argv), cwd=workspace, env={**env, **view.environment})
            if jail.network is Network.HOSTS:
                return asyncio.run(_run_proxied(around, jail, command))
            return _run(jail, command)
    except CannotGuarantee as error:
        raise CliError(
            str(error), error_class=ToolErrorClass.PERMISSION_DENIED, reason="sandbox_unavailable"
        ) from error
    finally:
        around.close()


def _view(
    hooks: HooksTable, home: str, program: str, workspace: str, env: Mapping[str, str]
) -> HomeView:
    """The directories of the agent; none for another program."""
    agent = known_agents.find([program])[1] if hooks.home != "none" else KnownAgent()
    user = os.path.expanduser("~")
    persists = hooks.home == "write"
    try:
        return open_view(agent, user, env, home, workspace=workspace, persists=persists)
    except ToolError as error:
        raise CliError(error.message) from error


def _run(jail: Jail, command: Command) -> int:
    """Run the program, and say what it left to be executed later, however it ended."""
    began = now()
    code, not_created = _run_at_terminal(jail, command)
    left = take_stock(_searched(jail), began, jail.protected, jail.writable)
    _show_left(msgspec.structs.replace(left, refused=tuple(sorted(not_created))), jail)
    return code


def _searched(jail: Jail) -> tuple[str, ...]:
    return () if jail.names is None else jail.names.roots


def _show_left(left: LeftBehind, jail: Jail) -> None:
    for line in left.below(_searched(jail)).lines():
        sys.stderr.write(f"callgate: {line}\n")


def _run_at_terminal(jail: Jail, command: Command) -> tuple[int, list[str]]:
    """Run the program as if namespaces worked here; try the machine out only if they do not."""
    try:
        try:
            return terminal_runs.run(make_order(command, choose(jail, _expected())))
        except (CannotGuarantee, terminal_runs.Refused) as error:
            if isinstance(error, terminal_runs.Refused) and error.step != "namespaces":
                raise
        from callgate.sandbox import machines  # lazy: where the first try fails  # noqa: PLC0415

        backends = machines.look_now()
        bwrap = next((each.path for each in backends if isinstance(each, Bubblewrap)), None)
        return terminal_runs.run(make_order(command, choose(jail, backends), bwrap=bwrap))
    except terminal_runs.Refused as error:
        sys.stderr.write(f"callgate: nothing was run: {error.step}: {error.strerror}\n")
        is_missing = error.step == "exec"
        return (terminal_runs.NOT_FOUND if is_missing else terminal_runs.NOT_STARTED), []


def _expected() -> tuple[Backend, ...]:
    """The backends of most machines, without trying namespaces out, which takes 60 ms."""
    filters = kernel.supported() and seccomp.works()
    problem = None if filters else "no system call filter, without which namespaces are no jail"
    return Landlock(landlock.abi()), Seccomp(filters), Namespaces(problem)


def _environment() -> dict[str, str]:
    withheld = ("CALLGATE_", "LD_PRELOAD", "BASH_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(withheld)}


async def _run_proxied(around: Sandbox, jail: Jail, command: Command) -> int:
    """With named hosts: a proxy of ours stands between, so output goes through pipes."""
    await around.ready()
    plan = choose(jail, around.backends)
    home = around.surroundings.callgate_home
    launcher = around.launchers.jailed(plan, around.backends, home, searches=False)

    def show(stream: Stream, data: bytes) -> None:
        target = sys.stdout if stream == "stdout" else sys.stderr
        target.buffer.write(data)
        target.buffer.flush()

    with_stdin = msgspec.structs.replace(command, stdin=os.dup(0))
    began = now()
    async with await launcher.start(with_stdin, show) as running:
        ended = await running.wait()
    known, writable = jail.protected, jail.writable
    left = await asyncio.to_thread(take_stock, _searched(jail), began, known, writable)
    _show_left(msgspec.structs.replace(left, refused=ended.left.refused), jail)
    if ended.code is not None:
        return ended.code
    return 128 + (ended.signal or 0)


def _jail(
    around: Sandbox,
    settings: Settings,
    workspace: str,
    program: str,
    agent: str | None,
    network: str | None,
    view: HomeView,
) -> Jail:
    session = Session(workspace=workspace, extra_roots=tuple(_roots(settings, program)))
    revealed, home = view.roots, around.surroundings.callgate_home
    if agent is not None:
        revealed += (Root(hook_directory(home, agent)), Root(sockets_directory(home)))
    word, hosts = _network(network, settings.hooks)
    enclosure = Enclosure(
        Profile.WORKSPACE, word, hosts=hosts, revealed=revealed, replacements=view.replacements
    )
    jail = around.jail(enclosure, session)
    limits = msgspec.structs.replace(jail.limits, cpu_seconds=None, output_bytes=None)
    jail = msgspec.structs.replace(jail, limits=limits, unix_sockets=agent is not None)
    rules = around.surroundings.path_rules
    if rules is not None and (bound := rules(workspace)):
        matches = find(bound, (workspace,), ())
        jail = with_masks(jail, matches.hidden, matches.read_only)
    return without_later_runs(jail, workspace, is_agent=agent is not None)


def _roots(settings: Settings, program: str) -> Iterable[Root]:
    found = shutil.which(program)
    if found is not None:
        found = os.path.abspath(found)
        yield Root(os.path.dirname(found))
        user = os.path.expanduser("~")
        for path in tool_chains.of_program([found], os.path.dirname(found), os.environ, user):
            yield Root(path)
    for root in settings.workspace.extra_roots:
        yield Root(os.path.expanduser(root.path), writable=root.access == "write")


def _network(
    given: str | None, hooks: HooksTable
) -> tuple[Network, tuple[allowed_hosts.AllowedHost, ...]]:
    word: str | list[str] = hooks.network if given is None else given
    if word in ("none", "all"):
        return Network(str(word)), ()
    names = word.split(",") if isinstance(word, str) else word
    try:
        return Network.HOSTS, tuple(map(allowed_hosts.parse, names))
    except ValueError as error:
        raise CliError(f"--network: {error}") from None


def _agent_of(program: str) -> str | None:
    name = os.path.basename(program)
    return next((agent for agent, each in AGENTS.items() if each.program == name), None)


def _refuse_switches(home: str, agent: str, argv: list[str], workspace: str) -> None:
    """Refuse to start an agent that would run without its hooks. Raises `CliError`."""
    from callgate.config.agents import hook_switches  # lazy: for agents alone  # noqa: PLC0415

    switches = hook_switches.SWITCHES[agent]
    found = hook_switches.in_arguments(agent, argv[1:])
    found += hook_switches.in_environment(agent, os.environ)
    if switches.outranking:
        found += hook_switches.in_managed_file(agent, home)
        found += hook_switches.in_variables(agent, os.path.realpath(workspace))
    else:
        found += hook_switches.in_files(agent, os.path.realpath(workspace), home)
    if found:
        raise CliError(
            f"{AGENTS[agent].label} would run without callgate's hooks: {'; '.join(found)}",
            hint="Remove that, or add --no-hooks to rely on the sandbox alone.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="hooks_turned_off",
        )
    # A variable that is set is not read from a file of variables.
    os.environ.update({name: "0" for name in switches.variables if name not in os.environ})


def _with_hooks(home: str, agent: str, argv: list[str], hooks: HooksTable) -> list[str]:
    """The command line with the agent's hooks for this run."""
    if not live(home):
        raise CliError(
            "no callgate instance runs, so every call would be refused",
            hint="callgate serve --detach, or --no-hooks to rely on the sandbox alone.",
        )
    from callgate.cli.hooks import (  # lazy: for agents alone  # noqa: PLC0415
        editing,
        installations,
        scripts,
    )
    from callgate.config.agents import hook_switches  # lazy: for agents alone  # noqa: PLC0415

    scripts.write_scripts(home, agent, hooks.wait_s)
    if agent == "claude":
        path = os.path.join(hook_directory(home, agent), "run-settings.json")
        on = '{"disableAllHooks": false}'  # outranks settings of the user and of a repository
        text = editing.with_hook(agent, home, on, hooks.wait_s)
        editing.apply(installations.Edit(path, None, text))
        return [argv[0], "--settings", path, *argv[1:]]
    if not editing.entries(agent, editing.read(user_file(agent)) or "", home):
        raise CliError(
            f"{AGENTS[agent].label} takes hooks from its settings only, and has none of callgate's",
            hint=f"callgate hook install {agent}, or --no-hooks to rely on the sandbox alone.",
        )
    return [argv[0], *hook_switches.SWITCHES[agent].outranking, *argv[1:]]
