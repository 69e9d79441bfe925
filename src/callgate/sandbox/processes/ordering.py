"""A command and a plan become an order: what each backend of the plan is to do, in plain values."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Iterable, Mapping

from callgate.sandbox import kernel, meters
from callgate.sandbox.backends import bubblewrap, landlock, seccomp
from callgate.sandbox.backends.restrict import INHERITED
from callgate.sandbox.jails import Jail, Limits, Names, Network, below_any
from callgate.sandbox.launch import Command, with_proxy
from callgate.sandbox.orders import GroupLimit, Layout, Listener, Order, ProtectedNames, Rules
from callgate.sandbox.plans import Plan
from callgate.sandbox.processes import write_attempts
from callgate.sandbox.processes.command_marks import new_mark

_TMP = "/tmp"  # noqa: S108 compared with, not written to

_PROXY_PORT = 3128
"""On a loopback where nobody else is."""

_CALLS_OF_A_HOST = 24
"""A process that is talked to has the processor time of so many commands."""

_FAMILIES = {
    Network.NONE: (),
    Network.LOOPBACK: (seccomp.AF_INET, seccomp.AF_INET6),
    Network.HOSTS: (seccomp.AF_INET, seccomp.AF_INET6),
    Network.ALL: (seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK),
}


def order(command: Command, plan: Plan | None, *, bwrap: str | None = None) -> Order:
    """How the broker is told. Without a plan nothing is restricted at all.

    `bwrap` is where bubblewrap is, for plans that use it. Raises OSError if the jail's paths
    are such that they cannot be protected.
    """
    number, marks = new_mark()
    argv, cwd = command.argv, command.cwd
    result = Order(
        argv=[],
        env=_environment(command.env, marks),
        cwd=os.fsencode(cwd),
        limits=[],
        group=[],
        watched=(0, 0),
        bounded=False,
        mark=number,
        layout=None,
        landlock=None,
        filter=b"",
        placeholders=[],
        inherited=[],
        bare=plan is None,
        keep_capabilities=False,
    )
    if plan is not None:
        jail = plan.jail
        if jail.network is Network.HOSTS:
            env = with_proxy(command.env, _PROXY_PORT, served=[each.name for each in jail.hosts])
            result["env"] = _environment(env, marks)
        lives_on = command.stdin is not None
        result["limits"] = limits(jail.limits, "namespaces" in plan.backends, lives_on=lives_on)
        result["group"] = group_limits(jail.limits)
        result["watched"] = (jail.limits.memory_bytes or 0, jail.limits.processes or 0)
        result["bounded"] = jail.bounded
        if "namespaces" in plan.backends:
            result["layout"] = layout(jail)
        if "landlock" in plan.backends:
            result["landlock"] = rules(jail, mounted="namespaces" in plan.backends)
        listener = _listener(jail) if kernel.supported() else None
        if listener is not None:
            result["listener"] = listener
        has_names = listener is not None and listener["names"] is not None
        if "bubblewrap" in plan.backends:
            assert bwrap is not None
            survey = bubblewrap.survey(jail)
            argv = bubblewrap.arguments(bwrap, jail, survey, cwd, argv)
            result["placeholders"] = [(path, False) for path in survey.missing]
            result["placeholders"] += [(path, True) for path in survey.missing_directories]
            result["keep_capabilities"] = True
            result["inherited"].append(call_filter(jail, mounted=True, has_names=has_names))
        elif "seccomp" in plan.backends:
            mounted = "namespaces" in plan.backends
            result["filter"] = call_filter(jail, mounted=mounted, has_names=has_names)
        if command.git_config is not None:
            _configure_git(result, *command.git_config)
    result["argv"] = [os.fsencode(argument) for argument in argv]
    return result


def _configure_git(order: Order, directory: str, text: str) -> None:
    """Have git read a file that only the command has, in one repository and no other."""
    env = order["env"]
    count = env.get(b"GIT_CONFIG_COUNT", b"0")
    if not count.isdigit():
        return
    path = f"/proc/self/fd/{INHERITED + len(order['inherited'])}"
    order["inherited"].append(text.encode(errors="surrogateescape"))
    pattern = "".join(f"\\{each}" if each in "*?[\\" else each for each in directory)
    env[b"GIT_CONFIG_KEY_" + count] = os.fsencode(f"includeIf.gitdir:{pattern}.path")
    env[b"GIT_CONFIG_VALUE_" + count] = path.encode()
    env[b"GIT_CONFIG_COUNT"] = b"%d" % (int(count) + 1)


def _listener(jail: Jail) -> Listener | None:
    """The keeper's view of calls that could change a file, if somebody needs it."""
    names = jail.names if jail.writable else None
    if names is None and not jail.write_watch:
        return None
    return Listener(
        program=_listening(bool(jail.write_watch), names is not None),
        without=b"" if names is None else seccomp.without_set_gid(kernel.machine()),
        watched=[os.fsencode(path) for path in jail.write_watch],
        names=None if names is None else _protected_names(names),
        writable=[os.fsencode(path) for path in jail.writable],
    )


