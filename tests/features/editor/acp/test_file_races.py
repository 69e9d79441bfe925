"""A command in the sandbox swaps a directory for a link that leads out, while this editor opens
files by the names that it is given, and follows links."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.talks import Fault, Talk
from tests.needs import needs

pytestmark = [pytest.mark.asyncio(loop_scope="session"), needs("linux"), pytest.mark.spec("S2-16", "T03")]

FILES = {"fs": {"readTextFile": True, "writeTextFile": True}}
SECRET = "PRIVATE KEY"
SWAP = """
import ctypes, time
swap, end = ctypes.CDLL(None).renameat2, time.monotonic() + {seconds}
while time.monotonic() < end:
    swap(-100, b"door", -100, b"door.out", 2)
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which the sandbox replaces."""
    made = Path(tempfile.mkdtemp(prefix="callgate-", dir="/var/tmp")).resolve()
    (made / "ws" / "door").mkdir(parents=True)
    (made / "ws" / "door" / "f").write_text("inside")
    (made / "out").mkdir()
    (made / "out" / "f").write_text(SECRET)
    (made / "ws" / "door.out").symlink_to(made / "out")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def follow_links(talk: Talk) -> None:
    def read(params: dict) -> dict:
        try:
            return {"content": Path(params["path"]).read_text()}
        except OSError:
            raise Fault(-32002, "Resource not found") from None

    def write(params: dict) -> dict:
        Path(params["path"]).write_text(params["content"])
        return {}

    talk.answers |= {"fs/read_text_file": read, "fs/write_text_file": write}


async def races(base: Path, home: Path, rounds: int, seconds: float) -> None:
    (base / "ws" / "swap.py").write_text(SWAP.format(seconds=seconds))
    async with Editor.opened(home, capabilities=FILES) as editor:
        writer, reader = await editor.new(base / "ws", mode="write"), await editor.new(base / "ws", mode="read")
        swapper = await editor.new(base / "ws", mode="write")
        for talk in (writer, reader):
            follow_links(talk)
        await reader.tool("read_file", '{"path": "door/f"}')
        assert len(reader.asked("fs/read_text_file")) == 1  # where nothing runs, the editor is used
        for _ in range(rounds):
            command = json.dumps({"command": "/usr/bin/python3 swap.py"})
            swapping = asyncio.ensure_future(swapper.tool("shell", command))
            while not swapping.done():
                read = await reader.tool("read_file", '{"path": "door/f"}')
                assert SECRET not in json.dumps(read)
                await writer.tool("write_file", '{"path": "door/f", "content": "written"}')
                assert (base / "out" / "f").read_text() == SECRET
            assert (await swapping)["status"] == "completed"


async def test_a_sandboxed_command_cannot_lead_the_editor_to_a_file_outside(base: Path, new_home: NewHome) -> None:
    await races(base, new_home(), 3, 0.2)


@pytest.mark.soak
async def test_a_sandboxed_command_never_leads_the_editor_to_a_file_outside(base: Path, new_home: NewHome) -> None:
    await races(base, new_home(), 40, 2.0)
