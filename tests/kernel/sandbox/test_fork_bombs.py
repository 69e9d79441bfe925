"""How many processes a command can have at one moment, tried with programs that double themselves.

Each doubles only so often, so that a machine on which nothing holds them survives the test.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from callgate.core.commands import Exit
from callgate.sandbox import meters, profiles
from callgate.sandbox.jails import Limits
from callgate.sandbox.plans import Backend, Command, choose
from callgate.sandbox.processes.broker_client import (
    BrokerLauncher,
    BrokerProcess,
    RestrictionFailed,
)
from tests.kernel.sandbox.test_escapes import USERS, needed
from tests.kernel.sandbox.worlds import PYTHON, World, as_user
from tests.needs import needs

pytestmark = needs("linux", "bash", PYTHON)

LIMIT = 60
BACKENDS = ("landlock", "namespaces", "bubblewrap")

DOUBLINGS = 10
"""1024 processes, where nothing holds them."""
SPARE = 900
"""What the kernel may let an ordinary user have: RLIMIT_NPROC counts what else runs for it."""
FORKS = (
    PYTHON,
    "-c",
    "import os, time\nos.write(1, b'.')\n"
    f"for _ in range({DOUBLINGS}):\n"
    " try: os.fork() or os.write(1, b'.')\n"
    " except OSError: pass\n"
    "time.sleep(600)",
)
PIPES = (
    "/bin/bash",
    "-c",
    "bomb() { if [ $1 = 0 ]; then sleep 600; else bomb $(($1 - 1)) | bomb $(($1 - 1)) & wait; fi; }\n"
    f"bomb {DOUBLINGS - 2}",
)
THREADS = (
    PYTHON,
    "-c",
    "import os, threading, time\n"
    "def double(times):\n"
    " os.write(1, b'.')\n"
    " for left in range(times):\n"
    "  try: threading.Thread(target=double, args=(left,)).start()\n"
    "  except RuntimeError: pass\n"
    " time.sleep(600)\n"
    f"double({DOUBLINGS})",
)
DEAD = (
    PYTHON,
    "-c",
    f"import os, time\nfor _ in range(2 ** {DOUBLINGS}):\n"
    " try: os.fork() or os.write(1, b'.') and os._exit(0)\n"
    " except OSError: pass\n"
    "time.sleep(600)",
)
"""Nobody waits for its children: what is dead still has a number."""


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.remove()


@pytest.mark.parametrize("argv", [FORKS, THREADS, DEAD], ids=["forks", "threads", "dead"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_that_doubles_itself_never_has_many_more_processes_than_its_limit(
    world: World, backend: str, argv: tuple[str, ...]
) -> None:
    found = outcome(world, backend, argv)
    ended = msgspec.convert(found["exit"], Exit)
    assert (ended.limit, ended.survivors) == ("processes", 0)
    if backend == "namespaces":
        most = meters.most_numbers(LIMIT)
    else:
        most = SPARE if world.user else meters.slack(LIMIT)
    assert found["born"] <= most


@pytest.mark.parametrize("backend", BACKENDS)
def test_others_can_start_processes_while_a_command_doubles_itself(world: World, backend: str) -> None:
    found = outcome(world, backend, PIPES)
    assert found["exit"]["limit"] == "processes"
    assert found["others"] >= 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root is not bound by RLIMIT_NPROC")
def test_what_runs_unasked_is_refused_where_the_kernel_bounds_no_processes() -> None:
    needed({"seccomp", "landlock"})
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_GROUPS], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    if found == ["cannot"]:
        pytest.skip("needs mount namespaces, and to be root outside of a container")
    assert found == ["None", "unasked: process limit", "asked: in"]


WITHOUT_GROUPS = """
import asyncio, msgspec
from callgate.sandbox import kernel, meters
from callgate.sandbox.processes.broker_client import RestrictionFailed
from callgate.sandbox.jails import Jail, Limits
from callgate.sandbox.machines import process_bound
from callgate.sandbox.plans import SandboxPlan
from tests.kernel.sandbox.worlds import run

try:
    kernel.call("unshare", 0x20000)
    kernel.call("mount", b"none", b"/", None, 1 << 14 | 1 << 18, None)
    kernel.call("mount", b"none", b"/sys/fs/cgroup", b"tmpfs", 0, None)
except OSError:
    raise SystemExit(print("cannot"))
if meters.nproc_binds():
    raise SystemExit(print("cannot"))
print(process_bound())
jail = Jail(limits=Limits(processes=60), bounded=True)
try:
    asyncio.run(run(SandboxPlan(jail, ("seccomp", "landlock")), ("/bin/echo", "in"), "/"))
except RestrictionFailed as error:
    print("unasked:", error.step)
jail = msgspec.structs.replace(jail, bounded=False)
print("asked:", asyncio.run(run(SandboxPlan(jail, ("seccomp", "landlock")), ("/bin/echo", "in"), "/"))[1].strip())
"""


def outcome(world: World, backend: str, argv: tuple[str, ...]) -> dict[str, Any]:
    """How it ended, how many processes there were, and how many others started meanwhile."""
    chosen: list[Backend] = needed({backend, "seccomp"})
    bwrap = next((path for each in chosen if (path := getattr(each, "path", None))), None)
    plan = choose(profiles.read(world.places, limits=Limits(processes=LIMIT)), chosen)
    command = Command(argv=argv, cwd=str(world.workspace), env={"PATH": os.environ["PATH"]})

    async def observe() -> dict[str, Any]:
        process = BrokerProcess(PYTHON)
        output = bytearray()
        others = 0
        try:
            launcher = BrokerLauncher(process, plan, bwrap=bwrap)
            async with (
                asyncio.timeout(60),
                await launcher.start(command, lambda stream, data: output.extend(data)) as it,
            ):
                end = asyncio.ensure_future(it.wait())
                while not others or not end.done():
                    await asyncio.to_thread(subprocess.run, ["/bin/true"], check=True)
                    others += 1
                ended = await end
        finally:
            process.close()
        return {"exit": msgspec.to_builtins(ended), "born": output.count(b"."), "others": others}

    try:
        found: dict[str, Any] = as_user(world.user, lambda: asyncio.run(observe()))
    except RestrictionFailed as error:
        if error.step != "process limit":
            raise
        pytest.skip("needs something that bounds the processes of root")
    return found
