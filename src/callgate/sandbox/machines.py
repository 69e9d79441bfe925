"""What this machine can do: each backend, tried out once, with the reason where it fails.

Nothing is concluded from files or versions. Landlock and seccomp are asked by system call;
namespaces and bubblewrap are used, for a command that does nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from callgate.sandbox import kernel, meters
from callgate.sandbox.backends import bubblewrap, cgroups, landlock, pids_groups, seccomp
from callgate.sandbox.jails import Jail
from callgate.sandbox.launch import Command
from callgate.sandbox.plans import (
    Backend,
    Bubblewrap,
    Landlock,
    Namespaces,
    Plan,
    Seatbelt,
    Seccomp,
)
from callgate.sandbox.processes.broker_client import (
    BrokerLauncher,
    BrokerProcess,
    RestrictionFailed,
)

T = TypeVar("T")
PATIENCE_S = 10.0

_ASK = Command(argv=("cat", "/proc/self/cgroup"), cwd="/", env={"PATH": os.defpath})
_TRUE = Command(argv=("true",), cwd="/", env={"PATH": os.defpath})
_TRIED = Jail(fresh_tmp=True, pid_namespace=True)
_REASONS = {
    errno.EPERM: "user namespaces are off, or not for us",
    errno.EACCES: "user namespaces are off, or not for us",
    errno.ENOSPC: "no user namespace is left (user.max_user_namespaces)",
    errno.EUSERS: "user namespaces are nested too deep",
    errno.ENOSYS: "the kernel is too old for namespaces as we make them",
    errno.EINVAL: "the kernel was built without namespaces",
}


class ControlGroups(msgspec.Struct, frozen=True):
    """Whether each command is in a group of its own, which ends at once. No backend: no promise
    depends on it."""

    problem: str | None = None
    controllers: tuple[str, ...] = ()
    """What is limited for a command as a whole, and not for each process."""


async def look(process: BrokerProcess, *, bwrap: str | None = None) -> tuple[Backend, ...]:
    """Every backend there is, each with what keeps it from working here. Takes 20 ms or so.

    `bwrap` is where bubblewrap is, if not where systems have it. The answer holds until the
    next boot.
    """
    filters = kernel.supported() and seccomp.works()
    return (
        Landlock(landlock.abi()),
        Seccomp(filters),
        await _namespaces(process, filters),
        await _bubblewrap(process, filters, bwrap),
        Seatbelt(),
    )


def look_now(*, bwrap: str | None = None) -> tuple[Backend, ...]:
    """Blocking `look`, with a broker of its own."""
    return _now(lambda process: look(process, bwrap=bwrap))


async def look_at_groups(process: BrokerProcess) -> ControlGroups:
    """Asked of a command, about itself."""
    output: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            launcher = BrokerLauncher(process, None)
            async with await launcher.start(_ASK, lambda stream, data: output.append(data)) as it:
                await it.wait()
        above = os.path.dirname(cgroups.own_path(b"".join(output).decode(errors="replace")))
        if os.path.basename(above).startswith(cgroups.PREFIX):
            return ControlGroups(None, tuple(sorted(cgroups.enabled(cgroups.directory(above)))))
        cgroups.usable_parents()
    except OSError as error:  # TimeoutError among them
        return ControlGroups(error.strerror or "a command that does nothing did not end")
    return ControlGroups("the kernel starts no process in a cgroup of ours")


def process_bound() -> str | None:
    """What in the kernel bounds the processes of a command that has neither a cgroup of version 2
    for that nor namespaces; None: nothing, and nothing runs unasked."""
    groups = pids_groups.find()
    if groups is not None:
        groups.close()
        return "cgroup v1"
    return "RLIMIT_NPROC" if os.geteuid() != 0 or meters.nproc_binds() else None


def look_at_groups_now() -> ControlGroups:
    return _now(look_at_groups)


def _now(work: Callable[[BrokerProcess], Awaitable[T]]) -> T:
    async def alone() -> T:
        process = BrokerProcess()
        try:
            return await work(process)
        finally:
            process.close()

    with ThreadPoolExecutor(1) as elsewhere:  # a loop may be running here already
        return elsewhere.submit(asyncio.run, alone()).result()


async def _namespaces(process: BrokerProcess, filters: bool) -> Namespaces:
    if not filters:
        return Namespaces("no system call filter, without which namespaces are no jail")
    plan = Plan(_TRIED, ("seccomp", "namespaces"))
    return Namespaces(await _try(BrokerLauncher(process, plan)))


async def _bubblewrap(process: BrokerProcess, filters: bool, path: str | None) -> Bubblewrap:
    found = bubblewrap.find(path)
    if found.path is None or found.problem is not None:
        return Bubblewrap(found.path, found.problem)
    if not filters:
        return Bubblewrap(found.path, "no system call filter, without which it is no jail")
    plan = Plan(_TRIED, ("seccomp", "bubblewrap"))
    problem = await _try(BrokerLauncher(process, plan, bwrap=found.path))
    return Bubblewrap(found.path, problem and f"bubblewrap: {problem}")


async def _try(launcher: BrokerLauncher) -> str | None:
    """What goes wrong when a command is started; None: nothing."""
    output: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with await launcher.start(_TRUE, lambda stream, data: output.append(data)) as it:
                ended = await it.wait()
    except TimeoutError:
        return "a command that does nothing did not end"
    except RestrictionFailed as error:
        return _REASONS.get(error.errno or 0, str(error))
    except OSError as error:
        return str(error)
    if ended.code == 0:
        return None
    lines = b"".join(output).decode(errors="replace").splitlines()
    return lines[-1] if lines else "a command that does nothing failed"
