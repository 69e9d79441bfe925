"""A command that the broker started: it runs, is read, and ends with all that it left."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.core.commands import Exit
from callgate.sandbox import meters
from callgate.sandbox.backends import cgroups
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import Command, SandboxPlan
from callgate.sandbox.processes import ordering
from callgate.sandbox.processes.broker_client import (
    BrokeredProcess,
    BrokerLauncher,
    BrokerProcess,
    RestrictionFailed,
)
from tests.kernel.sandbox.process_shapes import ONLY_WHEN_STOPPED, PRELUDE, SHAPES, running
from tests.kernel.sandbox.test_escapes import backends, needed
from tests.kernel.sandbox.worlds import PYTHON
from tests.needs import needs
from tests.support import descriptors

pytestmark = needs("linux", "bash", "setsid")

SANDBOXES = {
    "bare": (),
    "landlock": ("landlock", "seccomp"),
    "namespaces": ("namespaces", "seccomp"),
}


@pytest.fixture(autouse=True, scope="module")
def tried_out() -> None:
    """Before any loop runs: what the tests need to know of the machine."""
    backends()


@pytest.fixture
async def process() -> AsyncIterator[BrokerProcess]:
    process = BrokerProcess()
    yield process
    process.close()


@pytest.fixture(params=SANDBOXES)
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxPlan | None:
    names = SANDBOXES[request.param]
    needed(set(names))
    return SandboxPlan(Jail(writable=(str(tmp_path),)), names) if names else None


class Record:
    """What a command wrote, and an event for each time that it wrote something."""

    def __init__(self) -> None:
        self.streams = {"stdout": b"", "stderr": b""}
        self._news = asyncio.Event()

    def __call__(self, stream: str, data: bytes) -> None:
        self.streams[stream] += data
        self._news.set()

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(60):
            while text not in self.streams["stdout"]:
                self._news.clear()
                await self._news.wait()


async def start(
    process: BrokerProcess,
    plan: SandboxPlan | None,
    script: str,
    record: Record | None = None,
    cwd: str = "/",
    **env: str,
) -> BrokeredProcess:
    command = Command(argv=("/bin/bash", "-c", script), cwd=cwd, env={"PATH": os.environ["PATH"], **env})
    return await BrokerLauncher(process, plan).start(command, record or Record())


async def finish(kept: BrokeredProcess) -> Exit:
    async with asyncio.timeout(60):
        return await kept.wait()


def gone(*pids: int) -> None:
    """Wait until none of these runs any more."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([descriptor], [], [], 20)
        os.close(descriptor)
        assert ready, f"{pid} still runs"


