"""Attempts to write to what a process may only read are seen, by whatever call they are made."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator

import msgspec
import pytest

from callgate.core.commands import Command
from callgate.sandbox import kernel, profiles
from callgate.sandbox.backends import seccomp
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import choose
from callgate.sandbox.processes import write_attempts
from callgate.sandbox.processes.broker_client import BrokeredProcess, BrokerLauncher, BrokerProcess
from tests.kernel.sandbox.test_escapes import needed, together
from tests.kernel.sandbox.worlds import PYTHON, World
from tests.needs import needs

pytestmark = needs("linux", PYTHON)
LIMIT_S = 60.0
PROGRAM = """
import os, sys, ctypes, shutil, sqlite3, subprocess, threading, pathlib
libc = ctypes.CDLL(None, use_errno=True)
for line in sys.stdin:
    try:
        exec(line)
        print("done", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""
SEEN = {
    "open('new', 'w')": "new",
    "open('plain', 'a')": "plain",
    "open('plain', 'r+')": "plain",
    "os.open('plain', os.O_RDONLY | os.O_TRUNC)": "plain",
    "os.open('.', os.O_RDWR | os.O_TMPFILE)": "",
    "os.mkdir('directory')": "directory",
    "os.unlink('plain')": "plain",
    "os.rmdir('empty')": "empty",
    "os.rename('plain', 'other')": "plain",
    "os.replace('/tmp/given', 'plain')": "plain",
    "os.symlink('plain', 'linked')": "linked",
    "os.link('plain', 'linked')": "linked",
    "os.mkfifo('pipe')": "pipe",
    "os.truncate('plain', 0)": "plain",
    "os.chmod('plain', 0o777)": "plain",
    "os.utime('plain')": "plain",
    "os.fchmod(os.open('plain', os.O_RDONLY), 0o777)": "plain",
    "os.setxattr('plain', 'user.x', b'x')": "plain",
    "open('/tmp/around/plain', 'w')": "plain",
    "open('/tmp/dangling', 'w')": "new",
    "open('/proc/self/cwd/new', 'w')": "new",
    "os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=os.open('empty', os.O_RDONLY))": "empty/new",
    "subprocess.run(['/bin/sh', '-c', 'echo > new'])": "new",
    "t = threading.Thread(target=open, args=('new', 'w')); t.start(); t.join()": "new",
    "shutil.rmtree('empty')": "empty",
    "pathlib.Path('empty/../new').touch()": "new",
}
UNSEEN = [
    "open('plain').read()",
    "open('nothing')",
    "open('/tmp/own', 'w').write('x')",
    "os.makedirs('empty', exist_ok=True)",
    "os.unlink('nothing')",
    "open('/dev/null', 'w').write('x')",
    "os.mkdir('__pycache__')",
    "open('__pycache__/x.pyc', 'wb')",
    "os.mkdir('.ruff_cache')",
    "open('.git/index.lock', 'w')",
    "sqlite3.connect('data.db').execute('select * from t').fetchall()",
    "os.rename('/tmp/given', '/tmp/taken')",
    "os.open('plain', os.O_RDONLY | os.O_CREAT)",
]


class Watched:
    """A process that does what it is told, line by line."""

    def __init__(self, jail: Jail, backends: list[object], world: World, bwrap: str | None) -> None:
        self._plan = choose(jail, backends)  # type: ignore[arg-type]
        self._world, self._bwrap = world, bwrap
        self._broker = BrokerProcess()
        self._lines: asyncio.Queue[None] = asyncio.Queue()
        self._stdin = -1
        self.running: BrokeredProcess | None = None
        self.reports: list[str] = []

    async def __aenter__(self) -> Watched:
        theirs, self._stdin = os.pipe()
        command = Command(argv=(PYTHON, "-u", "-c", PROGRAM), cwd=str(self._world.workspace), env={}, stdin=theirs)
        launcher = BrokerLauncher(self._broker, self._plan, bwrap=self._bwrap)
        self.running = await launcher.start(command, self._hear)
        os.close(theirs)
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._stdin)
        assert self.running is not None
        self.running.stop(0.0)
        await self.running.wait()
        self._broker.close()

    def _hear(self, stream: str, data: bytes) -> None:
        if stream == "stdout":
            for _ in range(data.count(b"\n")):  # a line may come in pieces
                self._lines.put_nowait(None)

    async def do(self, line: str, *, watch: bool = True) -> list[str]:
        """What was reported before the process said that it had done it."""
        assert self.running is not None
        self.reports.clear()
        if watch:
            self.running.watch_writes(self.reports.append)
        os.write(self._stdin, line.encode() + b"\n")
        await asyncio.wait_for(self._lines.get(), LIMIT_S)
        return [*self.reports]


