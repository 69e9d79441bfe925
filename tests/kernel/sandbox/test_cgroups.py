"""A control group for each command: it ends at once, and nothing of it stays.

Ending is tried on real groups, where the system lets us have some. Limits need controllers that
are ours, which is rare: how they are written is tried on a directory that plays a group.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from callgate.core.commands import Exit
from callgate.sandbox import meters
from callgate.sandbox.backends import cgroups
from callgate.sandbox.backends.cgroups import Group, Groups
from callgate.sandbox.jails import Limits
from callgate.sandbox.machines import ControlGroups, look_at_groups
from callgate.sandbox.plans import Command
from callgate.sandbox.processes import ordering
from callgate.sandbox.processes.broker_client import BrokeredProcess, BrokerLauncher, BrokerProcess
from tests.needs import needs

pytestmark = needs("linux", "bash")


@pytest.fixture
async def process() -> AsyncIterator[BrokerProcess]:
    process = BrokerProcess()
    yield process
    process.close()


@pytest.fixture
async def groups(process: BrokerProcess) -> ControlGroups:
    found = await look_at_groups(process)
    if found.problem is not None:
        pytest.skip(f"needs cgroups: {found.problem}")
    return found


def ours(process: BrokerProcess) -> Path:
    """The directory of a broker's groups, which it keeps open."""
    descriptors = Path(f"/proc/{process.pid}/fd")
    links = (os.readlink(path) for path in descriptors.iterdir())
    return Path(next(link for link in links if f"/{cgroups.PREFIX}" in link))


def inside(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


async def start(process: BrokerProcess, script: str, said: list[bytes]) -> BrokeredProcess:
    command = Command(argv=("/bin/bash", "-c", script), cwd="/", env={"PATH": "/usr/bin:/bin"})
    return await BrokerLauncher(process, None).start(command, lambda _, data: said.append(data))


async def all_of(process: BrokerProcess) -> list[int]:
    """Every process in every group, once there are some."""
    lists = [(path / "cgroup.procs").read_text() for path in ours(process).iterdir() if path.is_dir()]
    return [int(pid) for text in lists for pid in text.split()]


async def until_none(process: BrokerProcess) -> None:
    """The broker removes a group when it hears that its keeper is gone."""
    async with asyncio.timeout(60):
        while inside(ours(process)):
            await asyncio.wait_for(_true(process), 60)


async def _true(process: BrokerProcess) -> None:
    command = Command(argv=("/bin/true",), cwd="/", env={})
    await (await BrokerLauncher(process, None).start(command, lambda _, data: None)).wait()


# --- real ones ------------------------------------------------------------------------------------


async def test_a_command_is_alone_in_a_group_that_is_gone_with_it(
    process: BrokerProcess, groups: ControlGroups
) -> None:
    said: list[bytes] = []
    script = 'read -r group < <(grep ^0:: /proc/self/cgroup); echo "${group##*/callgate-}"'
    kept = await start(process, script, said)
    assert await kept.wait() == Exit(code=0)
    base, _, number = b"".join(said).decode().strip().partition("/")
    assert (cgroups.PREFIX + base, number.isdigit()) == (ours(process).name, True)
    assert not (ours(process) / number).exists() or not (ours(process) / number / "cgroup.procs").read_text()


@pytest.mark.spec("T44")
async def test_a_kill_ends_what_forks_faster_than_it_can_be_found(
    process: BrokerProcess, groups: ControlGroups
) -> None:
    """Each forks its successor and ends, in sessions of their own, deaf to a request."""
    said: list[bytes] = []
    storm = "trap '' TERM; hop() { (setsid bash -c : & hop &) ; }; hop & hop & echo up; sleep 600"
    kept = await start(process, storm, said)
    kept.stop(grace=0)
    ended = await asyncio.wait_for(kept.wait(), 60)
    assert (ended.survivors, ended.stopped) == (0, True)
    assert await all_of(process) == []


async def test_a_keeper_that_is_killed_leaves_a_group_that_the_broker_ends(
    process: BrokerProcess, groups: ControlGroups
) -> None:
    kept = await start(process, "sleep 600 & sleep 600", [])
    assert process.pid is not None
    (killed,) = (pid for pid in meters.children(process.pid) if meters.children(pid))
    members = await all_of(process)
    os.kill(killed, signal.SIGKILL)
    await asyncio.wait_for(kept.wait(), 60)
    await until_none(process)
    assert members and not any(Path(f"/proc/{pid}/exe").exists() for pid in members)


async def test_what_a_dead_broker_left_is_removed_by_the_next_and_nothing_else(
    process: BrokerProcess, groups: ControlGroups
) -> None:
    place = ours(process).parent
    dead = Groups(str(place))
    left = dead.make([])
    assert left is not None
    child = left.fork()
    if child == 0:
        os.execv("/bin/sleep", ["sleep", "600"])  # which has no lock, as no command has
    left.close()
    os.close(dead._lock)  # as if it had been killed
    watched = os.pidfd_open(child)
    while not select.select([watched], [], [], 0.01)[0]:  # it may not be `sleep` yet
        cgroups.remove_leftovers(str(place))
    os.close(watched)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    cgroups.remove_leftovers(str(place))
    assert (os.path.exists(dead.path), ours(process).exists()) == (False, True)


async def test_a_broker_that_is_let_go_leaves_no_directory(process: BrokerProcess, groups: ControlGroups) -> None:
    directory = ours(process)
    await until_none(process)
    process.close()
    assert not directory.exists()


# --- played ones ----------------------------------------------------------------------------------

LIMITS = Limits(memory_bytes=5_000_000, processes=7, cpu_seconds=3)


class Played(Groups):
    """Groups that are plain directories: the kernel's files are put there before they are used."""

    def __init__(self, path: Path, controllers: set[str]) -> None:
        self.path, self.controllers = str(path), frozenset(controllers)
        self._count = 0
        self._ended = set()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Path]:
    for name in ("cgroup.kill", "memory.max", "memory.swap.max", "pids.max"):
        (tmp_path / name).write_text("")
    real = os.mkdir

    def make(path: str) -> None:
        real(path)
        for file in tmp_path.iterdir():
            if file.is_file():
                shutil.copy(file, path)

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "mkdir", make)
    yield tmp_path
    patch.undo()