def in_namespace(name: str) -> list[int]:
    """Everyone who runs in a PID namespace."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == name and running(int(pid)):
                found.append(int(pid))
        except OSError:
            pass
    return found


# --- one command ----------------------------------------------------------------------------


async def test_both_streams_arrive_and_the_exit_code_is_the_commands_own(
    process: BrokerProcess, plan: SandboxPlan | None
) -> None:
    record = Record()
    kept = await start(process, plan, "echo out; echo err >&2; exit 7", record)
    assert await finish(kept) == Exit(code=7)
    assert record.streams == {"stdout": b"out\n", "stderr": b"err\n"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGPIPE, signal.SIGINT])
async def test_a_command_that_a_signal_ended_says_which(
    process: BrokerProcess, plan: SandboxPlan | None, number: int
) -> None:
    assert await finish(await start(process, plan, f"kill -{number} $$")) == Exit(signal=number)


async def test_a_command_that_cannot_start_raises_what_the_system_said_and_leaks_nothing(
    process: BrokerProcess, plan: SandboxPlan | None, tmp_path: Path
) -> None:
    launcher = BrokerLauncher(process, plan)
    await finish(await start(process, plan, "true"))
    before = descriptors()
    (tmp_path / "file").write_text("")
    for argv, cwd, error in (
        ("/no/such/program", "/", FileNotFoundError),
        ("no-such-program", "/", FileNotFoundError),
        (str(tmp_path / "file"), "/", PermissionError),
        ("/bin/true", "/no/such/directory", FileNotFoundError),
        ("/bin/true", "/etc/passwd", NotADirectoryError),
    ):
        with pytest.raises(error):
            await launcher.start(Command(argv=(argv,), cwd=cwd, env={}), Record())
    assert descriptors() <= before


async def test_a_command_gets_its_environment_three_descriptors_and_nothing_else(
    process: BrokerProcess, plan: SandboxPlan | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    record = Record()
    show = (
        "import os; print(sorted(os.environ), sorted(os.listdir('/proc/self/fd')), os.read(0, 1),"
        " os.getsid(0) == os.getpid())"
    )
    command = Command(argv=(PYTHON, "-I", "-S", "-c", show), cwd="/", env={"LC_ALL": "C.UTF-8"})
    assert await finish(await BrokerLauncher(process, plan).start(command, record)) == Exit(code=0)
    # Python reads the directory of descriptors through the last of them.
    expected = "['CALLGATE_CALL', 'LC_ALL'] ['0', '1', '2', '3'] b'' True\n"
    assert record.streams["stdout"].decode() == expected


async def test_every_process_carries_the_mark_of_its_lineage(process: BrokerProcess, plan: SandboxPlan | None) -> None:
    record = Record()
    await finish(await start(process, plan, "ulimit -S -x; echo $CALLGATE_CALL", record))
    limit, mark = record.streams["stdout"].decode().split()
    assert mark.rpartition(".")[2] == limit


async def test_a_large_command_line_arrives_whole(process: BrokerProcess, plan: SandboxPlan | None) -> None:
    record = Record()
    words = tuple(str(number) * 100_000 for number in range(8))
    command = Command(argv=("/bin/bash", "-c", "echo ${#1} ${#8}", "x", *words), cwd="/", env={})
    await finish(await BrokerLauncher(process, plan).start(command, record))
    assert record.streams["stdout"] == b"100000 100000\n"


async def test_an_order_that_is_too_large_is_refused_here(process: BrokerProcess) -> None:
    with pytest.raises(OSError) as refused:
        await start(process, None, "x" * 9_000_000)
    assert refused.value.errno == errno.E2BIG
    assert await finish(await start(process, None, "true")) == Exit(code=0)


async def test_many_commands_at_once_end_right_and_leave_nothing(
    process: BrokerProcess, plan: SandboxPlan | None
) -> None:
    await finish(await start(process, plan, "true"))
    before = descriptors()
    started = await asyncio.gather(*(start(process, plan, f"exit {n}") for n in range(32)))
    assert [await finish(kept) for kept in started] == [Exit(code=n) for n in range(32)]
    assert descriptors() <= before
    assert process.pid is not None
    gone(*meters.children(process.pid))


# --- its end ----------------------------------------------------------------------------------


async def test_stop_asks_first_and_a_command_that_listens_can_clean_up(
    process: BrokerProcess, plan: SandboxPlan | None
) -> None:
    record = Record()
    kept = await start(
        process,
        plan,
        "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 1; done",
        record,
    )
    await record.until(b"ready")
    assert kept.stop()
    ended = await finish(kept)
    assert (ended.code, ended.stopped, record.streams["stdout"]) == (3, True, b"ready\ncleaned\n")
    assert not kept.stop()


async def test_stop_kills_whoever_does_not_listen_and_a_second_stop_shortens_the_grace(
    process: BrokerProcess, plan: SandboxPlan | None
) -> None:
    record = Record()
    kept = await start(process, plan, "trap '' TERM; echo ready; sleep 300; sleep 300", record)
    await record.until(b"ready")
    assert kept.stop(grace=300) and kept.stop(grace=0)
    ended = await finish(kept)
    assert (ended.signal, ended.stopped, ended.survivors) == (signal.SIGKILL, True, 0)


async def test_leaving_the_block_stops_what_still_runs(process: BrokerProcess, plan: SandboxPlan | None) -> None:
    async with await start(process, plan, "sleep 300") as kept:
        pass
    assert (await finish(kept)).stopped


@pytest.mark.spec("T44")
async def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_result(
    process: BrokerProcess, plan: SandboxPlan | None
) -> None:
    kept = await start(process, plan, "setsid sleep 300 & exit 4")
    assert await finish(kept) == Exit(code=4, ended=1)


async def survivors_of(
    process: BrokerProcess, plan: SandboxPlan | None, script: str, pids: Path, *, stop: bool
) -> tuple[list[int], int]:
    """Who still runs when the command has ended, and how many its result admits to."""
    if not stop:
        script = script.replace("ready; wait", "ready").replace("ready; sleep 300", "ready")
        script = script.replace("ready; while :; do wait; done", "ready")
    record = Record()
    script = "readlink /proc/self/ns/pid; " + PRELUDE + script
    kept = await start(process, plan, script, record, PIDS=str(pids))
    await record.until(b"ready")
    if stop:
        kept.stop(grace=0.1)
    ended = await finish(kept)
    Path(f"{pids}.end").touch()
    if plan is not None and "namespaces" in plan.backends:
        assert process.pid is not None
        keepers = meters.children(process.pid)  # it said its last word, but may not be gone yet
        inside = in_namespace(record.streams["stdout"].split()[0].decode())
        return [pid for pid in inside if pid not in keepers], ended.survivors
    return [pid for pid in map(int, pids.read_text().split()) if running(pid)], ended.survivors


@pytest.mark.spec("S4-66", "T-7", "T44")
@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "by itself"])
async def test_no_tree_of_processes_outlives_its_command(
    process: BrokerProcess, plan: SandboxPlan | None, tmp_path: Path, stop: bool
) -> None:
    """All shapes at once, so that nobody is ended, or spared, for another."""
    shapes = SHAPES | ONLY_WHEN_STOPPED if stop else SHAPES
    if plan is not None and "landlock" in plan.backends:  # where no child reads its own /proc
        shapes = {name: script for name, script in shapes.items() if "/proc/" not in script}
    left = await asyncio.gather(
        *(
            survivors_of(process, plan, script, tmp_path / f"pids{number}", stop=stop)
            for number, script in enumerate(shapes.values())
        )
    )
    assert dict(zip(shapes, left, strict=True)) == dict.fromkeys(shapes, ([], 0))


async def test_a_start_that_is_cancelled_leaves_nothing(
    process: BrokerProcess, plan: SandboxPlan | None, tmp_path: Path
) -> None:
    await finish(await start(process, plan, "true"))
    starting = [asyncio.create_task(start(process, plan, "exec sleep 300")) for _ in range(8)]
    await asyncio.sleep(0)  # each has sent its order, or is about to
    for task in starting:
        task.cancel()
    await asyncio.gather(*starting, return_exceptions=True)
    assert await finish(await start(process, plan, "true")) == Exit(code=0)
    assert process.pid is not None
    gone(*meters.children(process.pid))


# --- when someone dies --------------------------------------------------------------------------

RUNTIME = """
import asyncio, sys
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import Command
from callgate.sandbox.plans import SandboxPlan

