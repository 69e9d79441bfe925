"""Workers of a pool are used from every server of a store, whichever they are connected to."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.features.fleet.servers.clusters import LIMIT_S, Cluster, ServerProcess
from tests.features.web.instances import Client

pytestmark = pytest.mark.parametrize("cluster", ["postgres"], indirect=True)
ALLOWED = '[[policy.rules]]\ndecision = "allow"\ntool = "write_file"\n'


class Workers:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.directory = cluster.base / "worker"
        self.directory.mkdir()
        environment = {**os.environ, "CALLGATE_HOME": str(cluster.home_of("a"))}
        command = [sys.executable, "-m", "callgate", "workers", "token", "create", "--pool", "build", "--json"]
        made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        self.token = json.loads(made.stdout)["token"]

    @contextmanager
    def start(self, name: str, *servers: ServerProcess) -> Iterator[Path]:
        """A worker; its workspace."""
        home, workspace = self.directory / f"home-{name}", self.directory / name
        home.mkdir(mode=0o700)
        workspace.mkdir()
        command = [sys.executable, "-m", "callgate", "worker", "--pool", "build", "--name", name]
        for each in servers:
            command += ["--server", each.url]
        with self.cluster.log.open("a") as log:
            process = subprocess.Popen(
                [*command, "--workspace", f"app={workspace}"],
                env={**os.environ, "CALLGATE_HOME": str(home), "CALLGATE_WORKER_TOKEN": self.token},
                stdout=log,
                stderr=log,
            )
        try:
            yield workspace
        finally:
            process.kill()
            process.wait(LIMIT_S)


async def connected(client: Client, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len((await client.http.get("/v1/workers")).json()["workers"]) < count:
            await asyncio.sleep(0.05)


async def open_session(client: Client) -> str:
    answer = await client.post("/v1/sessions", pool="build", mode="ask")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def write(client: Client, session: str, path: str) -> None:
    result = await client.call("write_file", session, path=path, content="hello")
    assert result["ok"], result


async def test_a_session_is_opened_where_a_worker_of_its_pool_is_connected(cluster: Cluster) -> None:
    cluster.settings(ALLOWED)
    a, b = cluster.start(), cluster.start()
    with Workers(cluster).start("w", b) as workspace:
        await connected(a.client(), 1)
        session = await open_session(a.client())
        await write(a.client(), session, "one.txt")
        await write(b.client(), session, "two.txt")
        assert sorted(each.name for each in workspace.iterdir()) == ["one.txt", "two.txt"]


async def test_a_pool_goes_on_when_the_server_of_its_session_is_killed(cluster: Cluster) -> None:
    cluster.settings(ALLOWED)
    a, b = cluster.start(), cluster.start()
    with Workers(cluster).start("w", a, b) as workspace:
        await connected(a.client(), 2)
        session = await open_session(a.client())
        await write(a.client(), session, "one.txt")
        a.kill()
        await write(b.client(), session, "two.txt")
        assert sorted(each.name for each in workspace.iterdir()) == ["one.txt", "two.txt"]


async def test_a_session_follows_its_workers_to_another_server(cluster: Cluster) -> None:
    cluster.settings(ALLOWED)
    a, b = cluster.start(), cluster.start()
    workers = Workers(cluster)
    with workers.start("first", a):
        await connected(a.client(), 1)
        session = await open_session(a.client())
        await write(a.client(), session, "one.txt")
    with workers.start("second", b) as workspace:
        async with asyncio.timeout(LIMIT_S):
            while "second" not in (await a.client().http.get("/v1/workers")).text:
                await asyncio.sleep(0.05)
        await write(a.client(), session, "two.txt")
        assert [each.name for each in workspace.iterdir()] == ["two.txt"]
