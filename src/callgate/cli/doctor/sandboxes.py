"""What `callgate doctor` says of the sandbox: the backends here, and what each profile misses."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import msgspec

from callgate.core.sessions import Session
from callgate.dispatch.commands.path_search import find
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.sandbox import meters
from callgate.sandbox.jails import Jail, Limits, Network, below_any
from callgate.sandbox.machines import ControlGroups, process_bound
from callgate.sandbox.plans import Backend, CannotGuarantee, choose
from callgate.sandbox.profiles import Profile

_ANY = Jail(
    writable=("/workspace",),
    protected=("/workspace/protected",),
    hidden=("/workspace/hidden",),
    fresh_tmp=True,
    pid_namespace=True,
)
"""Asks for most of what there is, so that a backend can say what it promises."""


class ProfileSupport(NamedTuple):
    """How a profile is enforced here, or why it cannot be."""

    profile: str
    backends: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.missing:
            return f"{self.profile} by {' + '.join(self.backends)}"
        because = f" ({'; '.join(self.problems)})" if self.problems else ""
        return f"{self.profile} cannot be kept: no {', '.join(self.missing)}{because}"


def profiles_here(sandbox: Sandbox, workspace: str) -> list[ProfileSupport]:
    """Every profile as it would be made in a workspace, with the settings as they are."""
    session = Session(workspace=workspace)
    surroundings = sandbox.surroundings
    wanted = {
        "read": Enclosure(Profile.READ),
        "workspace": Enclosure(Profile.WORKSPACE, surroundings.network, hosts=surroundings.hosts),
        "workspace with named hosts": Enclosure(Profile.WORKSPACE, Network.HOSTS),
        "workspace with network": Enclosure(Profile.WORKSPACE, Network.ALL),
        "open": Enclosure(Profile.OPEN, Network.ALL),
    }
    return [_support(name, sandbox.jail(each, session), sandbox) for name, each in wanted.items()]


def _support(name: str, jail: Jail, sandbox: Sandbox) -> ProfileSupport:
    try:
        return ProfileSupport(name, choose(jail, sandbox.backends).backends)
    except CannotGuarantee as error:
        return ProfileSupport(name, (), tuple(sorted(error.missing)), error.problems)


def path_rules_here(sandbox: Sandbox, workspace: str) -> list[str]:
    """What path rules keep from commands in a workspace. Raises `ToolError` if they cannot."""
    given = sandbox.surroundings.path_rules
    rules = () if given is None else given(workspace, "shell")
    if not rules:
        return []
    found = find(rules, (workspace,))
    hidden, read_only = len(found.hidden), len(found.read_only)
    return [f"path rules for commands: {len(rules)} ({hidden} hidden, {read_only} read-only here)"]


def promises(backend: Backend) -> list[str]:
    """What it guarantees by itself, in the words of `docs/decide/sandbox.md`."""
    return sorted(backend.guarantees(_ANY))


def limits_here(limits: Limits, groups: ControlGroups | None) -> str:
    """How much a command may take, and who sees to it."""
    by_group = () if groups is None or groups.problem is not None else groups.controllers
    bound = "measured" if groups is None else _bound_of_processes()
    keepers = {
        "memory_bytes": "cgroup" if "memory" in by_group else "measured",
        "processes": "cgroup" if "pids" in by_group else bound,
        "output_bytes": "counted",
    }
    lines = []
    for name, value in msgspec.structs.asdict(limits).items():
        by = keepers.get(name, "rlimit for each process")
        lines.append(f"{name} none" if value is None else f"{name} {value} ({by})")
    return "; ".join(lines)


def _bound_of_processes() -> str:
    """Where no cgroup of version 2 counts them."""
    outside = process_bound() or "measured, and nothing runs unasked"
    if meters.has_own_pid_max():
        return f"pid_max in namespaces, otherwise {outside}"
    return outside if os.geteuid() == 0 else "RLIMIT_NPROC"


def seen(sandbox: Sandbox, workspace: str) -> dict[str, list[str]]:
    """What a command in mode `ask` finds, for who wants to know before it runs."""
    around = Enclosure(Profile.WORKSPACE, sandbox.surroundings.network)
    jail = sandbox.jail(around, Session(workspace=workspace))
    shown = [path for path in jail.readable if below_any(path, jail.opaque)]
    outer = [path for path in shown if not below_any(os.path.dirname(path), shown)]
    return {
        "written": list(jail.writable),
        "read in directories that are empty otherwise": outer,
        "empty otherwise": list(jail.opaque),
        "hidden": [path for path in jail.hidden if os.path.lexists(path)],
    }


def described(sandbox: Sandbox, workspace: str) -> dict[str, Any]:
    """For `--json`."""
    return {
        "backends": [
            {
                "name": each.name,
                "works": each.problem is None,
                "problem": each.problem,
                "guarantees": promises(each),
            }
            for each in sandbox.backends
        ],
        "profiles": [
            {"guaranteed": not each.missing, **each._asdict()}
            for each in profiles_here(sandbox, workspace)
        ],
        "sight": seen(sandbox, workspace),
        "limits": msgspec.structs.asdict(sandbox.surroundings.limits),
    }