def contents(group: Group) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(group.path).iterdir()}


@pytest.mark.parametrize(
    ("controllers", "written"),
    [
        (set(), {}),
        ({"pids"}, {"pids.max": "23"}),
        ({"memory", "pids"}, {"memory.max": "5000000", "memory.swap.max": "0", "pids.max": "23"}),
    ],
)
def test_limits_are_a_groups_where_it_has_the_controllers(
    played: Path, controllers: set[str], written: dict[str, str]
) -> None:
    group = Played(played, controllers).make(ordering.group_limits(LIMITS))
    assert group is not None
    empty = dict.fromkeys(("cgroup.kill", "memory.max", "memory.swap.max", "pids.max"), "")
    assert contents(group) == {**empty, **written}
    assert group.limit_reached() == meters.NONE
    Path(group.path, "pids.events").write_text("max 3\n")
    assert group.limit_reached() == meters.PROCESSES
    Path(group.path, "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.limit_reached() == meters.MEMORY
    group.kill()
    assert contents(group)["cgroup.kill"] == "1"
    group.close()


def test_a_group_that_would_limit_nothing_is_not_made_for_limits(played: Path) -> None:
    limits = ordering.group_limits(LIMITS)
    assert Played(played, set()).make(limits, only_to_limit=True) is None
    assert inside(played) == []


def test_a_limit_that_cannot_be_written_is_left_to_the_process(played: Path) -> None:
    (played / "memory.max").unlink()
    assert Played(played, {"memory"}).make(ordering.group_limits(LIMITS)) is None


@pytest.mark.parametrize(("text", "path"), [("1:cpu:/a\n0::/user.slice/b c\n", "/user.slice/b c"), ("0::/\n", "/")])
def test_our_own_group_is_the_one_of_version_two(text: str, path: str) -> None:
    assert cgroups.own_path(text) == path


def test_without_version_two_there_are_no_groups() -> None:
    with pytest.raises(cgroups.Unavailable):
        cgroups.own_path("4:memory:/a\n1:cpu:/\n")


@pytest.mark.parametrize(("controllers", "found"), [("cpu memory pids", ["slice", "scope"]), ("cpu", ["scope"])])
def test_the_group_above_is_used_where_it_limits_processes_already(
    tmp_path: Path, controllers: str, found: list[str]
) -> None:
    scope = tmp_path / "slice" / "scope"
    scope.mkdir(parents=True)
    for path in (scope, scope.parent):
        (path / "cgroup.procs").touch()
        (path / "cgroup.subtree_control").write_text(controllers)
    places = cgroups.around(str(scope))
    assert [(Path(path).name, delegated) for path, delegated in places] == [(n, False) for n in found]
