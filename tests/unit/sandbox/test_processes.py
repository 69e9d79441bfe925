"""A command runs, its output arrives, and it ends: by itself, or because it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from callgate.sandbox import processes, trees
from callgate.sandbox.processes import Exit, Process
from tests.needs import needs
from tests.support import descriptors

pytestmark = needs("linux", "bash")


class Recorder:
    """What a command wrote, and an event for each time that it wrote something."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, bytes]] = []
        self._news = asyncio.Event()

    def __call__(self, stream: str, data: bytes) -> None:
        self.pieces.append((stream, data))
        self._news.set()

    def text(self, stream: str) -> bytes:
        return b"".join(data for name, data in self.pieces if name == stream)

    async def until(self, text: bytes, stream: str = "stdout") -> None:
        async with asyncio.timeout(60):
            while text not in self.text(stream):
                self._news.clear()
                await self._news.wait()


def start(script: str, record: Recorder | None = None, cwd: str = "/") -> Process:
    return processes.start(
        ["/bin/bash", "-c", script],
        cwd=cwd,
        env={"PATH": os.environ["PATH"]},
        on_output=record or Recorder(),
    )


async def finish(process: Process) -> Exit:
    async with asyncio.timeout(60):
        return await process.wait()


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def children() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


@pytest.fixture(params=["pidfd", "thread"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of learning that a process has ended."""
    if request.param == "thread":
        monkeypatch.setattr(processes, "_pidfd", lambda pid: None)


@pytest.mark.spec("S4-75")
async def test_both_streams_arrive_each_in_its_own_order(watch: None) -> None:
    record = Recorder()
    process = start("for i in 1 2 3; do echo out $i; echo err $i >&2; done", record)
    assert await finish(process) == Exit(code=0)
    assert record.text("stdout") == b"out 1\nout 2\nout 3\n"
    assert record.text("stderr") == b"err 1\nerr 2\nerr 3\n"


async def test_output_arrives_while_the_command_runs(tmp_path: Path) -> None:
    record = Recorder()
    os.mkfifo(tmp_path / "go")
    process = start(f"echo first; read < {tmp_path}/go; echo second", record)
    await record.until(b"first\n")
    assert record.text("stdout") == b"first\n"
    (tmp_path / "go").write_text("\n")
    assert await finish(process) == Exit(code=0)
    assert record.text("stdout") == b"first\nsecond\n"


@pytest.mark.parametrize("code", [0, 1, 127, 255])
async def test_the_exit_code_is_the_commands_own(code: int, watch: None) -> None:
    assert await finish(start(f"exit {code}")) == Exit(code=code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, 40])
async def test_a_command_that_a_signal_ended_says_which(number: int, watch: None) -> None:
    assert await finish(start(f"kill -{number} $$")) == Exit(signal=number)


async def test_a_command_that_does_not_exist_fails_to_start_and_leaks_nothing() -> None:
    before = descriptors()
    for argv, cwd in (["/no/such/program"], "/"), (["/bin/true"], "/no/such/directory"):
        with pytest.raises(FileNotFoundError):
            processes.start(argv, cwd=cwd, env={}, on_output=Recorder())
    assert descriptors() <= before


async def test_the_command_has_no_input_no_terminal_and_a_session_of_its_own() -> None:
    record = Recorder()
    script = "cat; (: < /dev/tty) 2>/dev/null || echo none; ps -o pid=,pgid=,sess= -p $$"
    process = start(script, record)
    await finish(process)
    assert record.text("stdout").split() == [b"none", *[b"%d" % process.pid] * 3]


async def test_the_command_does_not_read_our_input() -> None:
    record = Recorder()
    read_end, write_end = os.pipe()
    os.write(write_end, b"for us")
    os.close(write_end)
    ours = os.dup(0)
    os.dup2(read_end, 0)
    try:
        await finish(start("cat", record))
    finally:
        os.dup2(ours, 0)
        os.close(ours)
        os.close(read_end)
    assert record.pieces == []


async def test_no_descriptor_of_ours_is_passed_on() -> None:
    record = Recorder()
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    process = start(f"[ ! -e /proc/$$/fd/{write_end} ]", record)
    assert await finish(process) == Exit(code=0)
    os.close(read_end)
    os.close(write_end)


@pytest.mark.spec("S4-65")
async def test_stop_asks_first_and_a_command_that_listens_can_clean_up(tmp_path: Path) -> None:
    record = Recorder()
    script = "trap 'sh -c \"echo cleaned\"; exit 3' TERM; echo ready; while :; do sleep 300; done"
    process = start(script, record)
    await record.until(b"ready\n")
    assert process.stop(grace=20)
    ended = await finish(process)
    assert (ended.code, ended.stopped) == (3, True)
    assert record.text("stdout") == b"ready\ncleaned\n"


@pytest.mark.spec("S4-65")
async def test_stop_kills_whoever_does_not_listen(watch: None) -> None:
    record = Recorder()
    process = start("trap '' TERM; echo ready; while :; do read; done < <(sleep 300)", record)
    await record.until(b"ready\n")
    process.stop(grace=0.05)
    ended = await finish(process)
    assert (ended.code, ended.signal, ended.stopped) == (None, signal.SIGKILL, True)


@pytest.mark.spec("S4-65")
async def test_every_process_is_asked_only_once() -> None:
    """Many programs take a second SIGTERM as an order to skip their cleanup."""
    record = Recorder()
    script = "trap 'echo asked' TERM; echo ready; while :; do read; done < <(trap '' TERM; sleep 9)"
    process = start(script, record)
    await record.until(b"ready\n")
    process.stop(grace=0.3)
    await record.until(b"asked\n")
    process.stop(grace=0.3)
    await finish(process)
    assert record.text("stdout") == b"ready\nasked\n"


@pytest.mark.spec("S4-68", "S4-69")
async def test_stopping_twice_is_stopping_once_and_after_the_end_there_is_nothing_to_stop() -> None:
    process = start("sleep 300")
    assert (process.stop(), process.stop()) == (True, True)
    assert await finish(process) == Exit(signal=signal.SIGTERM, stopped=True)
    assert process.stop() is False


@pytest.mark.spec("S4-69")
async def test_a_second_stop_may_shorten_the_grace() -> None:
    record = Recorder()
    process = start("trap '' TERM; echo ready; while :; do read; done < <(sleep 300)", record)
    await record.until(b"ready\n")
    process.stop(grace=600)
    process.stop(grace=0)
    assert (await finish(process)).signal == signal.SIGKILL


async def test_a_command_that_had_ended_by_itself_was_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what it left in the background is ended sooner."""
    monkeypatch.setattr(processes, "DRAIN_S", 600)
    process = start("setsid sleep 300 >/dev/null 2>&1 & exit 5")
    over = asyncio.Event()
    pidfd = os.pidfd_open(process.pid)
    asyncio.get_running_loop().add_reader(pidfd, over.set)
    async with asyncio.timeout(60):
        await over.wait()
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    assert process.stop()
    assert await finish(process) == Exit(code=5, ended=1)


@pytest.mark.spec("S4-65")
async def test_a_process_that_is_suspended_is_woken_to_clean_up() -> None:
    record = Recorder()
    script = (
        "setsid bash -c 'trap \"echo woken; exit\" TERM; kill -STOP $$; :' & "
        "until grep -q '^State:.T' /proc/$!/status; do :; done; echo ready; wait"
    )
    process = start(script, record)
    await record.until(b"ready\n")
    process.stop(grace=20)
    await finish(process)
    assert record.text("stdout") == b"ready\nwoken\n"


@pytest.mark.spec("S4-70")
async def test_two_stubborn_commands_are_stopped_side_by_side() -> None:
    """Both are asked before either is killed: nobody waits for the other's grace."""
    records = [Recorder(), Recorder()]
    script = "trap 'echo asked' TERM; echo ready; while :; do read; done < <(sleep 300)"
    pair = [start(script, record) for record in records]
    for record in records:
        await record.until(b"ready\n")
    for process in pair:
        process.stop(grace=600)
    for record in records:
        await record.until(b"asked\n")
    for process in pair:
        process.stop(grace=0)
    assert [(await finish(process)).signal for process in pair] == [signal.SIGKILL] * 2


@pytest.mark.spec("S4-66", "T-7", "T44")
async def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_result(watch: None) -> None:
    record = Recorder()
    process = start("echo done; (trap '' HUP; exec sleep 300) & exit 0", record)
    assert await finish(process) == Exit(code=0, ended=1)
    assert record.text("stdout") == b"done\n"


@pytest.mark.spec("T44")
async def test_a_pipe_that_stays_open_whatever_we_do_is_given_up() -> None:
    """A process that is not of the tree got hold of the pipe: here, we ourselves."""
    process = start("read < /dev/null; kill -STOP $$")
    held = os.open(f"/proc/{process.pid}/fd/1", os.O_WRONLY)
    try:
        process.stop(grace=0)
        assert (await finish(process)).stopped
    finally:
        os.close(held)


async def test_what_cannot_be_ended_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As another user's process, whose end the system refuses us."""
    monkeypatch.setattr(trees.Tree, "strike", trees.Tree.members)
    monkeypatch.setattr(processes, "KILL_PATIENCE_S", 0.05)
    record = Recorder()
    process = start("trap '' TERM; setsid sh -c 'echo $$; sleep 9; :' & wait", record)
    await record.until(b"\n")
    process.stop(grace=0)
    ended = await finish(process)
    os.killpg(int(record.text("stdout")), signal.SIGKILL)
    assert (ended.stopped, ended.survivors > 0, len(caplog.records)) == (True, True, 1)


async def test_a_process_substitution_may_finish_after_the_shell() -> None:
    record = Recorder()
    process = start("echo hello > >(while read -r line; do echo got $line; done)", record)
    assert await finish(process) == Exit(code=0)
    assert record.text("stdout") == b"got hello\n"


async def test_leaving_the_block_stops_what_still_runs() -> None:
    async with start("sleep 300") as process:
        pass
    assert process.stop() is False


async def test_a_cancelled_waiter_does_not_cancel_the_stopping() -> None:
    record = Recorder()
    process = start("trap '' TERM; echo ready; while :; do read; done < <(sleep 300)", record)
    await record.until(b"ready\n")

    async def run() -> None:
        async with process:
            await process.wait()

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    for _ in range(2):  # the second one hits the wait for the end
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    process.stop(grace=0)
    assert (await finish(process)).signal == signal.SIGKILL


async def test_many_commands_at_once_end_right_and_leave_nothing(watch: None) -> None:
    descriptors_before, children_before = descriptors(), children()
    records = [Recorder() for _ in range(50)]
    running = [start(f"echo {i}; exit {i}", record) for i, record in enumerate(records)]
    assert [await finish(process) for process in running] == [Exit(code=i) for i in range(50)]
    assert [record.text("stdout") for record in records] == [b"%d\n" % i for i in range(50)]
    assert descriptors() <= descriptors_before
    assert children() == children_before


async def test_a_hundred_starts_and_stops_of_a_launcher_leave_nothing() -> None:
    """Launchers like npx start the real program as a grandchild and die alone."""
    descriptors_before, children_before = descriptors(), children()
    for _ in range(100):
        record = Recorder()
        process = start("sh -c 'sleep 300 & echo $!; wait'; true", record)
        await record.until(b"\n")
        process.stop(grace=5)
        await finish(process)
        assert not running(int(record.text("stdout")))
    assert descriptors() <= descriptors_before
    assert children() == children_before


async def test_a_loop_in_another_thread_can_run_commands(watch: None) -> None:
    results: list[Exit] = []

    async def run() -> None:
        results.append(await start("exit 4").wait())

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert results == [Exit(code=4)]


async def test_a_status_that_another_part_of_the_program_took_is_unknown() -> None:
    record = Recorder()
    process = start("exec sleep 300", record)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert await finish(process) == Exit()


def test_a_runtime_that_inherits_orphans_buries_them() -> None:
    """As process 1 of a container does; PR_SET_CHILD_SUBREAPER stands for it here."""
    program = """
import asyncio, ctypes, os
from callgate.sandbox import processes, trees
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
async def main():
    for _ in range(3):
        script = "(setsid sleep 300 &) ; (sleep 300 &) ; (true &) ; :"
        await processes.start(["/bin/bash", "-c", script], cwd="/",
            env={"PATH": os.environ["PATH"]}, on_output=print).wait()
asyncio.run(main())
print(open(f"/proc/self/task/{os.getpid()}/children").read().split())
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "[]\n"


def test_the_files_we_open_are_not_laid_at_the_callers_door() -> None:
    """The dispatcher watches what a tool opens, by a context variable and an audit hook."""
    program = """
import asyncio, contextvars, os, sys
from callgate.sandbox import processes
tool = contextvars.ContextVar("tool", default=None)
opened = []
sys.addaudithook(lambda event, args: event == "open" and tool.get() and opened.append(args[0]))
async def main():
    tool.set("shell")
    for _ in range(2):
        process = processes.start(["/bin/sleep", "300"], cwd="/", env={}, on_output=print)
        process.stop()
        process.stop()
        await process.wait()
asyncio.run(main())
print(opened)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "[]\n"
