"""An instance that is told to end takes no new work, and lets what runs come to its end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

LIMIT_S = 60.0
TOOLS = """
import asyncio
from pathlib import Path
from callgate import ToolContext, tool

@tool(side_effects="none", requires_workspace=False)
async def until(path: str, context: ToolContext) -> str:
    \"\"\"Wait until a file is there, or it is stopped.\"\"\"
    Path(path + ".begun").touch()
    while not Path(path).exists():
        if context.cancel_event.is_set():
            return "stopped"
        await asyncio.sleep(0.01)
    return "ended by itself"

@tool(side_effects="write", requires_workspace=False)
async def change(what: str) -> str:
    \"\"\"Asked about in mode ask.\"\"\"
    return what
"""


class Served:
    """`callgate serve` in a process of its own, and a client that has its token."""

    def __init__(self, base: Path, drain_s: float, more: str = "") -> None:
        self.base, self.home, self.ws = base, base / "h", base / "ws"
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.ws.mkdir(exist_ok=True)
        (self.home / "mine.py").write_text(TOOLS)
        self.settings = f'[tools]\nload = ["mine.py"]\n[instance]\ndrain_seconds = {drain_s}\n{more}'
        (self.home / "settings.toml").write_text(self.settings)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "callgate", "serve", "--http", "127.0.0.1:0"],
            cwd=self.ws,
            env={**os.environ, "CALLGATE_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")
        record = json.loads((self.home / "instances" / f"{self.process.pid}.json").read_text())
        self.url = str(record["httpUrl"])
        token = (self.home / "run" / f"{self.process.pid}.token").read_text().strip()
        self.headers = {"authorization": f"Bearer {token}"}
        self.http = httpx2.AsyncClient(base_url=self.url, headers=self.headers, timeout=LIMIT_S)

    @property
    def file(self) -> Path:
        """For which `until` waits."""
        return self.base / "end"

    async def call(self, tool: str, session: str | None = None, **arguments: Any) -> httpx2.Response:
        body = {"tool": tool, "arguments": arguments} | ({} if session is None else {"session": session})
        return await self.http.post("/v1/calls", json=body)

    async def begin(self) -> asyncio.Task[httpx2.Response]:
        """A call that runs until `file` is there."""
        call = asyncio.create_task(self.call("until", path=str(self.file)))
        await eventually(lambda: self.base.joinpath("end.begun").exists())
        return call

    async def open(self) -> str:
        return str((await self.http.post("/v1/sessions", json={})).json()["id"])

    async def ready(self) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=self.url, timeout=LIMIT_S) as anybody:
            return await anybody.get("/readyz")

    async def until_draining(self) -> httpx2.Response:
        async with asyncio.timeout(LIMIT_S):
            while (answer := await self.ready()).status_code == 200:
                await asyncio.sleep(0.01)
        return answer

    async def ended(self) -> tuple[int, str]:
        _, error = await asyncio.to_thread(self.process.communicate, timeout=LIMIT_S)
        return self.process.returncode, error.decode()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "callgate", *words],
            cwd=self.ws,
            env={**os.environ, "CALLGATE_HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def records(self) -> list[tuple[str, str | None]]:
        lines = (self.home / "audit.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [(each["tool"], each.get("error_class")) for each in found if "tool" in each]


async def eventually(met: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not met():
            await asyncio.sleep(0.01)


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))  # a short path: sockets have no long ones
    yield made
    shutil.rmtree(made)


@asynccontextmanager
async def serving(base: Path, drain_s: float = 50, more: str = "") -> AsyncIterator[Served]:
    served = Served(base, drain_s, more)
    try:
        yield served
    finally:
        await served.http.aclose()
        if served.process.poll() is None:
            served.process.kill()
        await asyncio.to_thread(served.process.communicate)


async def test_an_instance_that_takes_work_is_ready_and_says_nothing_else(base: Path) -> None:
    async with serving(base) as served:
        answer = await served.ready()
        assert (answer.status_code, answer.json()) == (
            200,
            {"ok": True, "checks": {"settings": "ok", "store": "ok", "work": "ok"}},
        )


async def test_a_running_call_ends_by_itself_and_nothing_new_begins(base: Path) -> None:
    async with serving(base) as served:
        session = await served.open()
        call = await served.begin()
        served.process.send_signal(signal.SIGTERM)
        answer = await served.until_draining()
        assert (answer.status_code, answer.json()["error"]["details"]["work"]) == (503, "draining")
        assert (await served.http.get("/healthz")).status_code == 200
        for path, body in (
            ("/v1/calls", {"tool": "until", "arguments": {"path": "x"}}),
            ("/v1/sessions", {}),
            (f"/v1/sessions/{session}/turns", {"prompt": "hi"}),
            ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}),
        ):
            refused = await served.http.post(path, json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1"), path
            assert refused.json()["error"]["reason"] == "draining"
        assert (await served.http.get("/v1/sessions")).status_code == 200
        assert not call.done()
        served.file.touch()
        assert (await call).json()["value"] == "ended by itself"
        code, error = await served.ended()
        assert (code, error.splitlines()[-1]) == (0, "callgate: stopping")
        assert served.records() == [("until", None)]


async def test_streams_are_told_to_connect_elsewhere(base: Path) -> None:
    async with serving(base) as served:
        call = await served.begin()
        where = served.url.replace("http", "ws") + "/v1/stream"
        async with connect(where, additional_headers=served.headers, proxy=None) as stream:
            await stream.send(json.dumps({"type": "subscribe", "id": "s"}))
            assert json.loads(await stream.recv())["type"] == "subscribe_ack"
            served.process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                while True:
                    await asyncio.wait_for(stream.recv(), LIMIT_S)
            assert (stream.close_code, stream.close_reason) == (1012, "service_restart")
        with pytest.raises(Exception, match="HTTP 503"):
            await connect(where, additional_headers=served.headers, proxy=None).__aenter__()
        assert not call.done()
        served.file.touch()
        assert (await call).json()["ok"]
        assert (await served.ended())[0] == 0


async def test_what_does_not_end_in_time_is_stopped_and_recorded(base: Path) -> None:
    async with serving(base, drain_s=0.5) as served:
        call = await served.begin()
        served.process.send_signal(signal.SIGTERM)
        assert (await call).json()["error"]["class"] == "shutting_down"
        code, error = await served.ended()
        assert (code, error.splitlines()[-2:]) == (
            0,
            ["callgate: 1 in flight did not finish in time, and are stopped", "callgate: stopping"],
        )
        assert served.records() == [("until", "shutting_down")]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_drain_at_once(base: Path, second: signal.Signals) -> None:
    async with serving(base, drain_s=3_600) as served:
        call = await served.begin()
        served.process.send_signal(signal.SIGTERM)
        await served.until_draining()
        served.process.send_signal(second)
        assert (await call).json()["error"]["class"] == "shutting_down"
        assert (await served.ended())[0] == 0


async def test_the_first_interrupt_of_a_person_drains_nothing(base: Path) -> None:
    async with serving(base, drain_s=3_600) as served:
        call = await served.begin()
        served.process.send_signal(signal.SIGINT)
        assert (await call).json()["error"]["class"] == "shutting_down"
        code, error = await served.ended()
        assert (code, "draining" in error, "in time" in error) == (0, False, False)


async def test_a_question_to_a_person_holds_up_no_drain(base: Path) -> None:
    async with serving(base, drain_s=3_600) as served:
        where = served.url.replace("http", "ws") + "/v1/stream"
        async with connect(where, additional_headers=served.headers, proxy=None) as person:
            await person.send(json.dumps({"type": "subscribe", "id": "s", "confirmer": True}))
            assert json.loads(await person.recv())["type"] == "subscribe_ack"
            call = asyncio.create_task(served.call("change", what="x"))
            async with asyncio.timeout(LIMIT_S):
                while not (await served.http.get("/v1/confirmations")).json()["confirmations"]:
                    await asyncio.sleep(0.01)
            served.process.send_signal(signal.SIGTERM)
            assert (await served.ended())[0] == 0
            assert not (await call).json()["ok"]
        assert served.records() == [("change", "shutting_down")]


async def test_an_idle_session_is_free_for_others_while_a_call_still_runs(base: Path) -> None:
    async with serving(base) as served:
        session = await served.open()
        call = await served.begin()
        served.process.send_signal(signal.SIGTERM)
        await served.until_draining()
        async with serving(base) as other:  # at the same socket, which is free by now
            (base / "free").touch()
            async with asyncio.timeout(LIMIT_S):
                while (taken := await other.call("until", session, path=str(base / "free"))).status_code == 409:
                    await asyncio.sleep(0.01)
            assert taken.json()["value"] == "ended by itself"
        assert not call.done()
        served.file.touch()
        assert (await call).json()["ok"]
        assert (await served.ended())[0] == 0


async def test_a_connected_program_is_refused_new_calls_and_gets_the_running_one(base: Path) -> None:
    async with serving(base) as served:
        reader, writer = await asyncio.open_unix_connection(str(served.home / "run" / "callgate.sock"))

        def send(id: str, path: Path) -> None:
            frame = {"type": "tool_call", "requestId": id, "toolName": "until", "arguments": {"path": str(path)}}
            writer.write(json.dumps({**frame, "protocol": 1, "clientInfo": {"cwd": str(served.ws)}}).encode() + b"\n")

        async def result(id: str) -> Any:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    frame = json.loads(await reader.readline())
                    if (frame["type"], frame.get("requestId")) == ("tool_result", id):
                        return frame["result"]

        send("first", served.file)
        await eventually(lambda: served.base.joinpath("end.begun").exists())
        served.process.send_signal(signal.SIGTERM)
        await served.until_draining()
        send("second", served.base / "other")
        assert (await result("second"))["error"]["code"] == "RUNTIME_SHUTTING_DOWN"
        with pytest.raises(OSError):  # noqa: PT011  # the next instance may listen there by now
            await asyncio.open_unix_connection(str(served.home / "run" / "callgate.sock"))
        served.file.touch()
        assert (await result("first"))["ok"]
        assert (await served.ended())[0] == 0
        writer.close()


async def test_stop_waits_for_the_drain_and_stop_now_does_not(base: Path) -> None:
    async with serving(base, drain_s=3_600) as served:
        call = await served.begin()
        stopping = asyncio.create_task(asyncio.to_thread(served.run, "stop"))
        await served.until_draining()
        assert not stopping.done()
        began = time.monotonic()
        now = await asyncio.to_thread(served.run, "stop", "--now")
        assert now.returncode == 0 and time.monotonic() - began < 10
        assert (await stopping).returncode == 0
        assert (await call).json()["error"]["class"] == "shutting_down"


async def test_an_instance_with_settings_that_cannot_be_used_takes_no_work(base: Path) -> None:
    async with serving(base) as served:
        settings = served.home / "settings.toml"
        settings.write_text("[policy\nsecret = 'hunter2secret'\n")
        answer = await served.ready()
        assert (answer.status_code, answer.json()["error"]["details"]) == (
            503,
            {"settings": "unusable", "store": "ok", "work": "ok"},
        )
        assert "hunter2" not in answer.text and str(base) not in answer.text
        settings.write_text(served.settings)
        assert (await served.ready()).status_code == 200


async def test_a_drain_may_last_longer_than_an_end(base: Path) -> None:
    """The watchdog kills what has not ended `stop_s` after a signal; it waits for the drain first."""
    async with serving(base, more="[limits]\nstop_s = 0.5\n") as served:
        call = await served.begin()
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            await asyncio.to_thread(served.process.wait, 2.0)
        served.file.touch()
        assert (await call).json()["value"] == "ended by itself"
        assert (await served.ended())[0] == 0