@pytest.fixture
def world() -> Iterator[World]:
    made = World(os.getuid())
    (made.workspace / "empty").mkdir()
    with sqlite3.connect(made.workspace / "data.db") as database:
        database.execute("create table t (x)")
    database.close()
    yield made
    made.remove()


async def watched(world: World, backend: str, **changes: object) -> Watched:
    chosen = await asyncio.to_thread(needed, together(backend))
    bwrap = next((getattr(each, "path", None) for each in chosen if each.name == backend), None)
    places = msgspec.structs.replace(world.places, protected=())
    jail = profiles.without_writes(profiles.workspace(places), places)
    return Watched(msgspec.structs.replace(jail, **changes), list(chosen), world, bwrap)


PREPARE = "open('/tmp/given', 'w'); os.symlink({ws!r}, '/tmp/around'); os.symlink({ws!r} + '/new', '/tmp/dangling')"


def in_tmp(line: str) -> str:
    """The same, also where only TMPDIR is private."""
    return line.replace("'/tmp/", "os.environ.get('TMPDIR', '/tmp') + '/")


@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap", "supervisor"])
async def test_what_would_change_a_file_is_reported_with_its_path(world: World, backend: str) -> None:
    async with await watched(world, backend) as process:
        assert await process.do(in_tmp(PREPARE.format(ws=str(world.workspace))), watch=False) == []
        for line, path in SEEN.items():
            found = await process.do(in_tmp(line))
            expected = os.path.normpath(world.workspace / path)
            assert [os.path.normpath(each) for each in found] == [expected], line
    assert sorted(each.name for each in world.workspace.iterdir()) == sorted(
        [".git", "data.db", "empty", "key", "link", "links", "plain"]
    )


@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap", "supervisor"])
async def test_what_changes_nothing_or_can_be_done_without_is_not_reported(world: World, backend: str) -> None:
    async with await watched(world, backend) as process:
        await process.do(in_tmp(PREPARE.format(ws=str(world.workspace))), watch=False)
        for line in UNSEEN:
            assert await process.do(in_tmp(line)) == [], line


async def test_only_the_next_attempt_is_reported_and_only_to_whoever_waits_for_it(world: World) -> None:
    async with await watched(world, "namespaces") as process:
        assert await process.do("open('new', 'w')", watch=False) == []
        many = 'exec(\'for n in range(2000):\\n try: open(f"new{n}", "w")\\n except OSError: pass\')'
        assert await process.do(many) == [f"{world.workspace}/new0"]
        assert await process.do("open('again', 'w')") == [f"{world.workspace}/again"]


async def test_without_a_watch_nothing_is_in_the_way(world: World) -> None:
    async with await watched(world, "namespaces", write_watch=()) as process:
        assert await process.do("open('new', 'w')") == []


@pytest.mark.parametrize("machine", sorted(kernel.NUMBERS))
def test_the_filter_can_be_made_for_every_machine(machine: str) -> None:
    for watches, has_names in ((True, False), (True, True), (False, True)):
        code = seccomp.notifying(machine, write_attempts.traps(watches=watches, has_names=has_names))
        assert code and len(code) % 8 == 0
