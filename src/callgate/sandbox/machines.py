"""Probes of this machine: each backend, tried once, with the reason for a failure.

The result does not rely on files or versions. Probes of Landlock and seccomp are system calls;
namespaces and bubblewrap start a command that does nothing.
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
from callgate.sandbox.backends import bubblewrap, cgroups, restrict, seccomp
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import (
    Backend,
    Bubblewrap,
    Command,
    Landlock,
    Namespaces,
    SandboxPlan,
    Seccomp,
    Supervisor,
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
_WRITES = Command(argv=("sh", "-c", ': > "$TMPDIR/file"'), cwd="/", env={"PATH": os.defpath})
_SUPERVISED = Jail(fresh_tmp=True)
_TRIED = Jail(fresh_tmp=True, pid_namespace=True)
_REASONS = {
    errno.EPERM: "user namespaces are off, or not permitted for us",
    errno.EACCES: "user namespaces are off, or not permitted for us",
    errno.ENOSPC: "the limit of user namespaces is reached (user.max_user_namespaces)",
    errno.EUSERS: "user namespaces are nested too deeply",
    errno.ENOSYS: "the kernel is too old for the namespaces that callgate uses",
    errno.EINVAL: "the kernel was built without namespaces",
}


class ControlGroups(msgspec.Struct, frozen=True):
    """Whether each command gets a separate control group, which can be killed as a whole. Not a
    backend, because no guarantee depends on it."""

    problem: str | None = None
    controllers: tuple[str, ...] = ()
    """Resources that are limited for a command as a whole, not for each process."""


async def look(process: BrokerProcess, *, bwrap: str | None = None) -> tuple[Backend, ...]:
    """Return all backends, each with its problem on this machine. Takes about 20 ms.

    `bwrap` is the path of bubblewrap, if it is not in a usual one. The answer is valid until the
    next boot.
    """
    filters = kernel.supported() and seccomp.works()
    version = restrict.abi()
    return (
        Landlock(version),
        Seccomp(filters),
        await _supervisor(process, filters and version > 0),
        await _namespaces(process, filters),
        await _bubblewrap(process, filters, bwrap),
    )


def look_now(*, bwrap: str | None = None) -> tuple[Backend, ...]:
    """Return the result of `look`. Blocks, and uses a separate broker."""
    return _now(lambda process: look(process, bwrap=bwrap))


async def look_at_groups(process: BrokerProcess) -> ControlGroups:
    """Return the control groups of a command, from a command that prints its own."""
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
    except OSError as error:  # includes TimeoutError
        return ControlGroups(error.strerror or "a command that does nothing did not end")
    return ControlGroups("the kernel starts no process in a cgroup that callgate created")


def process_bound() -> str | None:
    """Return the kernel's limit for the processes of a command without namespaces and without a
    limiting cgroup v2. None: there is none, and then no command runs without approval."""
    groups = cgroups.find_pids_groups()
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

    with ThreadPoolExecutor(1) as elsewhere:  # this thread may already run an event loop
        return elsewhere.submit(asyncio.run, alone()).result()


async def _namespaces(process: BrokerProcess, filters: bool) -> Namespaces:
    if not filters:
        return Namespaces("no system call filter, which a jail of namespaces needs")
    plan = SandboxPlan(_TRIED, ("seccomp", "namespaces"))
    return Namespaces(await _try(BrokerLauncher(process, plan)))


async def _supervisor(process: BrokerProcess, possible: bool) -> Supervisor:
    if not possible:
        return Supervisor("no Landlock or no system call filter, which the supervisor needs")
    plan = SandboxPlan(_SUPERVISED, ("landlock", "seccomp", "supervisor"))
    problem = await _try(BrokerLauncher(process, plan), _WRITES)
    busy = os.strerror(errno.EBUSY)
    if problem is not None and problem.startswith(busy):
        problem = "another program already supervises the system calls of this process tree"
    return Supervisor(problem)


async def _bubblewrap(process: BrokerProcess, filters: bool, path: str | None) -> Bubblewrap:
    found = bubblewrap.find(path)
    if found.path is None or found.problem is not None:
        return Bubblewrap(found.path, found.problem)
    if not filters:
        return Bubblewrap(found.path, "no system call filter, which the jail needs")
    plan = SandboxPlan(_TRIED, ("seccomp", "bubblewrap"))
    problem = await _try(BrokerLauncher(process, plan, bwrap=found.path))
    return Bubblewrap(found.path, problem and f"bubblewrap: {problem}")


async def _try(launcher: BrokerLauncher, command: Command = _TRUE) -> str | None:
    """Return the problem of starting a command; None if it works."""
    output: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with await launcher.start(
                command, lambda stream, data: output.append(data)
            ) as it:
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
