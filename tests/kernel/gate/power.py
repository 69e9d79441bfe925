"""A disk whose power is cut, and the process that writes to it until then.

    python -m tests.kernel.gate.power HOME WORKSPACE ROUND [unsynced]

The disk is an ext4 image on a loop device. A cut is the file system's own (`FS_IOC_SHUTDOWN` without a
flush of its journal): from that moment nothing more reaches the image, and the next mount finds what a
machine would find that lost its power. Acknowledged calls are lines of JSON on stdout, which is outside.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from callgate import Gate
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.sessions import Session

ROOT = Path(__file__).resolve().parents[3]
WRITERS = 8
LIMIT_S = 60
_SHUTDOWN = 0x8004587D
_NO_FLUSH = 2
_SIZE = 128 * 1024 * 1024


def text(writer: int, turn: int) -> str:
    """The content of one write: a torn one is none of these."""
    return f"<{turn}>" + f" {writer}" * (500 + 700 * (turn % 7))


class Acknowledged(NamedTuple):
    call: str
    path: str
    writer: int
    turn: int


class PowerDisk:
    """The image, where it is mounted."""

    def __init__(self, base: Path) -> None:
        self._image = base / "image-0"
        self._cuts = 0
        self.path = base / "disk"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(_SIZE)
        _run("mkfs.ext4", "-q", "-F", str(self._image))

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def cut(self) -> None:
        """Nothing that is not on the image by now gets there."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
        finally:
            os.close(fd)

    def mount_again(self) -> None:
        """A copy: the kernel may still know the image, as long as a dying process has it open."""
        self.unmount()
        self._cuts += 1
        copy = self._image.with_name(f"image-{self._cuts}")
        _run("cp", "--sparse=always", str(self._image), str(copy))
        self._image.unlink()
        self._image = copy
        self.mount()

    def unmount(self) -> None:
        if os.path.ismount(self.path):
            _run("umount", str(self.path))


def write_until_cut(disk: PowerDisk, round: int, dice: random.Random, *, unsynced: bool = False) -> list[Acknowledged]:
    """What a process was acknowledged before the power went, at a random moment of its work."""
    words = [str(disk.path / "home"), str(disk.path / "ws"), str(round), *(["unsynced"] if unsynced else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(dice.randrange(1, 150))]
        process.send_signal(signal.SIGSTOP)  # what it says after the cut, no machine could say
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED)
        disk.cut()
    finally:
        process.kill()
        rest, complaints = process.communicate(timeout=LIMIT_S)
    assert all(lines), complaints.decode()
    return [Acknowledged(**json.loads(line)) for line in [*lines, *rest.splitlines()]]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)


async def work(home: str, workspace: str, round: str) -> None:
    async with Gate(workspace, mode="write", home=home) as gate, asyncio.TaskGroup() as group:

        async def write_on(writer: int) -> None:
            session = Session(workspace=workspace, mode=gate.session.mode)

            async def call(tool: str, turn: int, path: str, **more: Any) -> None:
                arguments = {"path": path, **more}
                made = ToolCall(tool=tool, arguments=arguments, session=session, caller=CallerKind.LIBRARY)
                result = await gate.runtime.calls.run_promptly(made)
                assert result.ok, result.error
                acknowledged = Acknowledged(result.call_id, path, writer, turn)
                os.write(1, json.dumps(acknowledged._asdict()).encode() + b"\n")

            for turn in range(100_000):
                here = f"{round}/{writer}"
                await call("write_file", turn, f"{here}/new/{turn}.txt", content=text(writer, turn))
                await call("write_file", turn, f"{here}/again.txt", content=text(writer, turn))
                if turn == 0:
                    await call("write_file", 0, f"{here}/patched.txt", content="<0>")
                else:
                    await call("patch_file", turn, f"{here}/patched.txt", old=f"<{turn - 1}>", new=f"<{turn}>")

        async def read_on() -> None:
            """Calls that wait for no sync: what is lost of them is lost in log and store alike."""
            while True:
                await gate.call("list_dir", {"path": "."})
                await asyncio.sleep(0.001)

        group.create_task(read_on())
        for writer in range(WRITERS):
            group.create_task(write_on(writer))


def main(home: str, workspace: str, round: str, *more: str) -> None:
    os.makedirs(workspace, exist_ok=True)
    os.makedirs(home, mode=0o700, exist_ok=True)
    if more:  # as if nothing of ours waited for the disk; the store still does

        def nothing(fd: int) -> None: ...

        os.fsync = nothing
    asyncio.run(work(home, workspace, round))


if __name__ == "__main__":
    main(*sys.argv[1:])
