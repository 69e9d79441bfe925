"""What a host asks for while its tool runs is done before its call has ended."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from callgate.core.tools import ToolContext
from callgate.protocol.host_v1 import frames
from callgate.sources.host_tools import RuntimeRequests
from callgate.workspace.files import WorkspaceFileAPI


class SlowFiles(WorkspaceFileAPI):
    """Files on a disk that takes its time."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.begun, self.free = threading.Event(), threading.Event()

    def write_bytes(self, path: str, content: bytes) -> None:
        self.begun.set()
        assert self.free.wait(60)
        super().write_bytes(path, content)


async def test_a_write_that_a_host_did_not_wait_for_is_done_before_its_call_ends(tmp_path: Path) -> None:
    files = SlowFiles(str(tmp_path))
    requests = RuntimeRequests(cast(ToolContext, SimpleNamespace(workspace_files=files)))
    write: Any = frames.WriteFile(call="1", path="a.txt", content="x")
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(requests.answer(write))
        await asyncio.to_thread(files.begun.wait, 60)
        ended = group.create_task(requests.ended())
        await asyncio.sleep(0)
        assert not ended.done()
        files.free.set()
        await ended
        assert (tmp_path / "a.txt").read_text() == "x"
