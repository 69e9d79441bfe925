"""Two servers behind a real Caddy with our Caddyfile: people notice nothing of a restart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.deploy.programs import PROJECT, TOOLS
from tests.needs import needs

pytestmark = needs("deploy tools")

LIMIT_S = 60.0
TOOL = """
import asyncio
from pathlib import Path
from callgate import tool

@tool(side_effects="none", requires_workspace=False)
async def until(path: str) -> str:
    \"\"\"Wait until a file is there.\"\"\"
    Path(path + ".begun").touch()
    while not Path(path).exists():
        await asyncio.sleep(0.01)
    return "ended by itself"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A `callgate serve` with a home of its own, at a port that stays the same."""

    def __init__(self, base: Path, name: str, public: str) -> None:
        self.home, self.ws, self.port = base / name, base / f"{name}-ws", free_port()
        self.home.mkdir(mode=0o700)
        self.ws.mkdir()
        (self.home / "mine.py").write_text(TOOL)
        text = f'[tools]\nload = ["mine.py"]\n[instance]\npublic_url = "{public}"\ndrain_seconds = 50\n'
        (self.home / "settings.toml").write_text(text)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "callgate", "serve", "--http", f"127.0.0.1:{self.port}"],
            cwd=self.ws,
            env={**os.environ, "CALLGATE_HOME": str(self.home)},
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")

    @property
    def headers(self) -> dict[str, str]:
        token = (self.home / "run" / f"{self.process.pid}.token").read_text().strip()
        return {"authorization": f"Bearer {token}"}

    async def ended(self) -> int:
        await asyncio.to_thread(self.process.communicate, timeout=LIMIT_S)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


async def eventually(met: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(met):
            await asyncio.sleep(0.02)


class Cluster:
    def __init__(self, url: str, servers: list[Server]) -> None:
        self.url = url
        self.servers = servers
        self.http = httpx2.AsyncClient(base_url=url, timeout=LIMIT_S)


@asynccontextmanager
async def cluster(base: Path, tools: Path = TOOLS) -> AsyncIterator[Cluster]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as closing:
        servers = []
        for name in ("one", "two"):
            servers.append(await asyncio.to_thread(Server, base, name, url))
            closing.callback(servers[-1].close)
        balancer = subprocess.Popen(
            [
                str(tools / "bin" / "caddy"),
                "run",
                "--config",
                str(PROJECT / "deploy/Caddyfile"),
                "--adapter",
                "caddyfile",
            ],
            env={
                **os.environ,
                "CALLGATE_LISTEN": f":{port}",
                "CALLGATE_BIND": "127.0.0.1",
                "CALLGATE_SERVERS": " ".join(f"127.0.0.1:{each.port}" for each in servers),
                "XDG_DATA_HOME": str(base),
                "XDG_CONFIG_HOME": str(base),
            },
            stderr=subprocess.DEVNULL,
        )
        closing.callback(balancer.wait)
        closing.callback(balancer.terminate)
        made = Cluster(url, servers)
        closing.push_async_callback(made.http.aclose)
        await eventually(lambda: _answers(url))
        yield made


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz").status_code == 200
    except httpx2.HTTPError:
        return False


async def stream_of(cluster: Cluster, server: Server) -> Any:
    """A stream through the balancer that ended at this server: only it knows the token."""
    where = cluster.url.replace("http", "ws") + "/v1/stream"
    headers = {**server.headers, "origin": cluster.url}
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await connect(where, additional_headers=headers, proxy=None)
            except Exception as error:  # the other server took it
                assert "HTTP 401" in str(error), error


async def call_at(cluster: Cluster, server: Server, path: Path) -> httpx2.Response:
    body = {"tool": "until", "arguments": {"path": str(path)}}
    while True:
        answer = await cluster.http.post("/v1/calls", json=body, headers=server.headers)
        if answer.status_code != 401:  # the other server took it
            return answer


async def test_a_rolling_restart_fails_no_request_and_no_running_call(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        failures: list[int] = []
        answered = 0
        done = asyncio.Event()

        async def ask() -> None:
            nonlocal answered
            while not done.is_set():
                status = (await made.http.get("/healthz")).status_code
                answered += 1
                if status != 200:
                    failures.append(status)

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for number, server in enumerate(made.servers):
            file = tmp_path / f"end{number}"
            begun = Path(f"{file}.begun")
            call = asyncio.create_task(call_at(made, server, file))
            await eventually(begun.exists)
            stream = await stream_of(made, server)
            await stream.send(json.dumps({"type": "subscribe", "id": "s"}))
            assert json.loads(await asyncio.wait_for(stream.recv(), LIMIT_S))["type"] == "subscribe_ack"
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                while True:
                    await asyncio.wait_for(stream.recv(), LIMIT_S)
            assert stream.close_code == 1012
            # The balancer sees that it drains; the call goes on, and its caller gets the result.
            await eventually(lambda server=server: _is_left_out(made, server))
            assert not call.done()
            file.touch()
            assert (await call).json()["value"] == "ended by itself"
            assert await server.ended() == 0
            await asyncio.to_thread(server.start)
            await eventually(lambda server=server: _is_reached(made, server))
        done.set()
        await asyncio.gather(*asking)
        assert failures == [] and answered > 100


def _tries(cluster: Cluster, server: Server) -> list[int]:
    headers = server.headers if server.process.poll() is None else {}
    return [httpx2.get(f"{cluster.url}/v1/instance", headers=headers).status_code for _ in range(6)]


def _is_left_out(cluster: Cluster, server: Server) -> bool:
    return 200 not in _tries(cluster, server)


def _is_reached(cluster: Cluster, server: Server) -> bool:
    return 200 in _tries(cluster, server)


async def test_a_page_of_another_site_is_refused_behind_the_balancer_too(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        foreign = {"origin": "http://evil.example"}
        assert (await made.http.get("/v1/instance", headers=foreign)).status_code == 403
        assert (await made.http.get("/v1/instance", headers={"host": "evil.example"})).status_code == 403
        own = {**made.servers[0].headers, "origin": made.url}
        codes: set[int] = set()

        def both_answered() -> bool:
            codes.add(httpx2.get(f"{made.url}/v1/instance", headers=own).status_code)
            return codes >= {200, 401}

        await eventually(both_answered)  # the balancer leaves out a server that is slow to answer
        assert 403 not in codes
