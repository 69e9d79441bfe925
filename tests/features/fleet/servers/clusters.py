"""Several real servers that share one store: one home for all, or a home each and a database."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from callgate.config.sealing import SealingKey, unseal
from callgate.config.secret_entries import KIND
from callgate.config.secret_opening import SERVERS
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from callgate.storage.sqlite.store import SqliteStore
from tests.features.web.instances import Client

LIMIT_S = 60.0
KEY_VARIABLE = "CALLGATE_SECRETS_KEY"
SECRETS_KEY = "correct horse battery staple, and more"
GREETING = "Good day to you, and to everyone who watches from afar.\n" * 30
"""Long enough to be shown while it is being said."""


class ServerProcess:
    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process = process
        self.name = name
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert len(line) == 3, line
        self.pid, self.url, self.token = int(line[0]), line[1], line[2]
        self.port = int(self.url.rpartition(":")[2])
        self._clients: list[Client] = []

    def client(self, token: str | None = "") -> Client:
        made = Client(self.port, self.token if token == "" else token)
        self._clients.append(made)
        return made

    def signal(self, which: signal.Signals) -> None:
        os.kill(self.pid, which)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)

    async def close_clients(self) -> None:
        clients, self._clients = self._clients, []
        for each in clients:
            await each.http.aclose()

    async def close(self) -> None:
        await self.close_clients()
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                await asyncio.to_thread(self.process.wait, LIMIT_S)
            finally:
                self.process.kill()
        else:
            self.process.stdin.close()
        self.process.stdout.close()


class Cluster:
    def __init__(self, base: Path, location: PostgresLocation | None = None) -> None:
        self.base, self.home, self.ws = base, base / "h", base / "ws"
        self.log = base / "stderr.log"
        self.location = location
        self.ws.mkdir()
        for private in (self.home, base / "run"):
            private.mkdir(mode=0o700)
        self._servers: list[ServerProcess] = []
        self._settings = ""
        self.secrets = f'[secrets]\nkey_env = "{KEY_VARIABLE}"\n'
        self.settings("")

    def settings(self, text: str, replies: str = "") -> None:
        """Settings of all servers, and what their model says."""
        script = self.base / "model.toml"
        usual = "chunk = 24\ndelay_s = 0.02\n" + f"[[replies]]\ntext = {json.dumps(GREETING)}\n" * 30
        script.write_text(replies or usual)
        model = f'model = "played"\n[models.played]\nkind = "scripted"\npath = "{script}"\n'
        self._settings = model + text
        (self.home / "settings.toml").write_text(self._settings)

    def home_of(self, name: str) -> Path:
        """Where a server keeps its files; with a database, each for itself."""
        if self.location is None:
            return self.home
        home = self.base / f"h-{name}"
        home.mkdir(mode=0o700, exist_ok=True)
        store = f'[store]\nurl = "{self.location.url}"\nschema = "{self.location.schema}"\n'
        (home / "settings.toml").write_text(self._settings + store + self.secrets)
        return home

    async def servers_key(self) -> bytes:
        """The key with which the servers sign what they carry."""
        async with await self.open_store() as store:
            if self.location is None:
                value = (self.home / SERVERS).read_text()
            else:
                (entry,) = [each for each in await store.entries(KIND) if each.name == SERVERS]
                value = unseal(SERVERS, json.loads(entry.value), [SealingKey(SECRETS_KEY)])
            return bytes.fromhex(json.loads(value)["key"])

    async def open_store(self) -> SqliteStore | PostgresStore:
        if self.location is None:
            return await SqliteStore.open(str(self.home))
        return await PostgresStore.open(self.location)

    def start(self, name: str = "", **environment: str) -> ServerProcess:
        name = name or "abcdefgh"[len(self._servers)]
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.features.fleet.servers.server", str(self.base / "run" / name)],
                env={
                    **os.environ,
                    "CALLGATE_HOME": str(self.home_of(name)),
                    "SERVERS_TEST": str(self.base),
                    "PYTHONPATH": os.getcwd(),
                    KEY_VARIABLE: SECRETS_KEY,
                    **environment,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        made = ServerProcess(process, name)
        self._servers.append(made)
        return made

    async def shared_token(self, one: ServerProcess, other: ServerProcess) -> str:
        """The token that both servers have in their files once they know the key: before, each has its own."""
        files = [self.home_of(each.name) / "run" / f"{each.pid}.token" for each in (one, other)]
        tokens: set[str] = set()

        def is_shared() -> bool:
            tokens.clear()
            tokens.update(file.read_text().strip() for file in files)
            return len(tokens) == 1

        await until(is_shared)
        return tokens.pop()

    async def close(self) -> None:
        for each in self._servers:
            await each.close()

    # What the tools did.

    def done(self) -> list[str]:
        """What every tool of every server did, in order."""
        try:
            return (self.base / "done.log").read_text().splitlines()
        except FileNotFoundError:
            return []

    def done_by(self, server: ServerProcess) -> list[str]:
        return [text for pid, _, text in (line.partition(" ") for line in self.done()) if pid == str(server.pid)]

    async def until_done(self, *texts: str) -> None:
        await until(lambda: {line.partition(" ")[2] for line in self.done()} >= set(texts))

    def go(self) -> None:
        """Let every tool that holds end."""
        (self.base / "go").touch()


class StandingCluster(Cluster):
    """Servers that several tests use one after the other: none may stop them or need others."""

    def __init__(self, base: Path, location: PostgresLocation) -> None:
        super().__init__(base, location)
        self._given = 0

    def start(self, name: str = "", **environment: str) -> ServerProcess:
        assert not name and not environment, "a server of its own needs a cluster of its own"
        self._given += 1
        if self._given <= len(self._servers):
            return self._servers[self._given - 1]
        return super().start()

    async def end_test(self) -> None:
        """Leave nothing that belongs to one test."""
        self._given = 0
        for each in self._servers:
            await each.close_clients()
            assert each.process.poll() is None
        for left in ("done.log", "go"):
            (self.base / left).unlink(missing_ok=True)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def stopped(server: ServerProcess) -> None:
    """Until the kernel says so."""
    server.signal(signal.SIGSTOP)

    def state() -> str:
        with open(f"/proc/{server.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]

    await until(lambda: state() == "T")
