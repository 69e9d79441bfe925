"""`callgate sandbox -- COMMAND`: a program, such as an agent, in the sandbox.

    settings -> paths of the program -> jail -> plan -> order -> `run`

The workspace is writable and callgate's home is masked. The program can read the same files of the
user's home as any sandboxed command, and use the agent's own directories (`agent_homes`). A known
agent gets its hooks for this run. Files in the workspace that an agent or git would execute later
outside the sandbox are read-only, or stay missing. The program uses the input, output and terminal
of this process, and ends with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from callgate.cli.errors import CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import Settings
from callgate.core.commands import Command, LeftBehind
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.core.sessions import Root, Session
from callgate.dispatch.commands.path_search import find
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.features.agents import known
from callgate.features.agents.agent_homes import HomeView, open_view
from callgate.features.agents.known import (
    hook_directory,
    hooked,
    settings_files,
    sockets_directory,
    user_file,
)
from callgate.features.agents.settings import AgentsSettings, HooksTable
from callgate.instance.wiring.runtime import surroundings
from callgate.sandbox import allowed_hosts, kernel, meters, sight
from callgate.sandbox.backends import namespaces, restrict, seccomp
from callgate.sandbox.backends.restrict import STEPS
from callgate.sandbox.jails import (
    Guarantee,
    Jail,
    Network,
    Profile,
    below_any,
    is_below,
    with_masks,
)
from callgate.sandbox.plans import (
    Backend,
    Bubblewrap,
    CannotGuarantee,
    Landlock,
    Namespaces,
    SandboxPlan,
    Seccomp,
    choose,
)
from callgate.sandbox.processes import keeper
from callgate.sandbox.processes.ordering import order as make_order
from callgate.sandbox.processes.watch import (
    END,
    ENDED,
    EXITED,
    LONGEST_MESSAGE,
    MESSAGE,
    NOT_CREATED,
    REFUSED,
)
from callgate.socket.instances import lasting
from callgate.workspace.executed_later import now, take_stock

if TYPE_CHECKING:
    from callgate.sandbox.orders import Order


_GRACE_S = 5.0
NOT_STARTED, NOT_FOUND = 126, 127


class StepRefused(OSError):
    """The system refused a step of the sandbox. The program was not started."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(number, os.strerror(number))
        self.step = step


