"""`callgate sandbox -- COMMAND`: prepares what is around a program, and runs it there.

    settings -> places of the program -> jail -> plan -> order -> `terminal_runs`

The workspace is writable, our home is masked, and of the user's home there is what any command
sees and the agent's own directory. An agent that we know gets its hooks for this run. What an
agent or git would run outside later stays as it is, or stays missing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable

import msgspec

from callgate.cli.errors import CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.sandboxed_agents import terminal_runs
from callgate.cli.sandboxed_agents.agent_files import (
    STARTS_WITH,
    own_directories,
    without_later_runs,
)
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
from callgate.core.directories import make_private_directory
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Root, Session
from callgate.dispatch.commands.path_search import find
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.sandbox import allowed_hosts, kernel
from callgate.sandbox.backends import landlock, seccomp
from callgate.sandbox.jails import Jail, Network, Profile, below_any
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
        argv = _with_hooks(home.path, agent, argv, settings.hooks)
    workspace = os.path.realpath(options.workspace)
    around = Sandbox(surroundings(home, settings))
    try:
        jail = _jail(around, settings, home.path, workspace, argv[0], agent, options.network)
        if jail.network is Network.HOSTS:
            return asyncio.run(_run_proxied(around, jail, workspace, argv))
        return _run(jail, workspace, argv)
    except CannotGuarantee as error:
        raise CliError(
            str(error), error_class=ToolErrorClass.PERMISSION_DENIED, reason="sandbox_unavailable"
        ) from error
    finally:
        around.close()


def _run(jail: Jail, cwd: str, argv: list[str]) -> int:
    """Run the program, and say what it left to be executed later, however it ended."""
    began = now()
    code, not_created = _run_at_terminal(jail, cwd, argv)
    left = take_stock(_searched(jail), began, jail.protected)
    _show_left(msgspec.structs.replace(left, refused=tuple(sorted(not_created))), jail)
    return code


def _searched(jail: Jail) -> tuple[str, ...]:
    return () if jail.names is None else jail.names.roots


def _show_left(left: LeftBehind, jail: Jail) -> None:
    for line in left.below(_searched(jail)).lines():
        sys.stderr.write(f"callgate: {line}\n")


def _run_at_terminal(jail: Jail, cwd: str, argv: list[str]) -> tuple[int, list[str]]:
    """Run the program as if namespaces worked here; try the machine out only if they do not."""
    command = Command(argv=tuple(argv), cwd=cwd, env=_environment())
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


async def _run_proxied(around: Sandbox, jail: Jail, cwd: str, argv: list[str]) -> int:
    """With named hosts: a proxy of ours stands between, so output goes through pipes."""
    await around.ready()
    plan = choose(jail, around.backends)
    home = around.surroundings.callgate_home
    launcher = around.launchers.jailed(plan, around.backends, home)

    def show(stream: Stream, data: bytes) -> None:
        target = sys.stdout if stream == "stdout" else sys.stderr
        target.buffer.write(data)
        target.buffer.flush()

    command = Command(argv=tuple(argv), cwd=cwd, env=_environment(), stdin=os.dup(0))
    began = now()
    async with await launcher.start(command, show) as running:
        ended = await running.wait()
    left = await asyncio.to_thread(take_stock, _searched(jail), began, jail.protected)
    _show_left(msgspec.structs.replace(left, refused=ended.left.refused), jail)
    if ended.code is not None:
        return ended.code
    return 128 + (ended.signal or 0)


def _jail(
    around: Sandbox,
    settings: Settings,
    home: str,
    workspace: str,
    program: str,
    agent: str | None,
    network: str | None,
) -> Jail:
    session = Session(workspace=workspace, extra_roots=tuple(_roots(settings, program, agent)))
    revealed: tuple[Root, ...] = ()
    if agent is not None:
        revealed = (Root(hook_directory(home, agent)), Root(sockets_directory(home)))
    word, hosts = _network(network, settings.hooks)
    enclosure = Enclosure(Profile.WORKSPACE, word, hosts=hosts, revealed=revealed)
    own = tuple(own_directories(agent)) if settings.hooks.home != "none" else ()
    readable = (*around.surroundings.readable, *own)
    around.renew(msgspec.structs.replace(around.surroundings, readable=readable))
    jail = around.jail(enclosure, session)
    limits = msgspec.structs.replace(jail.limits, cpu_seconds=None, output_bytes=None)
    jail = msgspec.structs.replace(jail, limits=limits, unix_sockets=agent is not None)
    rules = around.surroundings.path_rules
    if rules is not None and (bound := rules(workspace)):
        matches = find(bound, (workspace,), ())
        jail = with_masks(jail, matches.hidden, matches.read_only)
    return _with_names(without_later_runs(jail, workspace, agent), agent)


def _with_names(jail: Jail, agent: str | None) -> Jail:
    """The jail in which protected names count in the workspace, and not in the agent's own
    directories, and the agent may create what it cannot start without."""
    if jail.names is None:
        return jail
    own = tuple(map(os.path.realpath, own_directories(agent)))
    names = msgspec.structs.replace(
        jail.names,
        roots=tuple(root for root in jail.names.roots if not below_any(root, own)),
        allowed=STARTS_WITH.get(agent or "", ()),
    )
    return msgspec.structs.replace(jail, names=names)


def _roots(settings: Settings, program: str, agent: str | None) -> Iterable[Root]:
    found = shutil.which(program)
    if found is not None:
        for path in (found, os.path.realpath(found)):
            before, inside, _ = path.partition("/node_modules/")
            yield Root(before + "/node_modules" if inside else os.path.dirname(path))
    if settings.hooks.home != "none":
        for path in own_directories(agent):
            yield Root(path, writable=settings.hooks.home == "write")
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

    scripts.write_scripts(home, agent, hooks.wait_s)
    if agent == "claude":
        _seed_claude()
        path = os.path.join(hook_directory(home, agent), "run-settings.json")
        text = editing.with_hook(agent, home, "", hooks.wait_s)
        editing.apply(installations.Edit(path, None, text))
        return [argv[0], "--settings", path, *argv[1:]]
    if not editing.entries(agent, editing.read(user_file(agent)) or "", home):
        raise CliError(
            f"{AGENTS[agent].label} takes hooks from its settings only, and has none of callgate's",
            hint=f"callgate hook install {agent}, or --no-hooks to rely on the sandbox alone.",
        )
    return argv


def _seed_claude() -> None:
    """Claude Code keeps a file beside its directory, which it replaces: that cannot be shown alone.
    In the sandbox it keeps it inside, beginning with what it has outside."""
    if "CLAUDE_CONFIG_DIR" in os.environ:
        return
    user = os.path.expanduser("~")
    directory = os.path.join(user, ".claude")
    make_private_directory(directory)
    outside, inside = os.path.join(user, ".claude.json"), os.path.join(directory, ".claude.json")
    if os.path.exists(outside) and not os.path.exists(inside):
        shutil.copy(outside, inside)
    os.environ["CLAUDE_CONFIG_DIR"] = directory
