"""No process of a command outlives it, whatever it did to get away."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from pathlib import Path

import pytest

from callgate.sandbox import processes, trees
from callgate.sandbox.processes import Exit
from tests.needs import needs

pytestmark = needs("linux", "bash", "setsid")

PYTHON = f"{sys.executable} -S -I -c"

# What the processes of a tree do before "ready" is printed. Each adds its pid to the file
# that PIDS names, so that survivors are counted without the means under test.
SHAPES = {
    "plain child": "sleep 300 & note $!; ready; wait",
    "background child": "(sleep 300 & note $!) ; ready; sleep 300",
    "setsid": "setsid sh -c 'echo $$ >> $PIDS; exec sleep 300' & await 1; ready; wait",
    "double fork": (
        "(setsid sh -c '(echo $(exec sh -c \"echo \\$PPID\") >> $PIDS; exec sleep 300) &' &) ; "
        "await 1; ready; sleep 300"
    ),
    "nohup": "nohup sleep 300 & note $!; ready; wait",
    "ignores SIGTERM": "trap '' TERM; note $$; sleep 300 & note $!; ready; while :; do wait; done",
    "holds the pipe": "(setsid sh -c 'echo $$ >> $PIDS; sleep 300; echo late' &) ; await 1; ready",
    "fork chain": (
        "(setsid sh -c 'hop() { echo $(exec sh -c \"echo \\$PPID\") >> $PIDS; "
        "[ -e $PIDS.end ] || (hop &) ; }; hop' &) ; await 3; ready; sleep 300"
    ),
    "stopped": "sleep 300 & note $!; kill -STOP $!; ready; wait",
    "environment cleared": (
        "marked; (env -i setsid sh -c 'echo $$ >> '$PIDS'; exec sleep 300' &) ; "
        "await 1; ready; sleep 300"
    ),
    "environment overwritten": (
        f"marked; ({PYTHON} \"\nimport ctypes, os\nif os.fork(): os._exit(0)\nos.setsid()\n"
        "first, last = map(int, open('/proc/self/stat').read().rsplit(')')[1].split()[47:49])\n"
        "ctypes.memset(first, 120, last - first)\n"
        "open(os.environ['PIDS'], 'a').write(f'{os.getpid()}\\n')\n"
        'import time; time.sleep(300)" &) ; await 1; ready; sleep 300'
    ),
    "threads outlive the first": (
        f"marked; (setsid {PYTHON} \"\nimport ctypes, os, threading, time\n"
        "open(os.environ['PIDS'], 'a').write(f'{os.getpid()}\\n')\n"
        "threading.Thread(target=time.sleep, args=(300,)).start()\n"
        'ctypes.CDLL(None).syscall(60, 0)" &) ; await 1; ready; sleep 300'
    ),
    "another runtime inside, killed": (
        f"({sys.executable} -c \"\nimport asyncio, os\nfrom callgate.sandbox import processes\n"
        "async def main():\n"
        "    process = processes.start(['/bin/sleep', '300'], cwd='/', env={}, on_output=print)\n"
        "    open(os.environ['PIDS'], 'a').write(f'{process.pid}\\n')\n"
        '    os.kill(os.getpid(), 9)\nasyncio.run(main())" &) ; await 1; ready; sleep 300'
    ),
    "stubborn daemon": (
        "(trap '' TERM HUP INT; setsid sh -c 'cd /; exec >/dev/null 2>&1 </dev/null; "
        "echo $$ >> $PIDS; while :; do sleep 300; done' &) ; await 1; ready; sleep 300"
    ),
}
SHAPES["marks wiped, same session"] = (
    "marked; set -m; (env -i bash -c 'ulimit -S -x unlimited; echo $$ >> '$PIDS'; "
    "exec sleep 300' &) ; await 1; ready; sleep 300"
)
ONLY_WHEN_STOPPED = {
    # Only its parent, which ends first, shows where it belongs: we must have looked before.
    "marks wiped, parent ends first": (
        "marked; trap '' TERM; env -i setsid bash -c 'ulimit -S -x unlimited; "
        "echo $$ >> '$PIDS'; exec sleep 300' & trap - TERM; await 1; ready; wait"
    ),
}
PRELUDE = (
    'note() { echo "$1" >> "$PIDS"; }; '
    "ready() { echo ready; }; "
    # A cleared environment is seen through only once the limit is set, moments after the start.
    'marked() { until [ "$(ulimit -S -x)" != unlimited ]; do :; done; }; '
    'await() { while [ "$(cat "$PIDS" 2>/dev/null | wc -l)" -lt "$1" ]; do :; done; }; '
)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return state[0] not in "ZX" or int(state[17]) > 1


class Watched:
    """A command with the file its processes report to, and an event for its first output."""

    def __init__(self, pids: Path, script: str, exits: bool = False) -> None:
        self.pids = pids
        self.ready = asyncio.Event()
        if exits:
            script = script.replace("ready; wait", "ready").replace("ready; sleep 300", "ready")
            script = script.replace("ready; while :; do wait; done", "ready")
        env = {"PATH": os.environ["PATH"], "PIDS": str(pids)}
        self.process = processes.start(
            ["/bin/bash", "-c", PRELUDE + script],
            cwd="/",
            env=env,
            on_output=lambda stream, data: self.ready.set(),
        )

    def survivors(self) -> list[int]:
        Path(f"{self.pids}.end").touch()
        return [pid for pid in map(int, self.pids.read_text().split()) if running(pid)]


async def stopped(command: Watched) -> tuple[list[int], int]:
    """Who is left after a stop, and how many the result admits to."""
    async with asyncio.timeout(60):
        await command.ready.wait()
        assert command.process.stop(grace=0.1)
        ended = await command.process.wait()
    return command.survivors(), ended.survivors


@pytest.mark.spec("S4-66", "T-7", "T44")
@pytest.mark.parametrize("shape", SHAPES | ONLY_WHEN_STOPPED)
async def test_a_stopped_command_leaves_no_process(shape: str, tmp_path: Path) -> None:
    script = (SHAPES | ONLY_WHEN_STOPPED)[shape]
    assert await stopped(Watched(tmp_path / "pids", script)) == ([], 0)


@pytest.mark.spec("S4-66")
@pytest.mark.parametrize("shape", ["plain child", "double fork", "environment cleared"])
async def test_a_kernel_without_children_files_makes_no_difference(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_has_children_files", lambda: False)
    assert await stopped(Watched(tmp_path / "pids", SHAPES[shape])) == ([], 0)


@pytest.mark.spec("S4-66", "T-7", "T44")
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_command_that_ends_by_itself_leaves_no_process(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "DRAIN_S", 0.02)
    monkeypatch.setattr(processes, "LEFTOVER_GRACE_S", 0.05)
    command = Watched(tmp_path / "pids", SHAPES[shape], exits=True)
    async with asyncio.timeout(60):
        ended = await command.process.wait()
    assert (command.survivors(), ended.survivors, ended.stopped) == ([], 0, False)


async def test_a_process_that_is_not_of_the_command_is_left_alone(tmp_path: Path) -> None:
    """A child of ours, a daemon beside it, and another command at the same time."""
    other = Watched(tmp_path / "other", SHAPES["double fork"])
    await other.ready.wait()
    bystander = await asyncio.create_subprocess_exec("sleep", "300")
    command = Watched(tmp_path / "pids", SHAPES["setsid"])
    await command.ready.wait()
    command.process.stop(grace=0)
    async with asyncio.timeout(60):
        await command.process.wait()
    assert (bystander.returncode, running(bystander.pid), len(other.survivors())) == (None, True, 1)
    bystander.kill()
    await bystander.wait()
    other.process.stop(grace=0)
    async with asyncio.timeout(60):
        await other.process.wait()


NOBODY = 2**22 + 1
"""A number that no process can have."""


@pytest.mark.spec("S4-66")
async def test_a_process_that_slips_by_the_first_look_is_found_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forked and ended while we read the list: the list has its number, not its child's."""
    lists = trees._first_thread_children
    looks = 0

    def stale(pid: int) -> list[int]:
        nonlocal looks
        looks += pid == os.getpid()  # where each look begins
        return [NOBODY + looks] if looks <= 10 else lists(pid)

    monkeypatch.setattr(trees, "_first_thread_children", stale)
    monkeypatch.setattr(processes, "DRAIN_S", 0.02)
    command = Watched(tmp_path / "pids", SHAPES["stubborn daemon"], exits=True)
    async with asyncio.timeout(60):
        await command.process.wait()
    assert command.survivors() == []


async def test_a_process_that_is_hidden_from_us_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = trees._first_thread_children
    monkeypatch.setattr(trees, "_first_thread_children", lambda pid: [*lists(pid), NOBODY])
    process = processes.start(["/bin/true"], cwd="/", env={}, on_output=print)
    async with asyncio.timeout(60):
        assert await process.wait() == Exit(code=0)


async def test_a_command_inside_another_carries_both_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outer = trees.Tree().environment[trees.MARK]
    monkeypatch.setenv(trees.MARK, outer)
    assert trees.Tree().environment[trees.MARK].startswith(f"{outer}.")


async def test_without_proc_the_group_is_still_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_proc_is_ours", lambda: False)
    for exits in (False, True):
        command = Watched(tmp_path / f"pids {exits}", SHAPES["ignores SIGTERM"], exits=exits)
        async with asyncio.timeout(60):
            await command.ready.wait()
            command.process.stop(grace=0.05)
            assert (await command.process.wait()).survivors == 0
        for pid in command.survivors():  # killed, but nobody waited for that here
            select.select([os.pidfd_open(pid)], [], [], 20)
        assert command.survivors() == []