def run(order: Order) -> tuple[int, list[str]]:
    """Run the program of an order.

    Returns its exit code, or 128 plus the signal number, and the files that it was not allowed to
    create. Raises `StepRefused`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    streams = (os.dup(0), os.dup(1), os.dup(2))
    lease = os.open(os.devnull, os.O_RDONLY)
    owner = (os.geteuid(), os.getegid())
    sys.stdout.flush()
    layout = order["layout"]
    try:
        pid = os.fork() if layout is None else namespaces.begin(layout["own_network"])
    except OSError as error:
        for descriptor in (*streams, lease):
            os.close(descriptor)
        ours.close()
        theirs.close()
        raise StepRefused("namespaces", error.errno or 0) from error
    if pid == 0:
        code = 1
        try:
            ours.close()
            if layout is None:
                _guard()
            code = 1 if keeper.keep(order, theirs, streams, owner, lease) else 0
        finally:
            os._exit(code)
    theirs.close()
    for descriptor in (*streams, lease):
        os.close(descriptor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: _stop(ours))
    try:
        return _wait(ours)
    finally:
        os.waitpid(pid, 0)
        ours.close()


def _guard() -> None:
    """Fork, and return in the child, the keeper. The parent ends orphans of a killed keeper."""
    kernel.become_subreaper()
    child = os.fork()
    if child == 0:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    _, status = os.waitpid(child, 0)
    until = time.monotonic() + _GRACE_S
    while (left := meters.descendants(os.getpid())) and time.monotonic() < until:
        for each in left:
            meters.signal_to(each, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(0.005)
    os._exit(1 if status else 0)


def _stop(control: socket.socket) -> None:
    try:
        control.send(END.pack(_GRACE_S))
    except OSError:
        pass  # the program has ended


def _wait(control: socket.socket) -> tuple[int, list[str]]:
    code, not_created = NOT_STARTED, []
    while message := control.recv(LONGEST_MESSAGE):
        if message[0] == NOT_CREATED:
            not_created.append(os.fsdecode(message[1:]))
            continue
        if len(message) != MESSAGE.size:
            continue
        kind, first, second, *_ = MESSAGE.unpack(message)
        if kind == REFUSED:
            raise StepRefused(STEPS[first] if first < len(STEPS) else "start", second)
        if kind == EXITED:
            code = os.waitstatus_to_exitcode(first)
            code = code if code >= 0 else 128 - code
        if kind == ENDED:
            break
    return code, not_created


def without_later_runs(jail: Jail, workspace: str, *, is_agent: bool) -> Jail:
    """Return the jail with protection of files that an agent or git executes outside of it.

    A path through a link cannot be protected, because the program could replace the link. An agent
    does not start in this case.
    """
    root, real = os.path.abspath(workspace), os.path.realpath(workspace)
    protected = set(jail.protected)
    for path in map(os.path.abspath, _run_later(workspace)):
        if not is_below(path, root) or path == root or not below_any(real, jail.writable):
            continue
        path_below = os.path.normpath(os.path.join(real, os.path.relpath(path, root)))
        if below_any(path_below, (*jail.protected, *(path for path, _ in jail.replacements))):
            continue
        link = _link_on(path_below, real)
        if link is None:
            protected.add(path_below)
        elif is_agent:
            raise CliError(
                f"{link} is a symbolic link, which the sandbox cannot protect from replacement",
                hint="Replace the link with its target.",
            )
    return msgspec.structs.replace(jail, protected=tuple(sorted(protected)))


def _link_on(path: str, root: str) -> str | None:
    """Return the first link on the way from a root to a path."""
    step = root
    for name in os.path.relpath(path, root).split("/"):
        step = os.path.join(step, name)
        if os.path.islink(step):
            return step
    return None


def _run_later(workspace: str) -> Iterable[str]:
    for each in hooked():
        for path in settings_files(each, workspace):
            # No placeholder for a missing file of the workspace: the keeper refuses to create it.
            if os.path.lexists(path):
                yield path


def sandbox(options: Namespace) -> int:
    refuse_within_a_call("callgate sandbox")
    if not options.words:
        raise CliError("the command is missing", hint="callgate sandbox -- COMMAND ...")
    home = Home.from_environment()
    try:
        settings = load_user(home)[0]
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    if settings.sandbox == "off":
        raise CliError("the sandbox is turned off in the settings: [sandbox]")
    argv: list[str] = list(options.words)
    agent = _agent_of(argv[0])
    if agent is not None and not options.no_hooks:
        _refuse_switches(home.path, agent, argv, options.workspace)
        argv = _with_hooks(home.path, agent, argv, settings.of(AgentsSettings).hooks)
    workspace = os.path.realpath(options.workspace)
    around = Sandbox(surroundings(home, settings))
    env = _environment()
    try:
        with _view(settings.of(AgentsSettings).hooks, home.path, argv[0], workspace, env) as view:
            network = _network(options.network, settings.of(AgentsSettings).hooks)
            jail = _jail(around, settings, workspace, argv[0], agent, network, view)
            if agent is not None and jail.network is Network.ALL:
                services = (*jail.services, *known.local_services(agent, env, workspace))
                jail = msgspec.structs.replace(jail, services=services)
            command = Command(argv=tuple(argv), cwd=workspace, env={**env, **view.environment})
            if jail.network is Network.HOSTS:
                asks = network[0] is Network.ASK
                return asyncio.run(_run_with_hosts(around, jail, command, options, asks=asks))
            return _run(jail, command, around.surroundings.require)
    except CannotGuarantee as error:
        raise CliError(
            str(error), error_class=ToolErrorClass.PERMISSION_DENIED, reason="sandbox_unavailable"
        ) from error
    finally:
        around.close()


def _view(
    hooks: HooksTable, home: str, program: str, workspace: str, env: Mapping[str, str]
) -> HomeView:
    """Return the directories of the agent; none for another program."""
    agent = known.find([program])[1] if hooks.home != "none" else known.UNKNOWN
    user = os.path.expanduser("~")
    persists = hooks.home == "write"
    try:
        return open_view(agent, user, env, home, workspace=workspace, persists=persists)
    except ToolError as error:
        raise CliError(error.message) from error


def _run(jail: Jail, command: Command, require: tuple[Guarantee, ...]) -> int:
    """Run the program, then report the files that it left for later execution."""
    began = now()
    code, not_created = _run_at_terminal(jail, command, require)
    left = take_stock(_searched(jail), began, jail.protected, jail.writable)
    _show_left(msgspec.structs.replace(left, refused=tuple(sorted(not_created))), jail)
    return code


def _searched(jail: Jail) -> tuple[str, ...]:
    return () if jail.names is None else jail.names.roots


def _show_left(left: LeftBehind, jail: Jail) -> None:
    for line in left.below(_searched(jail)).lines():
        sys.stderr.write(f"callgate: {line}\n")


def _run_at_terminal(
    jail: Jail, command: Command, require: tuple[Guarantee, ...]
) -> tuple[int, list[str]]:
    """Run the program, assuming that namespaces work. If they fail, probe the machine and retry."""
    try:
        try:
            return run(make_order(command, choose(jail, _expected(), jail.needs)))
        except (CannotGuarantee, StepRefused) as error:
            if isinstance(error, StepRefused) and error.step != "namespaces":
                raise
        from callgate.sandbox import machines  # lazy: where the first try fails  # noqa: PLC0415

        backends = machines.look_now()
        bwrap = next((each.path for each in backends if isinstance(each, Bubblewrap)), None)
        plan = choose(jail, backends, require)
        _show_grades(plan)
        return run(make_order(command, plan, bwrap=bwrap))
    except StepRefused as error:
        sys.stderr.write(f"callgate: nothing was run: {error.step}: {error.strerror}\n")
        is_missing = error.step == "exec"
        return (NOT_FOUND if is_missing else NOT_STARTED), []


def _show_grades(plan: SandboxPlan) -> None:
    for line in plan.grades:
        sys.stderr.write(f"callgate: sandbox: {line}\n")


def _expected() -> tuple[Backend, ...]:
    """Return the usual backends without a probe of namespaces, which takes 60 ms."""
    filters = kernel.supported() and seccomp.works()
    problem = None if filters else "no system call filter, which namespaces need"
    return Landlock(restrict.abi()), Seccomp(filters), Namespaces(problem)


def _environment() -> dict[str, str]:
    withheld = ("CALLGATE_", "LD_PRELOAD", "BASH_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(withheld)}


async def _run_with_hosts(
    around: Sandbox, jail: Jail, command: Command, options: Namespace, *, asks: bool
) -> int:
    """Run the program with access to some hosts: through callgate, with piped output."""
    from callgate.features.agents.commands.sandbox_network import run_with_hosts  # lazy: for hosts  # noqa: PLC0415

    began = now()
    _, ended = await run_with_hosts(around, jail, command, options, asks=asks)
    known, writable = jail.protected, jail.writable
    left = await asyncio.to_thread(take_stock, _searched(jail), began, known, writable)
    _show_left(msgspec.structs.replace(left, refused=ended.left.refused), jail)
    for line in ended.refusals:
        sys.stderr.write(f"callgate: not reached: {line}\n")
    if ended.code is not None:
        return ended.code
    return 128 + (ended.signal or 0)


def _jail(
    around: Sandbox,
    settings: Settings,
    workspace: str,
    program: str,
    agent: str | None,
    network: tuple[Network, tuple[allowed_hosts.AllowedHost, ...]],
    view: HomeView,
) -> Jail:
    session = Session(workspace=workspace, extra_roots=tuple(_roots(settings, program)))
    revealed, home = view.roots, around.surroundings.callgate_home
    if agent is not None:
        revealed += (Root(hook_directory(home, agent)), Root(sockets_directory(home)))
    word, hosts = network
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
        for path in sight.of_program([found], os.path.dirname(found), os.environ, user):
            yield Root(path)
    for root in settings.workspace.extra_roots:
        yield Root(os.path.expanduser(root.path), writable=root.access == "write")


def _network(
    given: str | None, hooks: HooksTable
) -> tuple[Network, tuple[allowed_hosts.AllowedHost, ...]]:
    word: str | list[str] = hooks.network if given is None else given
    if word in ("none", "ask", "all"):
        return Network(str(word)), ()
    names = word.split(",") if isinstance(word, str) else word
    try:
        return Network.HOSTS, tuple(map(allowed_hosts.parse, names))
    except ValueError as error:
        raise CliError(f"--network: {error}") from None


def _agent_of(program: str) -> str | None:
    name = os.path.basename(program)
    return next((each for each in known.hooked() if known.KNOWN[each].program == name), None)


def _refuse_switches(home: str, agent: str, argv: list[str], workspace: str) -> None:
    """Refuse to start an agent that would run without its hooks. Raises `CliError`."""
    from callgate.features.agents.hooks import hook_switches  # lazy: for agents alone  # noqa: PLC0415

    switches = known.hooks_of(agent).switches
    found = hook_switches.in_arguments(agent, argv[1:])
    found += hook_switches.in_environment(agent, os.environ)
    if switches.outranking:
        found += hook_switches.in_managed_file(agent, home)
        found += hook_switches.in_variables(agent, os.path.realpath(workspace))
    else:
        found += hook_switches.in_files(agent, os.path.realpath(workspace), home)
    if found:
        raise CliError(
            f"{known.KNOWN[agent].label} would run without callgate's hooks: {'; '.join(found)}",
            hint="Remove these, or add --no-hooks to rely on the sandbox alone.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="hooks_turned_off",
        )
    # Variables in the environment take precedence over the workspace's files of variables.
    os.environ.update({name: "0" for name in switches.variables if name not in os.environ})


def _with_hooks(home: str, agent: str, argv: list[str], hooks: HooksTable) -> list[str]:
    """Return the command line with the agent's hooks for this run."""
    if not lasting(home):
        raise CliError(
            "no callgate instance is running, so every call would be refused",
            hint="callgate serve --detach, or --no-hooks to rely on the sandbox alone.",
        )
    from callgate.features.agents.commands import editing  # lazy: only with hooks  # noqa: PLC0415

    editing.write_scripts(home, agent, hooks.wait_s)
    switches = known.hooks_of(agent).switches
    if switches.run_settings:  # takes precedence over settings of the user and of a repository
        path = os.path.join(hook_directory(home, agent), "run-settings.json")
        on = json.dumps(switches.run_settings)
        text = editing.with_hook(agent, home, on, hooks.wait_s)
        editing.apply(editing.Edit(path, None, text))
        return [argv[0], *switches.outranking, path, *argv[1:]]
    if not editing.entries(agent, editing.read(user_file(agent)) or "", home):
        raise CliError(
            f"{known.KNOWN[agent].label} takes hooks only from its settings, which lack callgate's"
            " hook",
            hint=f"callgate hook install {agent}, or --no-hooks to rely on the sandbox alone.",
        )
    return [argv[0], *switches.outranking, *argv[1:]]
