"""A host as a child process, and a runtime that writes exactly what a test says."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 60.0
SAMPLES = Path(__file__).parent / "sample_tools.py"
OFFER = [
    "read_file",
    "write_file",
    "append_file",
    "patch_file",
    "delete_file",
    "file_exists",
    "list_files",
    "keep_artifact",
]
CONTEXT = {
    "session_id": "sess_1",
    "turn_id": "t1",
    "tool_use_id": "tu_1",
    "workspace_path": "/w",
    "scope": {"tabId": "1"},
}


class Driven:
    def __init__(
        self, *given: str, argv: tuple[str, ...] = (sys.executable, "-m", "callgate.host"), cwd: Path | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [*argv, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._stderr = b""
        self._threads = [threading.Thread(target=each) for each in (self._read, self._read_stderr)]
        for each in self._threads:
            each.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._stderr += line

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, id: str, method: str, /, **params: Any) -> None:
        self.write(json.dumps({"v": 1, "id": id, "method": method, "params": params}).encode() + b"\n")

    def run(self, id: str, tool: str, /, **arguments: Any) -> None:
        self.send(id, "execute_tool", tool_name=tool, arguments=arguments, state={}, context=CONTEXT)

    def give(self, id: str, value: Any) -> None:
        """Answer what the host asked."""
        self.write(json.dumps({"v": 1, "id": id, "ok": True, "result": {"value": value}}).encode() + b"\n")

    def refuse(self, id: str, /, **error: Any) -> None:
        self.write(json.dumps({"v": 1, "id": id, "ok": False, "error": error}).encode() + b"\n")

    def next(self) -> dict[str, Any]:
        """The next line of the host, whatever it is."""
        line = self._lines.get(timeout=PATIENCE_S)
        assert line, f"the host is gone: {self._stderr.decode()}"
        frame: dict[str, Any] = json.loads(line)
        assert frame.pop("v") == 1
        return frame

    def part(self) -> Any:
        frame = self.next()
        assert frame["event"]["type"] == "part"
        return frame["event"]["payload"]

    def ask(self, method: str, /, **params: Any) -> dict[str, Any]:
        self.send("q", method, **params)
        return self.next()

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The answer to a call that says nothing before it."""
        self.run("c", tool, **arguments)
        return self.next()

    def value(self, tool: str, /, **arguments: Any) -> Any:
        return self.call(tool, **arguments)["result"]["value"]

    def init(self, *offered: str, **config: Any) -> dict[str, Any]:
        return self.ask("init", config=config, runtime={"answers": list(offered or OFFER)})

    def end(self) -> int:
        """Close its stdin and wait; its exit code."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    @property
    def stderr(self) -> str:
        """All of it; for a host that has ended."""
        self.process.wait(PATIENCE_S)
        self._threads[1].join(PATIENCE_S)
        return self._stderr.decode()

    def left(self) -> bytes:
        """What a host that has ended had written and nobody has read yet."""
        self._threads[0].join(PATIENCE_S)
        return b"".join(self._lines.get_nowait() for _ in range(self._lines.qsize()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for each in self._threads:
            each.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
