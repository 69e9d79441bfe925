"""A sandboxed process swaps a directory for a link that leads out, while an editor opens files for
us by their names, and follows links as editors do. Nothing outside may be read or written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callgate.core.local.environment import Offered
from callgate.core.sessions import Mode, Session
from callgate.dispatch.commands.sandboxes import Sandbox, Surroundings
from callgate.dispatch.environments import LEADS_ELSEWHERE, WRITTEN_ON_DISK
from callgate.sandbox.leases import Leases, leads_through
from callgate.tools.files import PatchFile, ReadFile, WriteFile
from callgate.tools.shell import Shell
from tests.kernel.dispatch.test_environments import FakeTerminals
from tests.needs import needs
from tests.support import Bench

pytestmark = [needs("linux"), pytest.mark.spec("S2-16", "T03", "T04")]

LIMIT_S = 60.0
SECRET = "PRIVATE KEY"


class LinkFollowingEditor:
    """Opens what it is asked for in a thread, after some turns of the loop: as late as it can."""

    reads = writes = True

    def __init__(self) -> None:
        self.asked = 0
        self.hold: asyncio.Event | None = None
        self.held = "read"
        self.waiting = asyncio.Event()

    async def read(self, path: str, line: int | None, limit: int | None) -> str:
        await self._late("read")
        return await asyncio.to_thread(Path(path).read_text)

    async def write(self, path: str, content: str) -> None:
        await self._late("write")
        await asyncio.to_thread(Path(path).write_text, content)

    async def _late(self, request: str) -> None:
        self.asked += 1
        for _ in range(5):
            await asyncio.sleep(0)
        if self.hold is not None and request == self.held:
            self.waiting.set()
            await self.hold.wait()


class Arena:
    """`door/f` is a file of the workspace; `door.out` a link to where the secret is."""

    def __init__(self, base: Path) -> None:
        self.workspace, self.outside, self.home = (base / name for name in ("ws", "out", "home"))
        for place in (self.workspace / "door", self.outside, self.home):
            place.mkdir(parents=True)
        (self.workspace / "door" / "f").write_text("inside")
        (self.outside / "f").write_text(SECRET)
        (self.workspace / "door.out").symlink_to(self.outside)
        self.callgate_home = self.home / ".callgate"
        self.editor = LinkFollowingEditor()
        self.sandbox = Sandbox(Surroundings(home=str(self.home), callgate_home=str(self.callgate_home)))
        self.bench = Bench(
            self.workspace,
            ReadFile,
            WriteFile,
            PatchFile,
            Shell,
            mode=Mode.WRITE,
            sandbox=self.sandbox,
        )
        self.reader = Session(workspace=str(self.workspace), mode=Mode.READ)
        for session in (self.bench.session, self.reader):
            self.bench.dispatcher.environments.offer(session.id, Offered(files=self.editor))

    @property
    def leaked(self) -> bool:
        return (self.outside / "f").read_text() != SECRET

    async def read(self) -> str:
        result = await self.bench.run("read_file", {"path": "door/f"}, session=self.reader)
        return str(result.text)

    async def attack(self) -> None:
        """One read in mode read, one write and one edit, by way of the editor if there is one."""
        assert SECRET not in await self.read()
        await self.bench.run("write_file", {"path": "door/f", "content": "written"})
        await self.bench.run("patch_file", {"path": "door/f", "old": "written", "new": "edited"})
        assert not self.leaked

    def swap(self, seconds: float) -> asyncio.Task[object]:
        """A command in the sandbox that exchanges the two names again and again."""
        script = (
            "import ctypes, time; swap = ctypes.CDLL(None).renameat2; print('swapping', flush=True)\n"
            f"end = time.monotonic() + {seconds}\n"
            "while time.monotonic() < end: swap(-100, b'door', -100, b'door.out', 2)"
        )
        return self.bench.start("shell", {"command": f'/usr/bin/python3 -c "{script}"'})


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The editor is in this process, and what it opens seems to be opened by a tool."""
    caplog.set_level(logging.ERROR, logger="callgate.raw_open")


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which the sandbox replaces."""
    made = Path(tempfile.mkdtemp(prefix="callgate-", dir="/var/tmp")).resolve()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def arena_in(base: Path) -> AsyncIterator[Arena]:
    arena = Arena(base)
    try:
        yield arena
    finally:
        await arena.bench.dispatcher.close()
        arena.sandbox.close()


async def races(arena: Arena, rounds: int) -> None:
    """Commands that swap come and go, and the editor is asked all the while."""
    await arena.attack()
    assert arena.editor.asked == 5  # where nothing runs, it is used: writing and editing read first
    for _ in range(rounds):
        swapping = arena.swap(0.02)
        while not swapping.done():
            await arena.attack()
            await asyncio.sleep(0)  # a call that is refused does not wait for anything
        await swapping
        if (arena.workspace / "door").is_symlink():  # it ended the wrong way round
            swap_once(arena)
        await arena.attack()


def swap_once(arena: Arena) -> None:
    (arena.workspace / "door").rename(arena.workspace / "x")
    (arena.workspace / "door.out").rename(arena.workspace / "door")
    (arena.workspace / "x").rename(arena.workspace / "door.out")


async def test_a_process_that_swaps_directories_gets_nothing_outside_by_way_of_the_editor(
    base: Path,
) -> None:
    async with arena_in(base) as arena:
        await races(arena, 15)


@pytest.mark.soak
async def test_no_leak_by_way_of_the_editor_in_hundreds_of_races(base: Path) -> None:
    async with arena_in(base) as arena:
        await races(arena, 250)


async def test_while_a_command_may_write_there_files_are_read_and_written_on_the_disk_and_it_says_so(
    base: Path,
) -> None:
    async with arena_in(base) as arena:
        os.mkfifo(arena.workspace / "fifo")
        command = arena.bench.start("shell", {"command": "echo runs; cat <> fifo"})
        await arena.bench.recorder.seen("tool.output_delta")
        read = await arena.bench.run("read_file", {"path": "door/f"}, session=arena.reader)
        written = await arena.bench.run("write_file", {"path": "door/f", "content": "new"})
        patched = await arena.bench.run("patch_file", {"path": "door/f", "old": "new", "new": "newer"})
        assert arena.editor.asked == 0
        assert (read.text, (arena.workspace / "door/f").read_text()) == ("inside", "newer")
        assert [each.diagnostics for each in (read, written, patched)] == [(LEADS_ELSEWHERE,)] * 3
        assert WRITTEN_ON_DISK in written.text and WRITTEN_ON_DISK in patched.text
        await arena.bench.dispatcher.cancel_session_tools(arena.bench.session.id)
        await command
        assert (await arena.bench.run("read_file", {"path": "door/f"})).diagnostics == ()
        assert arena.editor.asked == 1


async def test_a_command_that_may_write_there_waits_until_the_editor_has_answered(base: Path) -> None:
    async with arena_in(base) as arena:
        arena.editor.hold = asyncio.Event()
        reading = asyncio.ensure_future(arena.read())
        await arena.editor.waiting.wait()
        command = arena.bench.start("shell", {"command": "echo ran > marker"})
        other = await arena.bench.run("shell", {"command": "echo reads only"}, session=arena.reader)
        assert "reads only" in other.text
        assert not command.done() and not (arena.workspace / "marker").exists()
        arena.editor.hold.set()
        assert await asyncio.wait_for(reading, LIMIT_S) == "inside"
        assert (await asyncio.wait_for(command, LIMIT_S)).ok
        assert (arena.workspace / "marker").exists()


async def test_a_command_that_waits_for_the_editor_can_be_cancelled(base: Path) -> None:
    async with arena_in(base) as arena:
        arena.editor.hold = asyncio.Event()
        reading = asyncio.ensure_future(arena.read())
        await arena.editor.waiting.wait()
        call = arena.bench.tool_call("shell", {"command": "echo ran > marker"})
        command = asyncio.ensure_future(arena.bench.dispatcher.run(call))
        await arena.bench.recorder.seen("tool.called", 2)
        assert await arena.bench.dispatcher.cancel(call.id)
        assert (await asyncio.wait_for(command, LIMIT_S)).error.error_class == "cancelled"
        arena.editor.hold.set()
        await reading
        assert not (arena.workspace / "marker").exists()


async def test_a_request_that_nobody_waits_for_any_more_keeps_commands_waiting_until_it_is_answered(
    base: Path,
) -> None:
    async with arena_in(base) as arena:
        arena.editor.hold, arena.editor.held = asyncio.Event(), "write"
        call = arena.bench.tool_call("write_file", {"path": "door/f", "content": "late"})
        writing = asyncio.ensure_future(arena.bench.dispatcher.run(call))
        await arena.editor.waiting.wait()
        assert await arena.bench.dispatcher.cancel(call.id)
        assert (await asyncio.wait_for(writing, LIMIT_S)).error.error_class == "cancelled"
        command = arena.bench.start("shell", {"command": "cat door/f"})
        await arena.bench.run("shell", {"command": "true"}, session=arena.reader)
        assert not command.done()
        arena.editor.hold.set()
        assert "late" in (await asyncio.wait_for(command, LIMIT_S)).text


async def test_a_terminal_of_the_editor_is_opened_only_where_its_directory_cannot_be_swapped(
    base: Path,
) -> None:
    async with arena_in(base) as arena:
        terminals = FakeTerminals(b"in the editor")
        person = Session(workspace=str(arena.workspace), mode=Mode.WRITE)
        arena.bench.dispatcher.environments.offer(person.id, Offered(terminals=terminals))
        os.mkfifo(arena.workspace / "fifo")
        command = arena.bench.start("shell", {"command": "echo runs; cat <> fifo"})
        await arena.bench.recorder.seen("tool.output_delta")
        inside = await arena.bench.run("shell", {"command": "rm *", "cwd": "door"}, session=person)
        assert (inside.error.reason, terminals.commands) == ("terminal_cwd", [])
        assert (await arena.bench.run("shell", {"command": "ls"}, session=person)).ok
        await arena.bench.dispatcher.cancel_session_tools(arena.bench.session.id)
        await command
        assert (await arena.bench.run("shell", {"command": "ls", "cwd": "door"}, session=person)).ok
        assert [each.cwd for each in terminals.commands] == [
            str(arena.workspace),
            str(arena.workspace / "door"),
        ]


_RUNTIME = """
import asyncio, sys
from callgate.core.commands import Command
from callgate.core.sessions import Mode, Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.sandbox.profiles import Profile