@functools.cache
def _listening(watches: bool, has_names: bool) -> bytes:
    return write_attempts.program(kernel.machine(), watches=watches, has_names=has_names)


def _protected_names(names: Names) -> ProtectedNames:
    def encoded(texts: Iterable[str]) -> list[bytes]:
        return sorted(map(os.fsencode, texts))

    return ProtectedNames(
        roots=encoded(names.roots),
        names=encoded(names.names),
        pairs=encoded(names.pairs),
        suffixes=encoded(names.suffixes),
        exempt=encoded(names.exempt),
        allowed=encoded(names.allowed),
    )


def _environment(env: Mapping[str, str], marks: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(k): os.fsencode(v) for k, v in {**env, **marks}.items()}


def call_filter(jail: Jail, *, mounted: bool, has_names: bool = False) -> bytes:
    """`mounted`: in namespaces, which do some of this already, and only where it must be.
    `has_names`: a listener looks at what is created, and at who sets the group of a directory."""
    frozen = not jail.writable and not mounted
    return _filter(
        jail.network,
        jail.unix_sockets,
        frozen,
        refuse_ipc=not mounted,
        refuse_set_gid=not has_names,
    )


@functools.lru_cache(maxsize=64)  # by what it depends on: hashing a whole jail takes longer
def _filter(
    network: Network,
    unix_sockets: bool,
    frozen: bool,
    *,
    refuse_ipc: bool,
    refuse_set_gid: bool,
) -> bytes:
    families = set(_FAMILIES[network])
    if unix_sockets:
        families.add(seccomp.AF_UNIX)
    unlimited = unix_sockets and network is Network.ALL
    return seccomp.program(
        kernel.machine(),
        families=None if unlimited else families,
        freeze_metadata=frozen,
        refuse_ipc=refuse_ipc,
        refuse_set_gid=refuse_set_gid,
    )


def layout(jail: Jail) -> Layout:
    replaced = dict(jail.replacements)
    covers = (*jail.opaque, *((_TMP,) if jail.fresh_tmp else ()), *replaced)
    covered = [
        path
        for path in jail.readable
        if path in replaced or (path not in covers and below_any(path, covers))
    ]
    result = Layout(
        writable=list(jail.writable),
        readable=covered,
        protected=list(jail.protected),
        hidden=list(jail.hidden),
        revealed=list(jail.revealed),
        opaque=list(jail.opaque),
        links=list(jail.links),
        fresh_tmp=jail.fresh_tmp,
        own_network=jail.network is not Network.ALL,
    )
    if replaced:
        result["replacements"] = replaced
    if jail.network is Network.HOSTS:
        result["proxy"] = _PROXY_PORT
    return result


def rules(jail: Jail, *, mounted: bool) -> Rules:
    """`mounted`: what is hidden is covered already, and what is written to may be more."""
    return Rules(
        rules=[("/", landlock.READ | landlock.WRITE)] if mounted else landlock.rules(jail),
        version=landlock.abi(),
        tcp=jail.network is Network.NONE,
        scopes=landlock.SIGNALS | (0 if jail.unix_sockets else landlock.ABSTRACT_SOCKETS),
    )


def limits(wanted: Limits, own_users: bool, *, lives_on: bool) -> list[tuple[int, int]]:
    """What the kernel counts for each process. `own_users`: in a user namespace of its own, where
    RLIMIT_NPROC counts the command alone; elsewhere it would count all that the user runs.
    `lives_on`: a host or server, which works for many calls.
    """
    cpu = wanted.cpu_seconds
    values = {
        resource.RLIMIT_CPU: cpu * _CALLS_OF_A_HOST if cpu and lives_on else cpu,
        resource.RLIMIT_NPROC: meters.slack(wanted.processes)
        if own_users and wanted.processes
        else None,
        resource.RLIMIT_NOFILE: wanted.open_files,
        resource.RLIMIT_FSIZE: wanted.file_bytes,
        resource.RLIMIT_CORE: 0,
    }
    return [(kind, value) for kind, value in values.items() if value is not None]


def most_output(command: Command, plan: Plan | None) -> int | None:
    """Bytes that a command may write to its streams. To whom one listens line by line, as to a
    host, may speak as long as it lives."""
    return None if plan is None or command.stdin is not None else plan.jail.limits.output_bytes


def group_limits(wanted: Limits) -> list[GroupLimit]:
    processes = wanted.processes and meters.slack(wanted.processes)
    values = {"memory.max": wanted.memory_bytes, "pids.max": processes}
    return [(name, value) for name, value in values.items() if value is not None]
