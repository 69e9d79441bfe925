"""A server and workers as real processes on loopback, each with a home of its own."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

CALLGATE = str(Path(sys.executable).with_name("callgate"))
LIMIT_S = 60.0


def processes_with(words: str) -> list[int]:
    """Processes with such words on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if line.strip() == words:
                found.append(int(entry.name))
    return found


class Process:
    """A program whose lines are waited for."""

    def __init__(self, words: Sequence[str], cwd: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = ""

    def line(self, pattern: str, limit_s: float = LIMIT_S) -> re.Match[str]:
        """The first match in what it wrote since the last one."""
        end = time.monotonic() + limit_s
        while (found := re.search(pattern, self.output)) is None:
            if time.monotonic() > end or not self._read(end):
                raise AssertionError(f"no {pattern!r} in {self.output!r}")
        self.output = self.output[found.end() :]
        return found

    def _read(self, end: float) -> bool:
        """Whether there may be more."""
        assert self.process.stdout is not None
        select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
        data = self.process.stdout.read()
        if data is not None:
            self.output += data.decode()
        return data != b""

    def ended(self) -> tuple[int, str]:
        """Its exit code, and the rest of what it wrote."""
        code = self.process.wait(LIMIT_S)
        end = time.monotonic() + LIMIT_S
        while self._read(end):
            pass
        return code, self.output

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Deployment:
    """One server; workers come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "server"
        self.home.mkdir(mode=0o700)
        (root / "served").mkdir()
        self._processes: list[Process] = []
        self._workers = 0
        self.http = httpx2.Client(timeout=LIMIT_S)

    def settings(self, text: str) -> None:
        (self.home / "settings.toml").write_text(text)

    def serve(self, mode: str = "write", *more: str) -> Process:
        words = [CALLGATE, "serve", "--http", "127.0.0.1:0", "--mode", mode, "--workspace", str(self.root / "served")]
        server = self.start([*words, *more], self.home)
        self._reach(server)
        return server

    def restartable(self) -> Process:
        """The server again, in place of the one that ran, at the port that it had."""
        self._processes.pop(0).close()
        self.http.close()
        address = self.url.removeprefix("http://")
        served = str(self.root / "served")
        words = [CALLGATE, "serve", "--http", address, "--mode", "write", "--workspace", served]
        server = self.start(words, self.home)
        self._processes.insert(0, self._processes.pop())
        self._reach(server)
        return server

    def _reach(self, server: Process) -> None:
        self.url = server.line(r"dashboard at (http://\S+):")[1]
        token = (self.home / "run" / f"{server.process.pid}.token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        self.http = httpx2.Client(base_url=self.url, headers=headers, timeout=LIMIT_S)

    def start(self, words: Sequence[str], home: Path, **env: str) -> Process:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CALLGATE_")}
        made = Process(words, self.root, {**inherited, "CALLGATE_HOME": str(home), **env})
        self._processes.append(made)
        return made

    def command(self, *words: str) -> Any:
        """Run a command of the server's home that prints JSON."""
        env = {**os.environ, "CALLGATE_HOME": str(self.home)}
        ran = subprocess.run([CALLGATE, *words, "--json"], env=env, capture_output=True, timeout=LIMIT_S, cwd=self.root)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def token(self, *pools: str, name: str = "", worker: str = "") -> str:
        words = [word for pool in pools for word in ("--pool", pool)]
        named = ["--name", name] if name else []
        named += ["--worker", worker] if worker else []
        return str(self.command("workers", "token", "create", *words, *named)["token"])

    def worker(
        self,
        token: str,
        name: str,
        *more: str,
        pool: str = "build",
        workspace: str = "app",
        server: str | None = None,
        joined: bool = True,
    ) -> Process:
        """A worker; its home and its directory have its name."""
        home, directory = self.root / f"home-{name}", self.root / name / workspace
        home.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        words = [CALLGATE, "worker", "--server", server or self.url, "--pool", pool, "--name", name]
        words += ["--workspace", str(directory), *more]
        made = self.start(words, home, CALLGATE_WORKER_TOKEN=token)
        if joined:
            made.line(rf"worker {name} of pool {pool} is connected")
        return made

    def directory(self, name: str, workspace: str = "app") -> Path:
        return self.root / name / workspace

    def workers(self) -> list[Any]:
        return list(self.get("/v1/workers")["workers"])

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def session(self, pool: str = "build", **more: Any) -> str:
        answer = self.http.post("/v1/sessions", json={"pool": pool, **more})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def call(self, session: str, tool: str, **arguments: Any) -> Any:
        body = {"session": session, "tool": tool, "arguments": arguments}
        answer = self.http.post("/v1/calls", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def try_call(self, session: str, tool: str, **arguments: Any) -> Any:
        """The same where the server may go away: None then."""
        try:
            return self.call(session, tool, **arguments)
        except httpx2.HTTPError:
            return None

    def events(self, session: str) -> list[Any]:
        return [event for _, event in self.get(f"/v1/sessions/{session}/events")["events"]]

    @staticmethod
    def until(met: Any, limit_s: float = LIMIT_S) -> Any:
        """Look until something is so. For what no event tells of."""
        end = time.monotonic() + limit_s
        while not (found := met()):
            assert time.monotonic() < end, "it did not happen in time"
            select.select([], [], [], 0.02)
        return found

    def close(self) -> None:
        self.http.close()
        for each in reversed(self._processes):
            each.close()


@contextmanager
def deployment(root: Path) -> Iterator[Deployment]:
    made = Deployment(root)
    try:
        yield made
    finally:
        made.close()
