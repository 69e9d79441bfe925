"""A workspace, things outside that must stay as they are, and commands in jails around them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from callgate.core.commands import Exit
from callgate.sandbox.plans import Command, SandboxPlan
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sandbox.profiles import SandboxPaths

PYTHON = "/usr/bin/python3"
"""One that every user may run."""
NOBODY = 65534
ATTEMPTS = Path(__file__).with_name("attempts.py").read_text()


class World:
    """Not in /tmp, which jails replace: what is outside must be there to be refused."""

    def __init__(self, user: int) -> None:
        self.user = user
        self.base = Path(tempfile.mkdtemp(prefix="callgate-", dir="/var/tmp"))
        self.workspace = self.base / "workspace"
        self.outside = self.base / "outside"
        self.home = self.base / "home"
        self.callgate_home = self.home / ".callgate"
        for path in (
            self.workspace / ".git" / "hooks",
            self.outside / "directory",
            self.home / ".ssh",
            self.callgate_home,
        ):
            path.mkdir(parents=True)
        (self.workspace / "plain").write_text("plain")
        (self.workspace / "link").symlink_to(self.outside / "file")
        (self.workspace / "links").symlink_to(self.outside)
        (self.workspace / "key").symlink_to(self.home / ".ssh" / "id")
        (self.workspace / ".git" / "config").write_text("[core]\n")
        (self.outside / "file").write_text("as it was")
        (self.home / ".ssh" / "id").write_text("private")
        (self.home / ".netrc").write_text("password")
        (self.callgate_home / "token").write_text("token")
        with contextlib.suppress(OSError):
            os.setxattr(self.outside / "file", "user.hers", b"x")
        os.chmod(self.base, 0o755)
        if os.getuid() == 0:
            for path in (self.base, *self.base.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)

    @property
    def places(self) -> SandboxPaths:
        protected = (".git/config", ".git/hooks", ".envrc", ".callgate/settings.toml")
        return SandboxPaths(
            workspace=str(self.workspace),
            home=str(self.home),
            callgate_home=str(self.callgate_home),
            protected=tuple(str(self.workspace / name) for name in protected),
        )

    def outside_state(self) -> list[tuple[str, int, int, int, bytes]]:
        """Everything about what must not change."""
        git = self.workspace / ".git"
        kept = (self.outside, self.home, git / "config", git / "hooks")
        paths = sorted(path for root in kept for path in (root, *root.rglob("*")))
        state = []
        for path in paths:
            if path.is_socket():
                continue
            facts = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            times = 0 if path.is_dir() else facts.st_mtime_ns
            state.append((str(path), facts.st_mode, facts.st_uid, times, content))
        return state

    def remove(self) -> None:
        for directory, _, _ in os.walk(self.base):
            for entry in os.scandir(directory):  # `mv` copies a hidden directory with its mode 0
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
        shutil.rmtree(self.base)


@contextlib.contextmanager
def listening(world: World) -> Iterator[dict[str, Any]]:
    """Services and a process that an attempt may try to reach."""
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        path, datagrams = str(world.outside / "s"), str(world.outside / "d")
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(path)
        unix.listen()
        datagram = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagram.bind(datagrams)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0callgate-{world.base.name}")
        abstract.listen()
        os.chmod(path, 0o777)
        os.chmod(datagrams, 0o777)
        same = {"user": world.user, "group": world.user, "extra_groups": []}
        victim = subprocess.Popen(
            ["/bin/sleep", "600"], env={"CANARY": "1"}, **(same if world.user != os.getuid() else {})
        )
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        segment, queue = _shared(world)
        stack.callback(_libc.shmctl, segment, 0, None)
        stack.callback(_libc.mq_unlink, queue)
        yield {
            "segment": segment,
            "queue": queue.decode().lstrip("/"),
            "workspace": str(world.workspace),
            "outside": str(world.outside),
            "key": str(world.home / ".ssh" / "id"),
            "netrc": str(world.home / ".netrc"),
            "token": str(world.callgate_home / "token"),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "socket": path,
            "datagrams": datagrams,
            "abstract": f"callgate-{world.base.name}",
            "victim": victim.pid,
        }
        assert victim.poll() is None


_libc = ctypes.CDLL("libc.so.6", use_errno=True)


def _shared(world: World) -> tuple[int, bytes]:
    """Memory and a queue that everyone may use."""
    segment = _libc.shmget(0, 4096, 0o1666)
    queue = f"/{world.base.name}".encode()
    opened = _libc.mq_open(queue, os.O_CREAT | os.O_RDWR, 0o666, None)
    assert segment >= 0 and opened >= 0
    os.fchmod(opened, 0o666)
    os.close(opened)
    return segment, queue


def hostile(where: dict[str, Any]) -> tuple[str, ...]:
    script = ATTEMPTS.replace("WORLD: dict = {}", f"WORLD = {where!r}")
    return (PYTHON, "-I", "-S", "-c", script)


async def run(
    plan: SandboxPlan | None, argv: tuple[str, ...], cwd: str, *, bwrap: str | None = None, **env: str
) -> tuple[Exit, str, str]:
    """One command from its start to its end: how it ended, and what it wrote."""
    written: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def record(stream: str, data: bytes) -> None:
        written[stream] += data

    broker = BrokerProcess(PYTHON)
    try:
        async with asyncio.timeout(600):  # on a busy machine an interpreter with pip needs minutes
            launcher = BrokerLauncher(broker, plan, bwrap=bwrap)
            command = Command(argv=argv, cwd=cwd, env={"PATH": "/usr/bin:/bin", **env})
            ended = await (await launcher.start(command, record)).wait()
    finally:
        broker.close()
    return ended, written["stdout"].decode(), written["stderr"].decode()


def as_user(user: int, work: Callable[[], Any]) -> Any:
    """What a function returns when another user runs it, in a process of its own."""
    if user == os.getuid():
        return work()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            answer = {"value": work()}
        except BaseException as error:
            answer = {"error": repr(error)}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert "error" not in answer, answer["error"]
    return answer["value"]


async def gather(launcher: Any, script: str, cwd: str) -> str:
    """What a shell script prints when a launcher starts it."""
    written = b""

    def record(stream: str, data: bytes) -> None:
        nonlocal written
        if stream == "stdout":
            written += data

    command = Command(argv=("/bin/sh", "-c", script), cwd=cwd, env={"PATH": "/usr/bin:/bin"})
    async with asyncio.timeout(60), await launcher.start(command, record) as running:
        await running.wait()
    return written.decode()
