"""What one command may take as a whole, tried with commands that take all they can get."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from callgate.core.commands import Exit
from callgate.sandbox import profiles
from callgate.sandbox.jails import Jail, Limits, default_limits
from callgate.sandbox.plans import Backend, SandboxPlan, choose
from tests.kernel.sandbox.test_escapes import USERS, needed
from tests.kernel.sandbox.worlds import PYTHON, World, as_user, run
from tests.needs import missing, needs

pytestmark = needs("linux", "bash", PYTHON)

MIB = 1024 * 1024
SMALL = Limits(memory_bytes=100 * MIB, processes=60, output_bytes=100_000)

READ = [{"landlock", "seccomp"}, {"namespaces", "seccomp"}, {"bubblewrap", "seccomp"}]

BOMB = (
    "/bin/bash",
    "-c",
    "bomb() { if [ $1 = 0 ]; then sleep 600; else bomb $(($1 - 1)) | bomb $(($1 - 1)) & wait; fi; }; bomb 8",
)
"""It doubles only so often: where nothing holds it, the tests beside it have process ids left."""
THREADS = (
    PYTHON,
    "-c",
    "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(600,)).start()",
)
HOG = (PYTHON, "-c", "import time\na = bytearray(400_000_000)\ntime.sleep(600)")
MANY_HOGS = (
    PYTHON,
    "-c",
    "import os, time\nfor _ in range(8): os.fork() or (bytearray(40_000_000), time.sleep(600))\n"
    "keep = bytearray(40_000_000); time.sleep(600)",
)
HIDDEN_HOG = (
    PYTHON,
    "-c",
    "import os, time\nfile = os.memfd_create('x')\n"
    "for _ in range(400): os.write(file, bytes(1_000_000))\ntime.sleep(600)",
)
FORKED = (
    PYTHON,
    "-c",
    "import os, time\nshared = bytearray(60_000_000)\n"
    "children = [os.fork() or (time.sleep(2), os._exit(0)) for _ in range(10)]\n"
    "[os.wait() for _ in children]\nprint('shared')",
)


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.remove()


def planned(world: World, names: set[str], limits: Limits) -> tuple[SandboxPlan, str | None]:
    chosen: list[Backend] = needed(names)
    bwrap = next((getattr(each, "path", None) for each in chosen if hasattr(each, "path")), None)
    return choose(profiles.read(world.places, limits=limits), chosen), bwrap


def outcome(world: World, plan: SandboxPlan, bwrap: str | None, argv: tuple[str, ...]) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        ended, out, _ = asyncio.run(run(plan, argv, str(world.workspace), bwrap=bwrap))
        return {"exit": msgspec.to_builtins(ended), "out": out[:100]}

    found: dict[str, Any] = as_user(world.user, work)
    return found


@pytest.mark.parametrize(
    ("argv", "limit"),
    [
        (BOMB, "processes"),
        (THREADS, "processes"),
        (HOG, "memory_bytes"),
        (MANY_HOGS, "memory_bytes"),
        (HIDDEN_HOG, "memory_bytes"),
        (("/usr/bin/yes",), "output_bytes"),
    ],
    ids=["bomb", "threads", "hog", "many hogs", "hidden hog", "yes"],
)
@pytest.mark.parametrize("names", READ, ids=["landlock", "namespaces", "bubblewrap"])
def test_a_command_that_takes_too_much_is_ended_and_the_result_says_of_what(
    world: World, names: set[str], argv: tuple[str, ...], limit: str
) -> None:
    plan, bwrap = planned(world, names, SMALL)
    ended = msgspec.convert(outcome(world, plan, bwrap, argv)["exit"], Exit)
    assert (ended.limit, ended.survivors) == (limit, 0)


@pytest.mark.parametrize("names", READ, ids=["landlock", "namespaces", "bubblewrap"])
def test_memory_that_processes_share_counts_once(world: World, names: set[str]) -> None:
    plan, bwrap = planned(world, names, SMALL)
    found = outcome(world, plan, bwrap, FORKED)
    assert (found["exit"]["limit"], found["out"]) == (None, "shared\n")


def test_the_kernel_bounds_what_happens_between_two_looks(world: World) -> None:
    """A bomb that is faster than any keeper finds no more processes in a namespace of its own."""
    plan, _ = planned(world, {"namespaces", "seccomp"}, Limits(processes=60))
    script = (
        "import os, time\ncount = 0\n"
        "try:\n while count < 4000 and os.fork(): count += 1\n"
        "except BlockingIOError: os.write(1, b'%d' % count)\n"
        "time.sleep(600)"
    )
    found = outcome(world, plan, None, (PYTHON, "-c", script))
    assert found["exit"]["limit"] == "processes"
    assert found["out"] == "" or int(found["out"]) < 400


@pytest.mark.parametrize("user", USERS)
def test_each_process_has_the_limits_that_are_its_own(user: int) -> None:
    needed({"seccomp", "namespaces"})
    limits = Limits(cpu_seconds=7, memory_bytes=2**31, processes=500, open_files=50, file_bytes=2**20)
    argv = ("/bin/bash", "-c", "ulimit -t -v -n -f -c")

    def work() -> list[str]:
        plan = SandboxPlan(Jail(limits=limits), ("seccomp", "namespaces"))
        out = asyncio.run(run(plan, argv, "/"))[1]
        return [line.split()[-1] for line in out.splitlines()]

    assert as_user(user, work) == ["7", "unlimited", "50", "1024", "0"]


def test_processor_time_that_is_used_up_is_named() -> None:
    plan = SandboxPlan(Jail(limits=Limits(cpu_seconds=1)), ("seccomp",))
    needed({"seccomp"})
    for line in ("while :; do :; done", f"{PYTHON} -c 'while True: pass'; exit $?"):
        ended, _, _ = asyncio.run(run(plan, ("/bin/bash", "-c", line), "/"))
        assert ended.limit == "cpu_seconds"


TOOLS = {
    "make": "printf 'all: $(shell seq 60)\\n%%:\\n\\tsleep 0.2\\n' > Makefile; make -s -j; echo ok",
    "node": "node -e 'new WebAssembly.Memory({initial: 1, maximum: 65536}); console.log(\"ok\")'",
    "java": "java -version 2> /dev/null && echo ok",
    "gcc": "echo 'int main(void) { return 0; }' > a.c && gcc -fsanitize=address a.c -o a && ASAN_OPTIONS=detect_leaks=0 ./a && echo ok",
    "git": "git init -q inner && cd inner && touch f && git add f && echo ok",
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_work_within_the_default_limits(world: World, tool: str) -> None:
    if reason := missing(tool):
        pytest.skip(reason)
    plan = choose(profiles.workspace(world.places, limits=default_limits()), needed({"seccomp", "namespaces"}))
    found = outcome(world, plan, None, ("/bin/bash", "-c", TOOLS[tool]))
    assert (found["out"], found["exit"]["limit"]) == ("ok\n", None)


def test_defaults_leave_half_of_the_machine_to_others() -> None:
    limits = default_limits()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limits.memory_bytes is not None and limits.processes is not None
    assert limits.memory_bytes <= memory // 2
    assert 64 <= limits.processes <= 1024
