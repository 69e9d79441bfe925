"""A command runs, its output arrives, and it ends: by itself, or because it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.core.commands import Exit
from callgate.sandbox import meters
from callgate.sandbox.processes.broker_client import BrokeredProcess, BrokerProcess
from tests.kernel.sandbox.process_shapes import PRELUDE, SHAPES, running
from tests.kernel.sandbox.test_brokered_processes import Record, finish, gone
from tests.kernel.sandbox.test_brokered_processes import start as start_in
from tests.needs import needs
from tests.support import descriptors

pytestmark = needs("linux", "bash", "setsid")

STUBBORN = "trap '' TERM; echo ready; while :; do read; done < <(sleep 300)"


@pytest.fixture
async def process() -> AsyncIterator[BrokerProcess]:
    process = BrokerProcess()
    yield process
    process.close()


async def start(process: BrokerProcess, script: str, record: Record | None = None, **env: str) -> BrokeredProcess:
    return await start_in(process, None, script, record, **env)


@pytest.mark.spec("S4-75")
async def test_both_streams_arrive_each_in_its_own_order(process: BrokerProcess) -> None:
    record = Record()
    command = await start(process, "for i in 1 2 3; do echo out $i; echo err $i >&2; done", record)
    assert await finish(command) == Exit(code=0)
    assert record.streams == {"stdout": b"out 1\nout 2\nout 3\n", "stderr": b"err 1\nerr 2\nerr 3\n"}


async def test_output_arrives_while_the_command_runs(process: BrokerProcess, tmp_path: Path) -> None:
    record = Record()
    os.mkfifo(tmp_path / "go")
    command = await start(process, f"echo first; read < {tmp_path}/go; echo second", record)
    await record.until(b"first\n")
    assert record.streams["stdout"] == b"first\n"
    (tmp_path / "go").write_text("\n")
    assert await finish(command) == Exit(code=0)
    assert record.streams["stdout"] == b"first\nsecond\n"


@pytest.mark.parametrize("code", [0, 1, 127, 255])
async def test_the_exit_code_is_the_commands_own(process: BrokerProcess, code: int) -> None:
    assert await finish(await start(process, f"exit {code}")) == Exit(code=code)


@pytest.mark.parametrize("number", [signal.SIGSEGV, 40])
async def test_a_command_that_a_signal_ended_says_which(process: BrokerProcess, number: int) -> None:
    assert await finish(await start(process, f"kill -{number} $$")) == Exit(signal=number)


async def test_the_command_has_no_terminal(process: BrokerProcess) -> None:
    record = Record()
    await finish(await start(process, "(: < /dev/tty) 2>/dev/null || echo none", record))
    assert record.streams["stdout"] == b"none\n"


async def test_the_command_does_not_read_our_input(process: BrokerProcess) -> None:
    record = Record()
    read_end, write_end = os.pipe()
    os.write(write_end, b"for us")
    os.close(write_end)
    ours = os.dup(0)
    os.dup2(read_end, 0)
    try:
        await finish(await start(process, "cat", record))
    finally:
        os.dup2(ours, 0)
        os.close(ours)
        os.close(read_end)
    assert record.streams == {"stdout": b"", "stderr": b""}


async def test_no_descriptor_of_ours_is_passed_on(process: BrokerProcess) -> None:
    read_end, write_end = os.pipe()
    high = os.dup2(write_end, 200, inheritable=True)
    try:
        command = await start(process, f"[ ! -e /proc/$$/fd/{high} ]")
        assert await finish(command) == Exit(code=0)
    finally:
        for descriptor in (read_end, write_end, high):
            os.close(descriptor)


# --- stopping ---------------------------------------------------------------------------------


@pytest.mark.spec("S4-65")
async def test_a_command_that_cleans_up_may_start_others_for_it(process: BrokerProcess) -> None:
    record = Record()
    script = "trap 'sh -c \"echo cleaned\"; exit 3' TERM; echo ready; while :; do sleep 300; done"
    command = await start(process, script, record)
    await record.until(b"ready\n")
    assert command.stop(grace=60)
    ended = await finish(command)
    assert (ended.code, ended.stopped) == (3, True)
    assert record.streams["stdout"] == b"ready\ncleaned\n"


@pytest.mark.spec("S4-65")
async def test_stop_kills_whoever_does_not_listen(process: BrokerProcess) -> None:
    record = Record()
    command = await start(process, STUBBORN, record)
    await record.until(b"ready\n")
    command.stop(grace=0.05)
    ended = await finish(command)
    assert (ended.code, ended.signal, ended.stopped) == (None, signal.SIGKILL, True)


@pytest.mark.spec("S4-65")
async def test_every_process_is_asked_only_once(process: BrokerProcess) -> None:
    """Many programs take a second SIGTERM as an order to skip their cleanup."""
    record = Record()
    script = "trap 'echo asked' TERM; echo ready; while :; do read; done < <(trap '' TERM; sleep 300)"
    command = await start(process, script, record)
    await record.until(b"ready\n")
    command.stop(grace=600)
    await record.until(b"asked\n")
    command.stop(grace=0.3)
    await finish(command)
    assert record.streams["stdout"] == b"ready\nasked\n"


@pytest.mark.spec("S4-68", "S4-69")
async def test_stopping_twice_is_stopping_once_and_after_the_end_there_is_nothing_to_stop(
    process: BrokerProcess,
) -> None:
    command = await start(process, "exec sleep 300")
    assert (command.stop(), command.stop()) == (True, True)
    assert await finish(command) == Exit(signal=signal.SIGTERM, stopped=True)
    assert command.stop() is False


@pytest.mark.spec("S4-69")
async def test_a_second_stop_may_shorten_the_grace(process: BrokerProcess) -> None:
    record = Record()
    command = await start(process, STUBBORN, record)
    await record.until(b"ready\n")
    command.stop(grace=600)
    command.stop(grace=0)
    assert (await finish(command)).signal == signal.SIGKILL


@pytest.mark.spec("S4-65")
async def test_a_process_that_is_suspended_is_woken_to_clean_up(process: BrokerProcess) -> None:
    record = Record()
    script = (
        "setsid bash -c 'trap \"echo woken; exit\" TERM; kill -STOP $$; :' & "
        "until grep -q '^State:.T' /proc/$!/status; do :; done; echo ready; wait"
    )
    command = await start(process, script, record)
    await record.until(b"ready\n")
    command.stop(grace=60)
    await finish(command)
    assert record.streams["stdout"] == b"ready\nwoken\n"


@pytest.mark.spec("S4-70")
async def test_two_stubborn_commands_are_stopped_side_by_side(process: BrokerProcess) -> None:
    """Both are asked before either is killed: nobody waits for the other's grace."""
    records = [Record(), Record()]
    script = "trap 'echo asked' TERM; echo ready; while :; do read; done < <(sleep 300)"
    pair = [await start(process, script, record) for record in records]
    for record in records:
        await record.until(b"ready\n")
    for command in pair:
        command.stop(grace=600)
    for record in records:
        await record.until(b"asked\n")
    for command in pair:
        command.stop(grace=0)
    assert [(await finish(command)).signal for command in pair] == [signal.SIGKILL] * 2


