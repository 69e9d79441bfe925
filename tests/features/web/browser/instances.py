"""A real `callgate serve` for a browser to look at, and a way to make calls on it from outside."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

_LIMIT_S = 60.0


class Served:
    """One address and one home; it may be stopped and started again."""

    def __init__(self, home: Path, workspace: Path) -> None:
        self.home = home
        self.workspace = workspace
        workspace.mkdir(exist_ok=True)
        self.port = _free_port()
        self.client = "test"
        """What our calls say that they come from."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it listens."""
        with open(self.home.parent / "serve.log", "a") as log:
            self._process = subprocess.Popen(
                [*_CALLGATE, "serve", "--http", f"127.0.0.1:{self.port}"],
                cwd=self.workspace,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        if "listening" not in first:
            self.stop()
            raise AssertionError(f"it did not start: {first}{Path(log.name).read_text()}")

    def stop(self) -> None:
        """Twice equals once."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate(timeout=_LIMIT_S)
            self._process = None

    def link(self) -> str:
        """A login link, as `callgate dashboard` prints it."""
        url: str = self.ask("POST", "/v1/login", {})["url"]
        return url

    @property
    def headers(self) -> dict[str, str]:
        """What a client with the token of the instance sends."""
        assert self._process is not None
        token = (self.home / f"run/{self._process.pid}.token").read_text().strip()
        return {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_LIMIT_S)
        try:
            head = {**self.headers, "Content-Type": "application/json", "User-Agent": self.client}
            connection.request(method, path, None if body is None else json.dumps(body), head)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.ask("POST", "/v1/calls", {"tool": tool, "arguments": arguments})

    def begin(self, tool: str, **arguments: Any) -> Future[Any]:
        """A call that someone else has to answer for."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(self.call(tool, **arguments))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return done

    def call_without_it(self, tool: str, *arguments: str) -> None:
        """A call of another process that shares the home."""
        command = [*_CALLGATE, "call", "--no-instance", tool, *arguments]
        subprocess.run(command, cwd=self.workspace, check=True, capture_output=True)


_CALLGATE = [sys.executable, "-m", "callgate"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def script(path: Path, replies: str) -> str:
    """Settings for a model that plays these replies."""
    path.write_text(replies)
    os.chmod(path, 0o600)
    return f'model = "played"\n[models.played]\nkind = "scripted"\npath = "{path}"\n'
