"""A command and a plan become an order: what each backend of the plan is to do, in plain values."""

from __future__ import annotations

import functools
import os
import resource

from callgate.sandbox import bubblewrap, kernel, landlock, seccomp
from callgate.sandbox.jails import Jail, Limits, Network, is_below
from callgate.sandbox.launch import Command
from callgate.sandbox.orders import Layout, Order, Rules
from callgate.sandbox.plans import Plan
from callgate.sandbox.trees import MARK, Tree

_TMP = "/tmp"  # noqa: S108 compared with, not written to

_FAMILIES = {
    Network.NONE: (),
    Network.LOOPBACK: (seccomp.AF_INET, seccomp.AF_INET6),
    Network.ALL: (seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK),
}


def order(command: Command, plan: Plan | None, *, bwrap: str | None = None) -> Order:
    """How the broker is told. Without a plan nothing is restricted at all.

    `bwrap` is where bubblewrap is, for plans that use it. Raises OSError if the jail's paths
    are such that they cannot be protected.
    """
    marks = Tree().environment
    argv, cwd = command.argv, command.cwd
    made = Order(
        argv=[],
        env={os.fsencode(k): os.fsencode(v) for k, v in {**command.env, **marks}.items()},
        cwd=os.fsencode(cwd),
        limits=[],
        mark=int(marks[MARK].rpartition(".")[2]),
        layout=None,
        landlock=None,
        filter=b"",
        inherited=[],
        bare=plan is None,
        keep_capabilities=False,
    )
    if plan is not None:
        jail = plan.jail
        made["limits"] = limits(jail.limits)
        if "namespaces" in plan.backends:
            made["layout"] = layout(jail)
        if "landlock" in plan.backends:
            made["landlock"] = rules(jail, mounted="namespaces" in plan.backends)
        if "bubblewrap" in plan.backends:
            assert bwrap is not None
            argv = bubblewrap.arguments(bwrap, jail, bubblewrap.survey(jail), cwd, argv)
            made["keep_capabilities"] = True
            made["inherited"] = [call_filter(jail, mounted=True)]
        elif "seccomp" in plan.backends:
            made["filter"] = call_filter(jail, mounted="namespaces" in plan.backends)
    made["argv"] = [os.fsencode(argument) for argument in argv]
    return made


@functools.lru_cache(maxsize=64)
def call_filter(jail: Jail, *, mounted: bool) -> bytes:
    """`mounted`: in namespaces, which do some of this already, and only where it must be."""
    families = set(_FAMILIES[jail.network])
    if jail.unix_sockets:
        families.add(seccomp.AF_UNIX)
    unlimited = jail.unix_sockets and jail.network is Network.ALL
    return seccomp.program(
        kernel.machine(),
        families=None if unlimited else families,
        freeze_metadata=not jail.writable and not mounted,
        refuse_ipc=not mounted,
    )


def layout(jail: Jail) -> Layout:
    covered = [p for p in jail.readable if jail.fresh_tmp and p != _TMP and is_below(p, _TMP)]
    return Layout(
        writable=list(jail.writable),
        readable=covered,
        protected=list(jail.protected),
        hidden=list(jail.hidden),
        fresh_tmp=jail.fresh_tmp,
        own_network=jail.network is not Network.ALL,
    )


def rules(jail: Jail, *, mounted: bool) -> Rules:
    """`mounted`: what is hidden is covered already, and what is written to may be more."""
    return Rules(
        rules=[("/", landlock.READ | landlock.WRITE)] if mounted else landlock.rules(jail),
        version=landlock.abi(),
        tcp=jail.network is Network.NONE,
        scopes=landlock.SIGNALS | (0 if jail.unix_sockets else landlock.ABSTRACT_SOCKETS),
    )


def limits(wanted: Limits) -> list[tuple[int, int]]:
    values = {
        resource.RLIMIT_CPU: wanted.cpu_seconds,
        resource.RLIMIT_AS: wanted.memory_bytes,
        resource.RLIMIT_NPROC: wanted.processes,
        resource.RLIMIT_NOFILE: wanted.open_files,
        resource.RLIMIT_FSIZE: wanted.file_bytes,
        resource.RLIMIT_CORE: 0,
    }
    return [(kind, value) for kind, value in values.items() if value is not None]