async def test_a_cancelled_waiter_does_not_cancel_the_stopping(process: BrokerProcess) -> None:
    record = Record()
    command = await start(process, STUBBORN, record)
    await record.until(b"ready\n")

    async def run() -> None:
        async with command:
            await command.wait()

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    for _ in range(2):  # the second one hits the wait for the end
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    command.stop(grace=0)
    assert (await finish(command)).signal == signal.SIGKILL


# --- what is left ------------------------------------------------------------------------------


@pytest.mark.spec("T44")
async def test_a_pipe_that_stays_open_whatever_we_do_is_given_up(process: BrokerProcess) -> None:
    """A process that is not of the tree got hold of the pipe: here, we ourselves."""
    record = Record()
    command = await start(process, "echo $$; exec sleep 300", record)
    await record.until(b"\n")
    pipe = os.open(f"/proc/{int(record.streams['stdout'])}/fd/1", os.O_WRONLY)
    try:
        command.stop(grace=0)
        assert (await finish(command)).stopped
    finally:
        os.close(pipe)


async def test_a_process_substitution_may_finish_after_the_shell(process: BrokerProcess) -> None:
    record = Record()
    script = "echo hello > >(while read -r line; do echo got $line; done)"
    assert (await finish(await start(process, script, record))).code == 0
    assert record.streams["stdout"] == b"got hello\n"


async def test_a_process_that_is_not_of_the_command_is_left_alone(process: BrokerProcess, tmp_path: Path) -> None:
    """A child of ours, and another command at the same time with a daemon beside it."""
    records = [Record(), Record()]
    other = await start(process, PRELUDE + SHAPES["double fork"], records[0], PIDS=str(tmp_path / "other"))
    await records[0].until(b"ready\n")
    bystander = await asyncio.create_subprocess_exec("sleep", "300")
    command = await start(process, PRELUDE + SHAPES["setsid"], records[1], PIDS=str(tmp_path / "pids"))
    await records[1].until(b"ready\n")
    command.stop(grace=0)
    await finish(command)
    (daemon,) = map(int, (tmp_path / "other").read_text().split())
    assert (bystander.returncode, running(bystander.pid), running(daemon)) == (None, True, True)
    bystander.kill()
    await bystander.wait()
    other.stop(grace=0)
    await finish(other)


async def test_thirty_starts_and_stops_of_a_launcher_leave_nothing(process: BrokerProcess) -> None:
    """Launchers like npx start the real program as a grandchild and die alone."""
    await finish(await start(process, "true"))
    before = descriptors()
    for _ in range(30):
        record = Record()
        command = await start(process, "sh -c 'sleep 300 & echo $!; wait'; true", record)
        await record.until(b"\n")
        command.stop(grace=5)
        await finish(command)
        assert not running(int(record.streams["stdout"]))
    assert descriptors() <= before
    assert process.pid is not None
    gone(*meters.children(process.pid))


async def test_a_loop_in_another_thread_can_run_commands() -> None:
    results: list[Exit] = []

    async def run() -> None:
        process = BrokerProcess()
        results.append(await finish(await start(process, "exit 4")))
        process.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    await asyncio.to_thread(thread.join, 60)
    assert results == [Exit(code=4)]


def test_the_files_we_open_for_a_running_command_are_not_laid_at_the_callers_door() -> None:
    """The dispatcher watches what a tool opens, by a context variable and an audit hook."""
    program = """
import asyncio, contextvars, sys
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sandbox.plans import Command
tool = contextvars.ContextVar("tool", default=None)
opened = []
sys.addaudithook(lambda event, args: event == "open" and tool.get() and opened.append(args[0]))
async def main():
    process = BrokerProcess()
    command = Command(argv=("/bin/sleep", "300"), cwd="/", env={})
    running = await BrokerLauncher(process, None).start(command, print)
    tool.set("shell")
    running.stop()
    running.stop()
    await running.wait()
    process.close()
asyncio.run(main())
print(opened)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "[]\n"