async def main(workspace, home, callgate_home):
    sandbox = Sandbox(Surroundings(home=home, callgate_home=callgate_home))
    await sandbox.ready()
    session = Session(workspace=workspace, mode=Mode.WRITE)
    launcher = sandbox.launcher(Enclosure(Profile.WORKSPACE), session)
    command = Command(argv=("/bin/sh", "-c", "echo runs; exec sleep 600"), cwd=workspace, env={})
    running = await launcher.start(command, lambda stream, data: print("runs", flush=True))
    await running.wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_command_of_another_runtime_counts_until_nothing_of_it_is_left(base: Path) -> None:
    async with arena_in(base) as arena:
        leases = Leases(str(arena.callgate_home))
        path = str(arena.workspace / "door" / "f")
        places = (arena.workspace, arena.home, arena.callgate_home)
        with subprocess.Popen([sys.executable, "-c", _RUNTIME, *map(str, places)], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline() == b"runs\n"
            assert leases.reserve(path) is None
            free = leases.reserve(str(arena.outside / "f"))
            assert free is not None
            os.close(free)
            other.kill()
        async with asyncio.timeout(LIMIT_S):  # its keeper ends the command, and then itself
            await asyncio.to_thread(_until_free, leases, path)


def _until_free(leases: Leases, path: str) -> None:
    while (free := leases.reserve(path)) is None:
        pass
    os.close(free)


def test_a_path_leads_through_links_and_all_that_they_lead_through(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    for name in ("a/real", "b"):
        (base / name).mkdir(parents=True)
    (base / "b" / "link").symlink_to("../a/real")
    found = leads_through(str(base / "b" / "link" / "f"))
    assert {str(base / each) for each in ("a", "a/real", "b")} | {"/", str(base)} <= found
    assert not found & {str(base / each) for each in ("b/link", "a/real/f")}


async def test_a_link_that_leads_to_the_workspace_counts_as_a_part_of_the_path(base: Path) -> None:
    """Whoever may write where the link lies can have it lead elsewhere."""
    (base / "links").mkdir()
    (base / "real").mkdir()
    (base / "links" / "project").symlink_to(base / "real")
    leases = Leases(str(base / "home"))
    command = await leases.write([str(base / "links")])
    assert leases.reserve(str(base / "links" / "project" / "f")) is None
    free = leases.reserve(str(base / "real" / "f"))
    assert free is not None
    os.close(free)
    os.close(command)
