"""Conversion of a command and a plan to an order: the work of each backend, in plain values."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Iterable, Mapping

import msgspec

from callgate.sandbox import allowed_hosts, kernel, meters
from callgate.sandbox.backends import bubblewrap, restrict, seccomp
from callgate.sandbox.backends.restrict import INHERITED
from callgate.sandbox.jails import Jail, Limits, Names, Network, below_any
from callgate.sandbox.orders import (
    GroupLimit,
    Layout,
    Listener,
    Order,
    Performed,
    Preimages,
    ProtectedNames,
    Rules,
)
from callgate.sandbox.plans import Command, SandboxPlan, with_proxy
from callgate.sandbox.processes import local_services, performing, signals, write_attempts
from callgate.sandbox.processes.command_marks import new_mark

_TMP = "/tmp"  # noqa: S108 compared with, not written to

PROXY_PORT = 3128
"""On the command's private loopback, where no port is in use."""

_CALLS_OF_A_HOST = 24
"""Factor for the processor time of hosts and servers, which serve many calls."""

_FAMILIES = {
    Network.NONE: (),
    Network.LOOPBACK: (seccomp.AF_INET, seccomp.AF_INET6),
    Network.HOSTS: (seccomp.AF_INET, seccomp.AF_INET6),
    Network.ALL: (seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK),
}


def order(command: Command, plan: SandboxPlan | None, *, bwrap: str | None = None) -> Order:
    """Return the order for the broker. Without a plan it has no restrictions.

    `bwrap` is the path of bubblewrap, for plans that use it. Raises `OSError` if the jail's paths
    cannot be protected.
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
            env = with_proxy(command.env, PROXY_PORT, served=[each.name for each in jail.hosts])
            result["env"] = _environment(env, marks)
        lives_on = command.stdin is not None
        result["limits"] = limits(jail.limits, "namespaces" in plan.backends, lives_on=lives_on)
        result["group"] = group_limits(jail.limits)
        result["watched"] = (jail.limits.memory_bytes or 0, jail.limits.processes or 0)
        result["bounded"] = jail.bounded
        if "namespaces" in plan.backends:
            result["layout"] = layout(jail)
        if "landlock" in plan.backends:
            own_tmp = "supervisor" in plan.backends and jail.fresh_tmp
            confined = rules(
                _without_tmp(jail) if own_tmp else jail, mounted="namespaces" in plan.backends
            )
            if own_tmp:
                confined["own_tmp"] = _TMP
            result["landlock"] = confined
        preimages = _preimages(command, plan) if kernel.supported() else None
        if preimages is not None:
            result["preimages"] = preimages
        records = preimages is not None
        listener = _listener(plan, records=records) if kernel.supported() else None
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
            performs = "supervisor" in plan.backends or records
            result["filter"] = call_filter(
                jail,
                mounted=mounted,
                has_names=has_names or performs,
                performed=performs,
                checks_services=plan.checks_services,
            )
        if command.git_config is not None:
            _configure_git(result, *command.git_config)
    result["argv"] = [os.fsencode(argument) for argument in argv]
    return result


def _configure_git(order: Order, directory: str, text: str) -> None:
    """Make git read a configuration file that only the command has, in one repository only."""
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


def _preimages(command: Command, plan: SandboxPlan) -> Preimages | None:
    """Return where to store the changes of a command; None if they are not stored."""
    wanted = command.preimages
    if wanted is None or not plan.records_changes:
        return None
    writable = set(map(os.path.realpath, plan.jail.writable))
    roots = [root for root in wanted.roots if root in writable]
    if not roots:
        return None
    return Preimages(
        directory=wanted.directory,
        roots=[os.fsencode(root) for root in roots],
        max_file=wanted.max_file,
        max_total=wanted.max_total,
        key=wanted.key,
        modules="" if wanted.key is None else _modules(),
        excluded=[os.fsencode(name) for name in wanted.excluded],
        strict=wanted.strict,
        tolerant=wanted.tolerant,
    )


def _modules() -> str:
    """Return the directory that contains the package `cryptography`, which the broker, without the
    installed packages on its path, does not find."""
    import cryptography  # lazy: only with a key  # noqa: PLC0415

    return os.path.dirname(os.path.dirname(os.path.abspath(cryptography.__file__)))


def _listener(plan: SandboxPlan, *, records: bool) -> Listener | None:
    """Return the listener for calls that change files or connect; None if none is needed."""
    jail = plan.jail
    names = jail.names if jail.writable else None
    confines = "supervisor" in plan.backends
    performs = confines or records
    isolated = "namespaces" in plan.backends
    connects = jail.network is Network.HOSTS and (isolated or confines)
    checks = plan.checks_services
    if names is None and not jail.write_watch and not (performs or connects or checks):
        return None
    scoped = restrict.abi() >= restrict.SCOPES_SINCE
    result = Listener(
        program=_listening(
            bool(jail.write_watch),
            names is not None,
            connects or checks,
            performs,
            confines,
            scoped,
        ),
        without=b"" if names is None else seccomp.without_set_gid(kernel.machine()),
        watched=[os.fsencode(path) for path in jail.write_watch],
        names=None if names is None else _protected_names(names),
        writable=[os.fsencode(path) for path in jail.writable],
        connects=connects,
        isolated=isolated,
    )
    if checks:
        result["services"] = _services(jail)
    if performs:
        result["performed"] = Performed(
            confines=confines,
            writable=[os.fsencode(path) for path in jail.writable] if confines else [b"/"],
            protected=[os.fsencode(path) for path in jail.protected] if confines else [],
            file_bytes=jail.limits.file_bytes or 0,
            signals=confines and not scoped,
        )
    return result


def _services(jail: Jail) -> list[tuple[bytes, int]]:
    def address(name: str) -> bytes:
        return local_services.mapped(name) if allowed_hosts.is_address(name) else b""

    return [(address(each.name), port) for each in jail.services for port in each.ports]


@functools.cache
def _listening(
    watches: bool, has_names: bool, connects: bool, performs: bool, confines: bool, scoped: bool
) -> bytes:
    traps: seccomp.Traps = {"connect": None} if connects else {}
    if performs:
        traps |= performing.traps(confines=confines)
        traps |= signals.traps() if confines and not scoped else {}
        if watches:
            traps |= write_attempts.traps(watches=watches, has_names=has_names)
    elif watches or has_names:
        traps |= write_attempts.traps(watches=watches, has_names=has_names)
    return seccomp.notifying(kernel.machine(), traps)


def _protected_names(names: Names) -> ProtectedNames:
    def encoded(texts: Iterable[str]) -> list[bytes]:
        return sorted(map(os.fsencode, texts))

    return ProtectedNames(
        roots=encoded(names.roots),
        private=encoded(names.private),
        names=encoded(names.names),
        pairs=encoded(names.pairs),
        suffixes=encoded(names.suffixes),
        exempt=encoded(names.exempt),
        allowed=encoded(names.allowed),
    )


def _environment(env: Mapping[str, str], marks: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(k): os.fsencode(v) for k, v in {**env, **marks}.items()}


def call_filter(
    jail: Jail,
    *,
    mounted: bool,
    has_names: bool = False,
    performed: bool = False,
    checks_services: bool = False,
) -> bytes:
    """Return the system call filter of a jail. `mounted`: omit checks that namespaces make.
    `has_names`: a listener checks created names, and changes of a directory's set-gid bit."""
    frozen = not jail.writable and not mounted and not performed
    return _filter(
        jail.network,
        jail.unix_sockets,
        jail.own_sockets,
        frozen,
        refuse_ipc=not mounted,
        refuse_set_gid=not has_names,
        refuse_fast_open=jail.network is Network.HOSTS or checks_services,
        performed=performed,
        alone=mounted,
        signals_scoped=mounted or restrict.abi() >= restrict.SCOPES_SINCE,
    )


