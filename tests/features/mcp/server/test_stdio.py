"""MCP on stdin and stdout: lines in, lines out, and nothing else ever."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.features.mcp.server.stdio import Pipes, serve_pipes
from tests.features.mcp.server.talks import LIMIT_S, World, world

CALLGATE = str(Path(sys.executable).with_name("callgate"))
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def request(id: int, method: str, **params: Any) -> bytes:
    """One that needs no greeting before it."""
    params["_meta"] = META
    said = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return json.dumps(said).encode() + b"\n"


class Line:
    """The client's ends of two pipes."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._pipes = Pipes(read_fd, write_fd)
        self._rest = b""

    async def open(self) -> None:
        await self._pipes.open()

    async def send(self, data: bytes) -> None:
        await self._pipes.write(data)

    async def read(self) -> Any:
        while b"\n" not in self._rest:
            data = await self._pipes.read()
            assert data, "it has hung up"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        self._pipes.close()


@contextlib.asynccontextmanager
async def on_pipes(here: World) -> AsyncIterator[tuple[Line, asyncio.Task[None]]]:
    to_server, from_client = os.pipe()
    to_client, from_server = os.pipe()
    ours, theirs = Pipes(to_server, from_server), Line(to_client, from_client)
    await ours.open()
    await theirs.open()
    talking = asyncio.create_task(serve_pipes(ours, here.server))
    try:
        yield theirs, talking
    finally:
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        ours.close()
        theirs.close()
        await asyncio.sleep(0)  # transports close in the next round of the loop


@pytest.mark.spec("T34", "T37")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b"[1]", -32600),
        (b"7", -32600),
        (b"null", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
        (b"x" * (9 * 1024 * 1024), -32600),
    ],
)
async def test_a_line_that_is_no_message_is_answered_and_the_next_is_read(
    tmp_path: Path, line: bytes, code: int
) -> None:
    async with world(tmp_path) as here, on_pipes(here) as (client, _):
        sending = asyncio.create_task(client.send(line + b"\n" + request(1, "tools/list")))
        refused, listed = await client.read(), await client.read()
        await sending
    assert (refused["id"], refused["error"]["code"]) == (None, code)
    assert listed["id"] == 1
    assert listed["result"]["tools"]


@pytest.mark.spec("T34")
async def test_two_requests_with_one_id_do_not_stop_a_third(tmp_path: Path) -> None:
    async with world(tmp_path) as here, on_pipes(here) as (client, _):
        await client.send(request(1, "tools/list") + request(1, "prompts/list"))
        await client.send(request(2, "prompts/list"))
        seen = []
        while 2 not in seen:
            seen.append((await client.read())["id"])


async def test_the_end_of_the_input_ends_the_talk_and_stops_calls(tmp_path: Path) -> None:
    async with world(tmp_path) as here, on_pipes(here) as (client, talking):
        await client.send(request(1, "tools/call", name="wait", arguments={}))
        await here.started.wait()
        client.close()
        await talking
        await here.stopped.wait()


NOISY = """
import os, subprocess, sys, warnings
from callgate import tool

print("at import")

@tool(side_effects="none", isolate=False)
async def noise() -> str:
    '''Print in every way there is.'''
    print("printed")
    sys.__stdout__.write("written\\n")
    os.write(1, b"from below\\n")
    os.system("echo from a child")
    warnings.warn("warned")
    return "quiet"

@tool(side_effects="none", isolate=False)
async def crash() -> str:
    '''Fail in a way that nobody expects.'''
    raise RuntimeError("boom")
"""


async def test_nothing_but_the_protocol_reaches_stdout_and_eof_ends_the_process(home: Path, tmp_path: Path) -> None:
    (home / "noisy.py").write_text(NOISY)
    (home / "settings.toml").write_text('[tools]\nload = ["noisy.py"]\n')
    process = await asyncio.create_subprocess_exec(
        CALLGATE,
        "mcp",
        "serve",
        "--workspace",
        str(tmp_path),
        "--mode",
        "write",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "CALLGATE_HOME": str(home)},
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(LIMIT_S * 2):
            for id, name in enumerate(("noise", "crash"), 1):
                process.stdin.write(request(id, "tools/call", name=name, arguments={}))
            lines = [json.loads(await process.stdout.readline()) for _ in range(2)]
            process.stdin.close()
            rest, said = await process.stdout.read(), (await process.stderr.read()).decode()
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    answered = {each["id"]: each["result"]["isError"] for each in lines}
    assert (answered, rest, code) == ({1: False, 2: True}, b"", 0)
    for each in ("at import", "printed", "written", "from below", "from a child", "warned"):
        assert each in said
    assert "boom" not in json.dumps(lines)


class Watched(Pipes):
    """Tells when it has taken in as much as it wants to."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        super().__init__(read_fd, write_fd)
        self.full = asyncio.Event()

    def is_behind(self, caught_up: Callable[[], None]) -> bool:
        behind = super().is_behind(caught_up)
        if behind:
            self.full.set()
        return behind


async def test_a_file_is_read_to_its_end_though_it_does_not_fit_at_once(tmp_path: Path) -> None:
    said, answered = tmp_path / "said", tmp_path / "answered"
    said.write_bytes(bytes(range(256)) * 16 * 1024)
    answer = os.open(answered, os.O_WRONLY | os.O_CREAT, 0o600)
    pipes = Watched(os.open(said, os.O_RDONLY), answer)
    await pipes.open()
    read = b""
    async with asyncio.timeout(LIMIT_S):
        await pipes.full.wait()
        while data := await pipes.read():
            read += data
        await pipes.write(b"thanks")
    pipes.close()
    assert (read == said.read_bytes(), answered.read_bytes()) == (True, b"thanks")
