"""Checks of `callgate doctor` for this machine and the store: sandboxes, Python, the database.

Bugs of Python are detected by probes and not by version numbers, because a distribution can fix a
bug without a new version number. To add a bug, write a probe that returns whether this Python has
it, and put it into `BUGS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from callgate.cli.findings import Finding, Level
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.stores import store_table
from callgate.core.sessions import Session
from callgate.core.stores import (
    StoreDamaged,
    StoreError,
    StoreTooNew,
    StoreUnlocked,
)
from callgate.dispatch.commands.path_search import find
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.feature import port
from callgate.protocol.toolcalls.preview import Preview
from callgate.redaction.texts import redact
from callgate.sandbox import meters
from callgate.sandbox.allowed_hosts import is_public
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
"""Requests most guarantees, so that a backend can list the ones that it enforces."""


class ProfileSupport(NamedTuple):
    """Enforcement of a profile on this machine, or the reason why it is impossible."""

    profile: str
    backends: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    grades: tuple[str, ...] = ()
    """Guarantees that are enforced differently, or not enforced."""

    def __str__(self) -> str:
        if not self.missing:
            grades = f" ({'; '.join(self.grades)})" if self.grades else ""
            return f"{self.profile} by {' + '.join(self.backends)}{grades}"
        because = f" ({'; '.join(self.problems)})" if self.problems else ""
        return f"{self.profile} cannot be enforced: no {', '.join(self.missing)}{because}"


def profiles_here(sandbox: Sandbox, workspace: str) -> list[ProfileSupport]:
    """Return the support of every profile in a workspace, with the present settings."""
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
        plan = choose(jail, sandbox.backends, sandbox.surroundings.require)
        return ProfileSupport(name, plan.backends, grades=plan.grades)
    except CannotGuarantee as error:
        return ProfileSupport(name, (), tuple(sorted(error.missing)), error.problems)


_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
_MOST = "/proc/sys/user/max_user_namespaces"
_CONTAINERS = ("/.dockerenv", "/run/.containerenv")


def improvement() -> str | None:
    """Return a command that enables namespaces, and with them every guarantee."""
    if _says(_APPARMOR, "1"):
        return (
            "sudo install -m 644 deploy/apparmor/callgate /etc/apparmor.d/callgate"
            " && sudo apparmor_parser -r /etc/apparmor.d/callgate"
        )
    if _says(_CLONE, "0"):
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _says(_MOST, "0"):
        return "sudo sysctl -w user.max_user_namespaces=15000"
    if any(map(os.path.exists, _CONTAINERS)):
        return (
            "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
            " --security-opt systempaths=unconfined"
        )
    return None


def _says(path: str, value: str) -> bool:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip() == value
    except OSError:
        return False


def path_rules_here(sandbox: Sandbox, workspace: str) -> list[str]:
    """Summarize the path rules for commands. Raises `ToolError` if they cannot be enforced."""
    given = sandbox.surroundings.path_rules
    rules = () if given is None else given(workspace, "shell")
    if not rules:
        return []
    found = find(rules, (workspace,))
    hidden, read_only = len(found.hidden), len(found.read_only)
    return [f"path rules for commands: {len(rules)} ({hidden} hidden, {read_only} read-only here)"]


def promises(backend: Backend) -> list[str]:
    """Return the guarantees of one backend, in the terms of `docs/decide/sandbox.md`."""
    return sorted(backend.guarantees(_ANY))


def limits_here(limits: Limits, groups: ControlGroups | None) -> str:
    """Describe the limits of a command, and the mechanism that enforces each."""
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
    """Describe the limit on processes if no cgroup of version 2 counts them."""
    outside = process_bound() or "measured, and every command needs approval"
    if meters.has_own_pid_max():
        return f"pid_max in namespaces, otherwise {outside}"
    return outside if os.geteuid() == 0 else "RLIMIT_NPROC"


def seen(sandbox: Sandbox, workspace: str) -> dict[str, list[str]]:
    """Return the paths that a command in mode `ask` can see and write."""
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
    """Return the sandbox in the form of `--json`."""
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


_SECRET = "hunter2-9f8e7d6c5b4a"  # noqa: S105 - not a real secret

_LETTERS = r"(?:[^\\]|\\(?:[^u]|u[0-9a-f]{4}))*"


class PythonBug(NamedTuple):
    is_present: Callable[[], bool]
    """Whether this Python has the bug."""
    text: str
    breaks_promise: bool
    """Whether the bug breaks a promise, so that callgate must not be used with this Python."""


def _preview_is_wrong() -> bool:
    preview = Preview(strict=False)
    text = '{"type": "send_chat", "parameters": {"content": "a\\u00'
    return preview.feed(text) != "a"


def _secret_is_written() -> bool:
    return _SECRET in redact(f"curl -u me:{_SECRET} https://example.com && export TOKEN={_SECRET}")


def _loopback_is_public() -> bool:
    return any(map(is_public, ("127.0.0.1", "::1", "::ffff:127.0.0.1", "2002:7f00:1::")))


def _possessive_is_wrong() -> bool:
    found = re.match(f"{_LETTERS}+", "a\\u00")
    return found is None or found[0] != "a"


def _path_is_cut() -> bool:
    return os.path.normpath("a\0b") != "a\0b"


BUGS = (
    PythonBug(_preview_is_wrong, "its patterns misread a model's reply", True),
    PythonBug(_secret_is_written, "its patterns let secrets into the audit log", True),
    PythonBug(_loopback_is_public, "it treats this machine's own addresses as public", True),
    PythonBug(
        _possessive_is_wrong,
        "`re` mismatches possessive quantifiers and atomic groups (callgate uses none; see your "
        "own tools)",
        False,
    ),
    PythonBug(
        _path_is_cut,
        "os.path.normpath truncates a path at a zero byte (callgate refuses such paths; see your "
        "own tools)",
        False,
    ),
)


def bugs_here(bugs: Iterable[PythonBug] = BUGS) -> list[PythonBug]:
    """Return the bugs that the running Python has."""
    return [bug for bug in bugs if bug.is_present()]


NO_DATABASES = "[store] names a database, and the feature 'fleet' is not installed"
_WAIT_S = 2.0
"""Time limit for a busy file."""
_FIXES: dict[type[StoreError], str] = {
    StoreDamaged: "stop every callgate of this home and run `callgate sessions`: it saves a copy of"
    " the readable data, and shows how to replace the file with it",
    StoreTooNew: "update callgate",
    StoreUnlocked: "move the home to another disk, and set CALLGATE_HOME",
}
_NO_ACCESS = "check the owner and the mode of the file, and the disk"


def store_finding(home: Home) -> Finding:
    try:
        table = store_table(home)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {home.settings}")
    if not table.is_shared:
        return _file(home)
    of_database = port("database_finding")
    if of_database is None:
        return Finding(Level.FAILED, NO_DATABASES, "install callgate with all its features")
    found: Finding = of_database(home, table)
    return found


def _file(home: Home) -> Finding:
    from callgate.storage.sqlite.files import Location, inspect  # lazy: heavy  # noqa: PLC0415

    location = Location(home=home.path, wait_s=_WAIT_S)
    try:
        inspect(location)
    except StoreError as error:
        return Finding(Level.FAILED, str(error), _FIXES.get(type(error), _NO_ACCESS))
    begins = "" if os.path.exists(location.path) else " (the first call creates it)"
    return Finding(Level.OK, location.path + begins)