@functools.lru_cache(maxsize=64)  # keyed by single values, because hashing a jail takes longer
def _filter(
    network: Network,
    unix_sockets: bool,
    own_sockets: bool,
    frozen: bool,
    *,
    refuse_ipc: bool,
    refuse_set_gid: bool,
    refuse_fast_open: bool,
    performed: bool,
    alone: bool,
    signals_scoped: bool,
) -> bytes:
    families = set(_FAMILIES[network])
    if unix_sockets or own_sockets:
        families.add(seccomp.AF_UNIX)
    unlimited = unix_sockets and network is Network.ALL
    return seccomp.program(
        kernel.machine(),
        families=None if unlimited else families,
        refuse_fast_open=refuse_fast_open,
        only_connects=network is Network.HOSTS and not alone,
        freeze_metadata=frozen,
        refuse_ipc=refuse_ipc,
        refuse_set_gid=refuse_set_gid,
        performed=performed,
        alone=alone,
        signals_scoped=signals_scoped,
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
        result["proxy"] = PROXY_PORT
    return result


def rules(jail: Jail, *, mounted: bool) -> Rules:
    """Return the Landlock rules. `mounted`: the mounts already hide and protect paths."""
    return Rules(
        rules=[("/", restrict.READ | restrict.WRITE)] if mounted else restrict.rules(jail),
        version=restrict.abi(),
        tcp=jail.network is Network.NONE or (jail.network is Network.HOSTS and not mounted),
        scopes=restrict.SIGNALS | (0 if jail.unix_sockets else restrict.ABSTRACT_SOCKETS),
    )


def _without_tmp(jail: Jail) -> Jail:
    """Return the jail without the machine's /tmp, which no mount covers."""
    return msgspec.structs.replace(jail, opaque=(*jail.opaque, _TMP))


def limits(wanted: Limits, own_users: bool, *, lives_on: bool) -> list[tuple[int, int]]:
    """Return the kernel's limits for each process. `own_users`: in a separate user namespace, in
    which RLIMIT_NPROC counts only the command; otherwise it counts all processes of the user.
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


def most_output(command: Command, plan: SandboxPlan | None) -> int | None:
    """Return the maximum output of a command in bytes. A host or server has no limit, because its
    lines are processed as they arrive."""
    return None if plan is None or command.stdin is not None else plan.jail.limits.output_bytes


def group_limits(wanted: Limits) -> list[GroupLimit]:
    processes = wanted.processes and meters.slack(wanted.processes)
    values = {"memory.max": wanted.memory_bytes, "pids.max": processes}
    return [(name, value) for name, value in values.items() if value is not None]
