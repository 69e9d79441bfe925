"""Instances that are not what they should be: a socket with a script behind it, and a record."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
Script = Callable[["Peer"], None]


class Peer:
    """The caller, as a script sees it."""

    def __init__(self, connection: socket.socket, heard: list[Any]) -> None:
        connection.settimeout(LIMIT_S)
        self._file = connection.makefile("rwb")
        self._connection = connection
        self._heard = heard

    def read(self, type: str | None = None) -> Any:
        """The next frame, or the next of a type; None when the caller has gone."""
        while line := self._file.readline():
            frame = json.loads(line)
            self._heard.append(frame)
            if type in (None, frame["type"]):
                return frame
        return None

    def raw(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()

    def send(self, **frame: Any) -> None:
        self.raw(json.dumps(frame).encode() + b"\n")

    def greet(self, *, tools: list[Any] | None = None, **more: Any) -> None:
        self.read("list_tools")
        settings = {"version": "0123456789ab", "problem": None, "restartFor": []}
        served = {"workspace": "/ws", "mode": "ask", "settings": settings}
        self.send(type="tools_list", requestId="target", tools=tools or [], **{**served, **more})

    def end(self, text: str = "done", **more: Any) -> None:
        whole = {
            "call_id": "tu_1",
            "tool": "t",
            "ok": True,
            "value": text,
            "error": None,
            "content": [{"type": "text", "text": text}],
            "diagnostics": [],
            "meta": {},
            "files_modified": None,
            "command_executed": None,
            "partial": False,
            "truncated": False,
            "duration_ms": 1.0,
        }
        ok = more.get("ok", True)
        self.send(type="tool_result", requestId="call", result={"ok": ok}, whole={**whole, **more})

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        self._connection.close()


class Fake:
    """Listens at a path and does for each caller what a script says."""

    def __init__(self, path: Path, script: Script) -> None:
        self.path = path
        self.heard: list[Any] = []
        self._failed: list[AssertionError] = []
        self._script = script
        self._listening = socket.socket(socket.AF_UNIX)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # we were closed
                return
            peer = Peer(connection, self.heard)
            try:
                self._script(peer)
            except OSError:
                pass  # the caller went away
            except AssertionError as error:
                self._failed.append(error)
            finally:
                peer.close()

    @property
    def calls(self) -> list[Any]:
        return [frame for frame in self.heard if frame["type"] == "tool_call"]

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(LIMIT_S)
        self._listening.close()
        assert self._failed == []


@contextmanager
def fake(path: Path, script: Script) -> Iterator[Fake]:
    made = Fake(path, script)
    try:
        yield made
    finally:
        made.close()


def publish(home: Path, pid: int, path: Path, *, label: str = "", started: int = 1) -> None:
    """The record of an instance, as `callgate serve` writes it."""
    record = {
        "pid": pid,
        "socketPath": str(path),
        "appVersion": "0.1.0",
        "startedAt": started,
        "label": label,
        "cwd": "/",
    }
    (home / "instances").mkdir(exist_ok=True)
    (home / "instances" / f"{pid}.json").write_text(json.dumps(record))


def says(text: str, **greeting: Any) -> Script:
    """Takes any call and answers with a text."""

    def script(peer: Peer) -> None:
        peer.greet(**greeting)
        if peer.read("tool_call") is not None:
            peer.end(text)

    return script


@contextmanager
def short_directory() -> Iterator[Path]:
    """For sockets, whose paths have to be short."""
    made = Path(tempfile.mkdtemp(prefix="cg"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


PIDS = (os.getpid(), os.getppid())
"""Two that live."""