async def main():
    names = tuple(sys.argv[1].split())
    plan = SandboxPlan(Jail(), names) if names else None
    script = "trap '' TERM; setsid sleep 300 & echo up; setsid setsid sleep 300; sleep 300"
    process = BrokerProcess()
    up = asyncio.Event()
    command = Command(argv=("/bin/bash", "-c", script), cwd="/", env={"PATH": "/usr/bin:/bin"})
    async with await BrokerLauncher(process, plan).start(command, lambda *_: up.set()) as kept:
        await up.wait()
        print(process.pid, flush=True)
        await kept.wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_nothing_outlives_a_runtime_that_is_killed(sandbox: str) -> None:
    needed(set(SANDBOXES[sandbox]))
    argv = [sys.executable, "-c", RUNTIME, " ".join(SANDBOXES[sandbox])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as runtime:
        assert runtime.stdout is not None
        broker = int(runtime.stdout.readline())
        everyone = meters.descendants(broker) | {broker}
        assert len(everyone) >= 4
        runtime.kill()
    gone(*everyone)


async def test_a_broker_that_is_killed_takes_no_command_with_it_and_is_started_again(
    process: BrokerProcess, plan: SandboxPlan | None
) -> None:
    record = Record()
    kept = await start(process, plan, "echo up; exec sleep 300", record)
    await record.until(b"up")
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    gone(first)
    assert await finish(await start(process, plan, "exit 5")) == Exit(code=5)
    assert process.pid != first
    assert kept.stop(grace=0)
    ended = await finish(kept)
    assert (ended.stopped, ended.survivors) == (True, 0)


async def test_a_command_that_ends_its_own_keeper_is_ended_by_the_broker(
    process: BrokerProcess,
) -> None:
    record = Record()
    # Not before it has said that it began, which would be a start that failed.
    script = "setsid sleep 300 & echo $! $$ ; sleep 0.2; kill -9 $PPID; exec sleep 300"
    kept = await start(process, None, script, record)
    assert await finish(kept) == Exit()
    gone(*map(int, record.streams["stdout"].split()))


async def test_closing_ends_every_command_and_the_broker(process: BrokerProcess, plan: SandboxPlan | None) -> None:
    record = Record()
    kept = await start(process, plan, "echo up; sleep 300", record)
    await record.until(b"up")
    assert process.pid is not None
    everyone = {process.pid, *meters.descendants(process.pid)}
    process.close()
    assert (await finish(kept)).stopped
    gone(*everyone)


async def test_the_broker_has_no_environment_no_terminal_and_no_descriptor_of_ours(
    process: BrokerProcess,
) -> None:
    await finish(await start(process, None, "true"))
    place = f"/proc/{process.pid}"
    assert Path(place, "environ").read_bytes() == b""
    open_files = {os.readlink(f"{place}/fd/{name}") for name in os.listdir(f"{place}/fd")}
    kinds = {name.split(":")[0] for name in open_files if f"/{cgroups.PREFIX}" not in name}
    assert kinds == {"/dev/null", "socket", "pipe"}
    assert process.pid is not None and os.getsid(process.pid) == process.pid


# --- protected places that are not there --------------------------------------------------------


def protecting(workspace: Path, *names: str) -> SandboxPlan:
    needed({"namespaces", "seccomp"})
    jail = Jail(writable=(str(workspace),), protected=tuple(str(workspace / name) for name in names))
    return SandboxPlan(jail, ("seccomp", "namespaces"))


@pytest.mark.spec("T07")
async def test_what_was_put_in_the_place_of_a_missing_protected_path_is_gone_afterwards(
    process: BrokerProcess, tmp_path: Path
) -> None:
    plan = protecting(tmp_path, ".envrc", ".callgate/settings.toml", ".git/hooks/x", ".git/config")
    kept = await start(process, plan, "! mkdir -p .callgate/a && ! touch .envrc", cwd=str(tmp_path))
    assert await finish(kept) == Exit(code=0)
    gone(*meters.children(process.pid or 0))
    assert os.listdir(tmp_path) == []


@pytest.mark.spec("T07")
async def test_a_missing_protected_path_stays_missing_for_a_command_that_outlasts_another(
    process: BrokerProcess, tmp_path: Path
) -> None:
    plan = protecting(tmp_path, ".envrc")
    os.mkfifo(tmp_path / "go")
    script = "echo up; read < go; echo hostile > .envrc; cat .envrc"
    record = Record()
    longer = await start(process, plan, script, record, cwd=str(tmp_path))
    await record.until(b"up")
    assert await finish(await start(process, plan, "true")) == Exit(code=0)
    gone(*(pid for pid in meters.children(process.pid or 0) if not meters.children(pid)))
    (tmp_path / "go").write_text("\n")
    await finish(longer)
    gone(*meters.children(process.pid or 0))
    assert record.streams["stdout"] == b"up\n"
    assert os.listdir(tmp_path) == ["go"]


@pytest.mark.spec("T02", "T07")
@pytest.mark.parametrize("link", [".git", ".git/hooks"])
async def test_a_link_on_the_way_to_a_protected_path_refuses_the_start(
    process: BrokerProcess, tmp_path: Path, link: str
) -> None:
    (tmp_path / "elsewhere" / "hooks").mkdir(parents=True)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    plan = protecting(tmp_path, ".git/hooks")
    with pytest.raises(RestrictionFailed) as refused:
        await start(process, plan, "touch ran", cwd=str(tmp_path))
    assert (refused.value.errno, refused.value.step) == (errno.ELOOP, "namespaces")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("backend", ["landlock", "seccomp"])
async def test_a_step_that_fails_starts_nothing(process: BrokerProcess, tmp_path: Path, backend: str) -> None:
    needed({"landlock", "seccomp"})
    command = Command(argv=("/usr/bin/touch", str(tmp_path / "ran")), cwd="/", env={})
    order = ordering.order(command, SandboxPlan(Jail(), ("landlock", "seccomp")))
    if backend == "landlock":
        assert order["landlock"] is not None
        order["landlock"]["scopes"] = 1 << 40
    else:
        order["filter"] = b"not a program, at all..."
    with pytest.raises(RestrictionFailed) as refused:
        await process.start(order, Record())
    assert (refused.value.errno, refused.value.step) == (errno.EINVAL, backend)
    assert not (tmp_path / "ran").exists()


NAP = f"7777.{os.getpid()}"
"""Differs in each test process: storms of several run concurrently on one machine."""
STORM = (
    f"trap '' TERM; nohup sleep {NAP} & (setsid sh -c 'sleep {NAP} & sleep {NAP}' &) ; "
    # Each forks its successor and ends; the number keeps a lost one from running for ever.
    f"hop() {{ [ $1 -gt 400 ] || (hop $(($1 + 1)) &) ; }}; hop 0; sleep {NAP}"
)


@pytest.mark.soak
@pytest.mark.spec("T44")
async def test_a_thousand_random_cancels_of_forking_commands_leave_nothing(
    process: BrokerProcess, plan: SandboxPlan | None
) -> None:
    """In turn for each sandbox, four at a time, at any moment from the order to the storm."""
    chance, slots, before = random.Random(7), asyncio.Semaphore(4), descriptors()

    async def cancelled(delay: float) -> None:
        async def whole() -> None:
            async with await start(process, plan, STORM) as kept:
                try:
                    await kept.wait()
                finally:
                    kept.stop(grace=0)

        async with slots:
            task = asyncio.create_task(whole())
            await asyncio.wait([task], timeout=delay)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    await asyncio.gather(*(cancelled(chance.uniform(0, 0.06)) for _ in range(334)))
    # Orders are taken in turn: after this one, none of those above is still to come.
    assert await finish(await start(process, plan, "true")) == Exit(code=0)
    assert process.pid is not None
    gone(*meters.children(process.pid))
    assert meters.descendants(process.pid) == set()
    assert not [pid for pid in filter(str.isdigit, os.listdir("/proc")) if sleeps(pid)]
    process.close()
    assert descriptors() <= before


def sleeps(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{NAP}\0".encode()
    except OSError:
        return False
