"""What a jail needs, what each backend promises, and the refusal where they do not meet."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from callgate.sandbox import machines, profiles
from callgate.sandbox.jails import Guarantee as G
from callgate.sandbox.jails import Jail, Limits, Network
from callgate.sandbox.plans import (
    Backend,
    Bubblewrap,
    CannotGuarantee,
    Landlock,
    Namespaces,
    SandboxPlan,
    Seccomp,
    Supervisor,
    choose,
)
from callgate.sandbox.processes.broker_client import BrokerProcess
from callgate.sandbox.profiles import SandboxPaths
from tests.needs import needs

PLACES = SandboxPaths(
    workspace="/ws",
    home="/home/me",
    callgate_home="/home/me/.callgate",
    protected=("/ws/.git/hooks",),
)
READ, WORKSPACE, OPEN = profiles.read(PLACES), profiles.workspace(PLACES), profiles.open(PLACES)
PROFILES = {"read": READ, "workspace": WORKSPACE, "open": OPEN}

LANDLOCK, SECCOMP, NAMESPACES = Landlock(7), Seccomp(True), Namespaces()
BUBBLEWRAP, SUPERVISOR = Bubblewrap("/usr/bin/bwrap"), Supervisor()
NO_LANDLOCK, NO_NAMESPACES = Landlock(0), Namespaces("user namespaces are off")
NO_BUBBLEWRAP = Bubblewrap(None, "bubblewrap is not installed")
SETUID_BUBBLEWRAP = Bubblewrap("/usr/bin/bwrap", "bubblewrap is setuid")

ALWAYS = {
    G.NO_PTRACE,
    G.NO_PROCESS_DETAILS,
    G.NO_SIGNALS_OUT,
    G.NO_SHARED_MEMORY,
    G.NO_IO_URING,
    G.NO_KERNEL_DOORS,
    G.NO_NEW_PRIVILEGES,
    G.NO_SURVIVORS,
}
OFFLINE = {G.NO_NETWORK_TCP, G.NO_NETWORK_UDP, G.NO_NETWORK_OTHER}
NO_SOCKETS = {G.NO_UNIX_SOCKETS, G.ABSTRACT_SOCKETS_BLOCKED}
UNCHANGED = {G.WRITES_CONFINED, G.METADATA_FROZEN}


@pytest.mark.parametrize(
    ("jail", "needs"),
    [
        (READ, ALWAYS | OFFLINE | NO_SOCKETS | UNCHANGED | {G.HIDDEN_MASKED}),
        (
            WORKSPACE,
            ALWAYS
            | OFFLINE
            | NO_SOCKETS
            | UNCHANGED
            | {G.HIDDEN_MASKED, G.PROTECTED_CARVED_OUT, G.FRESH_TMP, G.PID_NAMESPACE},
        ),
        (OPEN, ALWAYS | {G.HIDDEN_MASKED, G.PROTECTED_CARVED_OUT}),
        (
            Jail(readable=("/usr",), network=Network.LOOPBACK, limits=Limits(cpu_seconds=1)),
            ALWAYS | OFFLINE | NO_SOCKETS | UNCHANGED | {G.READS_CONFINED, G.OWN_LOOPBACK, G.LIMITS},
        ),
        (
            Jail(network=Network.HOSTS),
            ALWAYS | OFFLINE | NO_SOCKETS | UNCHANGED | {G.OWN_LOOPBACK, G.NAMED_HOSTS},
        ),
        (Jail(network=Network.ALL, unix_sockets=True), ALWAYS | UNCHANGED | {G.NO_LOCAL_SERVICES}),
    ],
    ids=["read", "workspace", "open", "loopback", "hosts", "online"],
)
def test_a_jail_needs_exactly_the_promises_that_it_implies(jail: Jail, needs: set[G]) -> None:
    assert jail.needs == needs


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a//b", "/a/", "", "/a\0b", "~/x", "./a", "//a"])
@pytest.mark.parametrize("field", ["readable", "writable", "protected", "hidden", "opaque"])
def test_a_path_that_is_not_plain_makes_no_jail(field: str, path: str) -> None:
    with pytest.raises(ValueError):
        Jail(**{field: (path,)})


@pytest.mark.parametrize(
    ("jail", "backends", "chosen"),
    [
        # The cheapest that is enough, in the order in which they were offered.
        (READ, [LANDLOCK, SECCOMP, NAMESPACES, BUBBLEWRAP], ("seccomp", "namespaces")),
        (WORKSPACE, [LANDLOCK, SECCOMP, NAMESPACES, BUBBLEWRAP], ("seccomp", "namespaces")),
        (OPEN, [LANDLOCK, SECCOMP, NAMESPACES, BUBBLEWRAP], ("seccomp", "namespaces")),
        (Jail(), [LANDLOCK, SECCOMP, NAMESPACES, BUBBLEWRAP], ("landlock", "seccomp")),
        # Reading can only be confined by Landlock, or by bubblewrap.
        (
            Jail(readable=("/usr",), fresh_tmp=True),
            [LANDLOCK, SECCOMP, NAMESPACES, BUBBLEWRAP],
            ("landlock", "seccomp", "namespaces"),
        ),
        # Only where we make the network ourselves can we listen in it.
        (Jail(network=Network.HOSTS), [LANDLOCK, SECCOMP, NAMESPACES, BUBBLEWRAP], ("seccomp", "namespaces")),
        # Machines on which something is missing.
        (READ, [LANDLOCK, SECCOMP, NO_NAMESPACES, NO_BUBBLEWRAP], ("landlock", "seccomp")),
        (READ, [NO_LANDLOCK, SECCOMP, NO_NAMESPACES, BUBBLEWRAP], ("seccomp", "bubblewrap")),
        (WORKSPACE, [LANDLOCK, SECCOMP, NO_NAMESPACES, BUBBLEWRAP], ("seccomp", "bubblewrap")),
        (WORKSPACE, [NO_LANDLOCK, SECCOMP, NAMESPACES, NO_BUBBLEWRAP], ("seccomp", "namespaces")),
        (WORKSPACE, [LANDLOCK, SECCOMP, SUPERVISOR, NAMESPACES, BUBBLEWRAP], ("seccomp", "namespaces")),
        (WORKSPACE, [LANDLOCK, SECCOMP, SUPERVISOR, NO_NAMESPACES, BUBBLEWRAP], ("seccomp", "bubblewrap")),
    ],
)
def test_the_cheapest_backends_that_keep_all_promises_are_chosen(
    jail: Jail, backends: list[Backend], chosen: tuple[str, ...]
) -> None:
    assert choose(jail, backends) == SandboxPlan(jail, chosen)


NEEDS_MOUNTS = {G.PROTECTED_CARVED_OUT, G.FRESH_TMP, G.PID_NAMESPACE, G.METADATA_FROZEN}


@pytest.mark.parametrize(
    ("jail", "backends", "missing", "problems"),
    [
        (
            WORKSPACE,
            [LANDLOCK, SECCOMP, NO_NAMESPACES, NO_BUBBLEWRAP],
            NEEDS_MOUNTS,
            ("user namespaces are off", "bubblewrap is not installed"),
        ),
        (
            WORKSPACE,
            [LANDLOCK, SECCOMP, NO_NAMESPACES, SETUID_BUBBLEWRAP],
            NEEDS_MOUNTS,
            ("user namespaces are off", "bubblewrap is setuid"),
        ),
        (
            OPEN,
            [LANDLOCK, SECCOMP, NO_NAMESPACES, NO_BUBBLEWRAP],
            {G.HIDDEN_MASKED, G.PROTECTED_CARVED_OUT},
            ("user namespaces are off", "bubblewrap is not installed"),
        ),
        (
            READ,
            [NO_LANDLOCK, SECCOMP, NO_NAMESPACES, SETUID_BUBBLEWRAP],
            {G.WRITES_CONFINED, G.HIDDEN_MASKED, G.NO_PTRACE, G.NO_PROCESS_DETAILS, G.NO_SIGNALS_OUT},
            (
                "no Landlock in the kernel, or a sandbox around us hides it",
                "user namespaces are off",
                "bubblewrap is setuid",
            ),
        ),
        (
            READ,
            [Landlock(5), SECCOMP, NO_NAMESPACES, NO_BUBBLEWRAP],
            {G.NO_SIGNALS_OUT},
            ("user namespaces are off", "bubblewrap is not installed"),
        ),
        (
            READ,
            [LANDLOCK, Seccomp(False), NAMESPACES, BUBBLEWRAP],
            {G.NO_UNIX_SOCKETS, G.NO_IO_URING, G.NO_KERNEL_DOORS},
            ("no system call filter for this kernel and processor",),
        ),
        (
            Jail(network=Network.HOSTS),
            [LANDLOCK, SECCOMP, NO_NAMESPACES, BUBBLEWRAP],
            {G.NAMED_HOSTS},
            ("user namespaces are off",),
        ),
        (
            Jail(network=Network.LOOPBACK),
            [LANDLOCK, SECCOMP, NO_NAMESPACES, NO_BUBBLEWRAP],
            {G.OWN_LOOPBACK, G.NO_NETWORK_TCP, G.NO_NETWORK_UDP},
            ("user namespaces are off", "bubblewrap is not installed"),
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name_with_what_is_missing(
    jail: Jail, backends: list[Backend], missing: set[G], problems: tuple[str, ...]
) -> None:
    with pytest.raises(CannotGuarantee) as refused:
        choose(jail, backends)
    assert (refused.value.missing, refused.value.problems) == (missing, problems)
    assert refused.value.reason == "sandbox_unavailable"


def test_without_namespaces_the_supervisor_enforces_some_promises_differently() -> None:
    plan = choose(WORKSPACE, [LANDLOCK, SECCOMP, SUPERVISOR, NO_NAMESPACES, NO_BUBBLEWRAP])
    assert plan.backends == ("landlock", "seccomp", "supervisor")
    assert [promise for promise, _ in plan.differently] == [G.FRESH_TMP, G.PID_NAMESPACE]
    assert plan.missing == ()


@pytest.mark.parametrize("promise", [G.FRESH_TMP, G.PID_NAMESPACE])
def test_a_required_promise_is_kept_by_its_usual_means_or_nothing_runs(promise: G) -> None:
    backends = [LANDLOCK, SECCOMP, SUPERVISOR, Namespaces("user namespaces are off")]
    assert promise in dict(choose(WORKSPACE, backends).differently)
    with pytest.raises(CannotGuarantee) as refused:
        choose(WORKSPACE, backends, require=[promise])
    assert refused.value.missing == {promise}
    assert refused.value.problems == ("user namespaces are off",)
    assert choose(WORKSPACE, [*backends[:3], NAMESPACES], require=[promise]).differently == ()


def test_a_promise_that_is_not_required_may_be_missing_and_is_named() -> None:
    jail = Jail(writable=("/tmp",), fresh_tmp=True)
    assert choose(jail, [LANDLOCK, SECCOMP, NAMESPACES]).missing == (G.FRESH_TMP,)
    with pytest.raises(CannotGuarantee) as refused:
        choose(jail, [LANDLOCK, SECCOMP, NAMESPACES], require=[G.FRESH_TMP])
    assert refused.value.missing == {G.FRESH_TMP}


def test_the_backends_with_the_fewest_missing_promises_are_chosen_before_the_cheapest() -> None:
    jail = Jail(fresh_tmp=True)
    assert choose(jail, [LANDLOCK, SECCOMP]).missing == (G.FRESH_TMP,)
    assert choose(jail, [LANDLOCK, SECCOMP, NAMESPACES]) == SandboxPlan(jail, ("seccomp", "namespaces"))


def test_a_supervisor_alone_does_nothing() -> None:
    for backends in ([SUPERVISOR], [SUPERVISOR, SECCOMP], [SUPERVISOR, LANDLOCK]):
        with pytest.raises(CannotGuarantee):
            choose(WORKSPACE, backends)


def test_secrets_in_a_writable_directory_need_mounts() -> None:
    jail = Jail(writable=("/ws",), hidden=("/ws/secret",))
    with pytest.raises(CannotGuarantee) as refused:
        choose(jail, [LANDLOCK, SECCOMP, SUPERVISOR])
    assert refused.value.missing == {G.HIDDEN_MASKED}


def test_with_no_backend_at_all_everything_is_missing() -> None:
    for jail in PROFILES.values():
        with pytest.raises(CannotGuarantee) as refused:
            choose(jail, [])
        assert refused.value.missing == jail.needs


@pytest.mark.parametrize("abi", range(1, 8))
def test_an_older_landlock_promises_less(abi: int) -> None:
    since = {G.WRITES_CONFINED: 3, G.NO_SIGNALS_OUT: 6}
    promised = Landlock(abi).guarantees(Jail())
    assert {promise for promise in since if promise in promised} == {
        promise for promise, first in since.items() if abi >= first
    }


def test_landlock_promises_nothing_about_the_inside_of_a_writable_path() -> None:
    jail = Jail(writable=("/ws",), protected=("/ws/.git",), hidden=("/ws/secret",))
    promised = LANDLOCK.guarantees(jail)
    assert not promised & {G.PROTECTED_CARVED_OUT, G.HIDDEN_MASKED}


# --- profiles ---------------------------------------------------------------------------------


def places(root: Path) -> SandboxPaths:
    for name in ("ws", "home", "extra"):
        (root / name).mkdir()
    (root / "link").symlink_to(root / "ws")
    return SandboxPaths(
        workspace=str(root / "link"),
        home=str(root / "home"),
        callgate_home=str(root / "home" / ".callgate"),
        write_roots=(str(root / "extra"),),
        protected=(str(root / "link" / ".git" / "hooks"), str(root / "extra" / ".envrc")),
    )


@pytest.mark.parametrize("kind", ["unix_sockets", "own_sockets"])
def test_sockets_are_not_hidden_without_mounts(kind: str) -> None:
    """Landlock does not see a connection to a path, so a hidden service could be talked to."""
    jail = msgspec.structs.replace(WORKSPACE, **{kind: True})
    with pytest.raises(CannotGuarantee) as refused:
        choose(jail, [LANDLOCK, SECCOMP, SUPERVISOR])
    assert refused.value.missing == {G.HIDDEN_MASKED}
    assert choose(jail, [LANDLOCK, SECCOMP, SUPERVISOR, NAMESPACES]).missing == ()


def test_a_profile_follows_the_links_of_its_roots(tmp_path: Path) -> None:
    jail = profiles.workspace(places(tmp_path))
    root = os.path.realpath(tmp_path)
    assert jail.writable == (f"{root}/extra", f"{root}/ws")
    assert jail.protected == (f"{root}/extra/.envrc", f"{root}/ws/.git/hooks")


def test_a_link_inside_the_workspace_is_not_followed_to_find_what_is_protected(
    tmp_path: Path,
) -> None:
    made = places(tmp_path)
    (tmp_path / "ws" / ".git").symlink_to(tmp_path / "extra")
    root = os.path.realpath(tmp_path)
    assert f"{root}/ws/.git/hooks" in profiles.workspace(made).protected


def test_a_protected_path_outside_every_root_is_a_mistake(tmp_path: Path) -> None:
    wrong = SandboxPaths(workspace=str(tmp_path), home="/h", callgate_home="/h/c", protected=("/etc/passwd",))
    with pytest.raises(ValueError):
        profiles.workspace(wrong)


@pytest.mark.parametrize("profile", PROFILES)
def test_our_own_home_is_hidden_in_every_profile(profile: str) -> None:
    assert "/home/me/.callgate" in PROFILES[profile].hidden


@pytest.mark.parametrize("profile", ["read", "workspace"])
@pytest.mark.parametrize("secret", [".ssh", ".aws", ".config/gcloud", ".kube", ".netrc"])
def test_keys_are_hidden_where_commands_run_unasked(profile: str, secret: str) -> None:
    assert f"/home/me/{secret}" in PROFILES[profile].hidden


def test_a_workspace_that_holds_tmp_asks_for_no_other_tmp() -> None:
    jail = profiles.workspace(SandboxPaths(workspace="/tmp", home="/h", callgate_home="/h/c"))
    assert not jail.fresh_tmp


# --- this machine -----------------------------------------------------------------------------


@needs("linux")
async def test_a_machine_is_known_by_trying(tmp_path: Path) -> None:
    process = BrokerProcess()
    try:
        async with asyncio.timeout(60):
            landlock, seccomp, supervisor, namespaces, bubblewrap = await machines.look(process)
    finally:
        process.close()
    assert (seccomp, supervisor) == (Seccomp(True), Supervisor())
    assert isinstance(landlock, Landlock) and isinstance(namespaces, Namespaces)
    assert isinstance(bubblewrap, Bubblewrap)


@needs("linux")
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 0", None),
        ("echo bwrap: no permission >&2; exit 1", "bubblewrap: bwrap: no permission"),
        ("exit 1", "bubblewrap: a command that does nothing failed"),
    ],
)
async def test_a_bubblewrap_that_does_not_work_says_what_it_said(
    tmp_path: Path, script: str, problem: str | None
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    process = BrokerProcess()
    try:
        async with asyncio.timeout(60):
            backends = await machines.look(process, bwrap=str(program))
    finally:
        process.close()
    assert Bubblewrap(str(program), problem) in backends


@needs("linux")
async def test_a_setuid_bubblewrap_is_not_even_tried(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o4755)
    process = BrokerProcess()
    try:
        backends = await machines.look(process, bwrap=str(program))
    finally:
        process.close()
    assert Bubblewrap(str(program), "bubblewrap is setuid") in backends
    assert not (tmp_path / "ran").exists()
