"""Real instances in processes of their own, and things that only look like one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord

LIMIT_S = 60.0
SLEEP = "echo begun; sleep 600"

TOOLS = '''
from callgate import ToolContext, ToolTimeout, error_result, ok_result, tool

@tool(side_effects="none")
async def values(which: str) -> object:
    """Give a value of some kind."""
    return {"none": None, "zero": 0, "empty": "", "text": "a", "list": [], "deep": {"a": [1.5]}}[which]

@tool(side_effects="none")
async def noted() -> object:
    """Say more than a value."""
    return ok_result({"a": 1}, diagnostics=["careful"], meta={"k": "v"}, files_modified=["x"])

@tool(side_effects="none")
async def fails(how: str) -> object:
    """Fail in some way."""
    if how == "reported":
        return error_result("no such thing", reason="absent", details={"thing": 1})
    if how == "raised":
        raise ToolTimeout("too slow", reason="slow", details={"a": 1})
    raise RuntimeError("secret-9c1f")

@tool(side_effects="none")
async def says(count: int, size: int = 1, *, context: ToolContext) -> str:
    """Say things while it works."""
    context.progress("halfway", 0.5)
    for number in range(count):
        context.output(str(number).rjust(size), "stdout")
    return context.session_id
'''


class Served:
    """An instance; ended with the `with`."""

    def __init__(self, *options: str) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
        self.home, self.ws = self.base / "h", self.base / "ws"
        self.path = self.home / "run" / "callgate.sock"
        self.ws.mkdir()
        (self.ws / "a.txt").write_text("hello\n")
        self.home.mkdir(mode=0o700)
        (self.home / "mine.py").write_text(TOOLS)
        (self.home / "settings.toml").write_text('[tools]\nload = ["mine.py"]\n')
        self.process = subprocess.Popen(
            [sys.executable, "-m", "callgate", "serve", *options],
            cwd=self.ws,
            env=_environment(self.base, self.home),
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")

    @property
    def target(self) -> dict[str, Any]:
        """For `connect`."""
        return {"home": self.home, "cwd": self.ws}

    def records(self) -> list[CallRecord]:
        """What is in the audit log, newest first."""
        return [record for record, _ in newest_first(str(self.home / "audit.jsonl"))]

    def allow(self, question: str) -> None:
        """As a person does at another terminal."""
        command = [sys.executable, "-m", "callgate", "confirmations", "allow", question, "--json"]
        env = _environment(self.base, self.home)
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S)

    def stop(self, signal: int = signal.SIGTERM) -> None:
        self.process.send_signal(signal)
        self.process.wait(LIMIT_S)

    def leave(self) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()
        shutil.rmtree(self.base)


def _environment(user: Path, home: Path) -> dict[str, str]:
    """Nothing of whoever runs the tests: an instance outlives the fixtures of one test."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CALLGATE_", "XDG_"))}
    return {**kept, "HOME": str(user), "CALLGATE_HOME": str(home)}


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    served = Served(*options)
    try:
        yield served
    finally:
        served.leave()


Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def pretending(behave: Behave) -> AsyncIterator[str]:
    """A socket behind which something else listens."""
    base = tempfile.mkdtemp(prefix="cg")
    ended = asyncio.Event()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behave(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()
            ended.set()

    path = os.path.join(base, "s")
    server = await asyncio.start_unix_server(run, path, limit=1 << 25)
    try:
        yield path
        async with asyncio.timeout(LIMIT_S):
            await ended.wait()
    finally:
        server.close()
        await server.wait_closed()
        shutil.rmtree(base)
