"""`callgate acp` on its descriptors: the greeting, the agent behind it, and every way it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import __version__
from callgate.features.editor import stdio
from callgate.features.editor.agent import AcpAgent
from callgate.features.editor.peer import EditorPeer, PeerGone
from callgate.features.editor.stdio import AcpOptions, Served, serve
from callgate.protocol import jsonrpc
from callgate.protocol.acp.initialize import Initialize, Received
from callgate.protocol.acp.requests import METHODS
from callgate.protocol.jsonrpc import Request, RpcError
from tests.kernel.cli.running import CALLGATE, environment

LIMIT_S = 60
HELLO = {"protocolVersion": 1, "clientInfo": {"name": "an\x1b[2Jeditor", "version": "9.8"}}


class FakeAgent:
    """Answers with what it was asked; `wait` waits until it is closed."""

    def __init__(self, peer: EditorPeer, client: Initialize) -> None:
        self.peer, self.client = peer, client
        self.noted_methods: list[str] = []
        self.closed = 0
        self._closing = asyncio.Event()
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer(self, method: str, params: Any, request: Request) -> Any:
        self._under_way += 1
        try:
            return await self._answer(method, params)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _answer(self, method: str, params: Any) -> Any:
        self._idle.clear()
        if params == {"wait": True}:
            await self._closing.wait()
            return {"stopReason": "cancelled"}
        if params == {"ask": True}:
            try:
                await self.peer.request("session/request_permission", {})
            except PeerGone:
                return {"stopReason": "cancelled"}
        if params == {"flood": True}:
            while True:
                self.peer.notify("session/update", "x" * 50_000)
                await self.peer.drained()
        return {"method": method}

    def noted(self, method: str, params: Any) -> None:
        self.noted_methods.append(method)

    async def close(self) -> None:
        self.closed += 1
        self._closing.set()
        await self._idle.wait()


class Editor:
    """The other end, over a pipe for each direction."""

    def __init__(self, write: asyncio.StreamWriter, read: asyncio.StreamReader, done: asyncio.Task[int]) -> None:
        self.writer, self.reader, self.done = write, read, done
        self.agents: list[FakeAgent] = []

    def send(self, *lines: bytes) -> None:
        self.writer.write(b"".join(lines))

    async def line(self) -> Any:
        return json.loads(await self.reader.readline())

    async def ask(self, id: int, method: str, params: Any = None) -> Any:
        self.send(jsonrpc.request(id, method, params))
        return await self.line()


async def _ends(read_fd: int, write_fd: int) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open(read_fd, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, open(write_fd, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, reader, loop), reader


@asynccontextmanager
async def editor(
    options: AcpOptions = AcpOptions(), failing: Callable[[], Exception | None] = lambda: None
) -> AsyncIterator[Editor]:
    ours_read, theirs_write = os.pipe()
    theirs_read, ours_write = os.pipe()
    agents: list[FakeAgent] = []

    async def make_agent(peer: EditorPeer, client: Initialize) -> FakeAgent:
        if (error := failing()) is not None:
            raise error
        agents.append(FakeAgent(peer, client))
        return agents[-1]

    async with asyncio.timeout(LIMIT_S):
        done = asyncio.create_task(serve(ours_read, ours_write, options, make_agent))
        made = Editor(*await _ends(theirs_read, theirs_write), done)
        made.agents = agents
        try:
            yield made
        finally:
            made.writer.close()
            assert await done == 0
            made.reader._transport.close()


@pytest.fixture(autouse=True)
def no_hard_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_end_in_any_case", lambda: None)


def code(answer: Any) -> Any:
    return answer["id"], answer["error"]["code"]


@pytest.mark.spec("S2-04", "S2-05")
async def test_the_greeting_says_what_there_is() -> None:
    async with editor() as client:
        assert await client.ask(0, "initialize", {"protocolVersion": 7}) == {
            "jsonrpc": "2.0",
            "id": 0,
            "result": {
                "protocolVersion": 1,
                "agentCapabilities": {
                    "loadSession": True,
                    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                    "mcpCapabilities": {"http": True, "sse": False},
                    "sessionCapabilities": {
                        "list": {},
                        "resume": {},
                        "close": {},
                        "delete": {},
                        "additionalDirectories": {},
                    },
                    "auth": {"logout": {}},
                },
                "agentInfo": {"name": "callgate", "title": "callgate", "version": __version__},
                "authMethods": [
                    {
                        "id": "settings",
                        "name": "callgate settings",
                        "description": "Use the model and the key of callgate's settings.",
                    }
                ],
            },
        }


async def test_more_is_offered_to_those_who_can_take_it() -> None:
    async with editor(AcpOptions(unstable=True)) as client:
        said = {"protocolVersion": 1, "clientCapabilities": {"auth": {"terminal": True}}}
        result = (await client.ask(0, "initialize", said))["result"]
        assert result["agentCapabilities"]["sessionCapabilities"]["fork"] == {}
        agent, terminal = result["authMethods"]
        assert ("type" in agent, terminal["type"], terminal["args"]) == (False, "terminal", ["--setup"])


@pytest.mark.spec("S2-03")
async def test_version_zero_is_refused_and_may_be_asked_again() -> None:
    async with editor() as client:
        assert code(await client.ask(0, "initialize", {"protocolVersion": 0})) == (0, jsonrpc.INVALID_PARAMS)
        assert "result" in await client.ask(1, "initialize", HELLO)
        assert code(await client.ask(2, "initialize", HELLO)) == (2, jsonrpc.INVALID_REQUEST)


@pytest.mark.spec("S2-02")
async def test_the_client_s_name_and_version_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "callgate.acp")
    async with editor() as client:
        await client.ask(0, "initialize", HELLO)
    (said,) = [record.getMessage() for record in caplog.records if "connected" in record.getMessage()]
    assert said.endswith("editor 9.8")
    assert said.isprintable()


@pytest.mark.spec("S2-78")
async def test_unknown_methods_are_refused_at_any_time_and_unknown_notifications_ignored() -> None:
    async with editor() as client:
        client.send(jsonrpc.notification("nobody/knows", {}))
        assert code(await client.ask(1, "nobody/knows")) == (1, jsonrpc.METHOD_NOT_FOUND)
        assert code(await client.ask(2, "session/new", {})) == (2, jsonrpc.INVALID_REQUEST)
        await client.ask(3, "initialize", HELLO)
        client.send(jsonrpc.notification("nobody/knows", {}))
        assert code(await client.ask(4, "session/fork")) == (4, jsonrpc.METHOD_NOT_FOUND)
        assert (await client.ask(5, "_ours/own"))["result"] == {"method": "_ours/own"}


@pytest.mark.parametrize("unstable", [False, True])
async def test_every_method_of_the_protocol_is_passed_on(unstable: bool) -> None:
    async with editor(AcpOptions(unstable=unstable)) as client:
        await client.ask(0, "initialize", HELLO)
        for id, (name, method) in enumerate(METHODS.items(), 1):
            answer = await client.ask(id, name, {})
            if name == "initialize":
                assert code(answer) == (id, jsonrpc.INVALID_REQUEST)
            elif method.is_notification or not (method.is_stable or unstable):
                assert code(answer) == (id, jsonrpc.METHOD_NOT_FOUND)
            else:
                assert answer["result"] == {"method": name}


@pytest.mark.parametrize("unstable", [False, True])
async def test_the_greeting_announces_the_methods_that_are_answered_and_no_other(unstable: bool) -> None:
    async with editor(AcpOptions(unstable=unstable)) as client:
        announced = (await client.ask(0, "initialize", HELLO))["result"]["agentCapabilities"]
    optional = {method.capability for method in METHODS.values() if method.is_stable or unstable} - {None}
    sessions = {f"sessionCapabilities.{name}" for name in announced["sessionCapabilities"]}
    found = sessions | {f"auth.{name}" for name in announced["auth"]}
    found |= {"loadSession"} if announced["loadSession"] else set()
    assert found - {"sessionCapabilities.additionalDirectories"} == optional


def test_the_agent_does_every_request_of_the_protocol() -> None:
    done = AcpAgent.__dict__["_perform"].dispatcher.registry.keys() - {object, Received}
    assert done == {each.params for each in METHODS.values() if not each.is_notification} - {Initialize}


async def test_an_agent_is_made_once_and_knows_the_client() -> None:
    async with editor() as client:
        await client.ask(0, "initialize", HELLO)
        client.send(jsonrpc.request(1, "session/new", {}), jsonrpc.request(2, "session/list", {}))
        assert [(await client.line())["result"] for _ in range(2)] == [
            {"method": "session/new"},
            {"method": "session/list"},
        ]
        client.send(jsonrpc.notification("session/cancel", {}))
        await client.ask(3, "session/list")
        (agent,) = client.agents
        assert agent.client.client_info is not None
        assert (agent.client.client_info.version, agent.noted_methods) == ("9.8", ["session/cancel"])


async def test_the_greeting_is_written_before_an_agent_is_made() -> None:
    written: list[bytes] = []
    before = asyncio.get_running_loop().create_future()

    async def make_agent(peer: EditorPeer, client: Initialize) -> FakeAgent:
        before.set_result(len(written))
        return FakeAgent(peer, client)

    served = Served(AcpOptions(), make_agent, written.append, lambda: None)
    served.peer.feed(jsonrpc.request(0, "initialize", HELLO))
    assert await before == 1
    await served.close()


async def test_an_agent_that_cannot_be_made_is_tried_again_with_the_next_request() -> None:
    problems: list[Exception | None] = [RpcError(-32603, "first"), RpcError(-32603, "second"), None]
    async with editor(failing=lambda: problems.pop(0)) as client:
        await client.ask(0, "initialize", HELLO)
        assert code(await client.ask(1, "session/new")) == (1, jsonrpc.INTERNAL_ERROR)
        assert (await client.ask(2, "session/new"))["result"] == {"method": "session/new"}


@pytest.mark.spec("S2-78")
async def test_the_end_of_the_input_closes_the_agent_and_answers_what_is_under_way() -> None:
    async with editor() as client:
        await client.ask(0, "initialize", HELLO)
        client.send(
            jsonrpc.request(1, "session/prompt", {"wait": True}), jsonrpc.request(2, "session/prompt", {"ask": True})
        )
        assert (await client.line())["method"] == "session/request_permission"
        client.writer.close()
        assert await client.done == 0
        answers = [await client.line(), await client.line()]
        assert sorted((each["id"], each["result"]["stopReason"]) for each in answers) == [
            (1, "cancelled"),
            (2, "cancelled"),
        ]
        assert client.agents[0].closed == 1


async def test_an_output_that_nobody_reads_any_more_ends_it() -> None:
    async with editor() as client:
        await client.ask(0, "initialize", HELLO)
        client.send(jsonrpc.request(1, "session/prompt", {"wait": True}))
        await client.ask(2, "session/list")
        client.reader._transport.close()
        assert await client.done == 0
        assert client.agents[0].closed == 1


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_it(sent: signal.Signals) -> None:
    async with editor() as client:
        await client.ask(0, "initialize", HELLO)
        await client.ask(1, "session/new")
        os.kill(os.getpid(), sent)
        assert await client.done == 0
        assert client.agents[0].closed == 1


async def test_a_client_that_does_not_read_is_waited_for_and_costs_no_memory() -> None:
    async with editor() as client:
        await client.ask(0, "initialize", HELLO)
        await client.ask(1, "session/new")
        client.reader._transport.pause_reading()
        client.send(jsonrpc.request(2, "session/prompt", {"flood": True}), jsonrpc.request(3, "session/list", None))
        peer = client.agents[0].peer
        async with asyncio.timeout(LIMIT_S):
            while not peer._paused:
                await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert peer._size < 1_000_000
        client.writer.close()
        client.reader._transport.close()
        assert await client.done == 0


@pytest.mark.parametrize("between", [b"", jsonrpc.notification("session/cancel", None)])
async def test_a_flood_of_messages_is_answered_to_the_last(between: bytes) -> None:
    async with editor() as client:
        await client.ask(0, "initialize", HELLO)
        for id in range(1, 3_001):
            client.send(jsonrpc.request(id, "nobody/knows", None), between)
        answers = [await client.line() for _ in range(3_000)]
        expected = [(id, jsonrpc.METHOD_NOT_FOUND) for id in range(1, 3_001)]
        assert [code(each) for each in answers] == expected


@pytest.mark.parametrize("same", [True, False])
async def test_sockets_will_do_as_well_also_one_for_both_directions(same: bool) -> None:
    ours, theirs = socket.socketpair()
    beside, other = socket.socketpair()

    async def make_agent(peer: EditorPeer, client: Initialize) -> FakeAgent:
        return FakeAgent(peer, client)

    async with asyncio.timeout(LIMIT_S):
        write_fd = os.dup((ours if same else beside).fileno())
        done = asyncio.create_task(serve(ours.detach(), write_fd, AcpOptions(), make_agent))
        both, writer = await asyncio.open_connection(sock=theirs)
        apart, closing = await asyncio.open_connection(sock=other)
        answers = both if same else apart
        writer.write(jsonrpc.request(0, "initialize", HELLO))
        assert json.loads(await answers.readline())["id"] == 0
        writer.write(jsonrpc.request(1, "session/new", {}))
        assert json.loads(await answers.readline())["result"] == {"method": "session/new"}
        writer.write_eof()
        assert await done == 0
        beside.close()
        for each in (writer, closing):
            each.close()
            await each.wait_closed()


async def test_files_will_do_as_well(tmp_path: Path) -> None:
    asked, answered = tmp_path / "in", tmp_path / "out"
    unknown = b"".join(jsonrpc.request(id, "nobody/knows", None) for id in range(1, 501))
    asked.write_bytes(jsonrpc.request(0, "initialize", HELLO) + b"[]\n" + unknown)
    with asked.open("rb") as input, answered.open("wb") as output:
        async with asyncio.timeout(LIMIT_S):

            async def make_agent(peer: EditorPeer, client: Initialize) -> FakeAgent:
                return FakeAgent(peer, client)

            assert await serve(input.fileno(), output.fileno(), AcpOptions(), make_agent) == 0
    answers = [json.loads(each) for each in answered.read_bytes().splitlines()]
    assert [(each["id"], each.get("error", {}).get("code")) for each in answers] == [
        (0, None),
        (None, jsonrpc.INVALID_REQUEST),
        *((id, jsonrpc.METHOD_NOT_FOUND) for id in range(1, 501)),
    ]


# Real processes


def started(*words: str, home: Path, **given: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [CALLGATE, "acp", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({"CALLGATE_HOME": str(home), **given}),
        start_new_session=True,
    )


NOISE = """
import os, sys, warnings
print("noise: print", flush=True)
sys.__stdout__.write("noise: original\\n")
os.write(1, b"noise: descriptor\\n")
os.system("echo noise: child")
warnings.warn("noise: warning")
"""


@pytest.mark.spec("S2-01", "S2-02", "S2-78")
def test_nothing_but_the_protocol_reaches_stdout(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('[tools]\nload = ["noisy.py"]\n')
    (tmp_path / "noisy.py").write_text(NOISE)
    new = {"cwd": str(tmp_path), "mcpServers": []}
    with started("-v", home=tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(
            jsonrpc.request(0, "initialize", HELLO) + b"{\n[1]\n" + jsonrpc.request(1, "session/new", new)
        )
        process.stdin.flush()
        lines = [process.stdout.readline()]
        while json.loads(lines[-1]).get("id") != 1:
            lines.append(process.stdout.readline())
        rest, logged = process.communicate(timeout=LIMIT_S)
    lines += rest.splitlines()
    assert {json.loads(line)["jsonrpc"] for line in lines} == {"2.0"}
    assert [line for line in lines if b"noise" in line] == []
    for kind in (b"print", b"original", b"descriptor", b"child", b"warning"):
        assert b"noise: " + kind in logged
    assert b"editor 9.8" in logged
    assert process.returncode == 0


@pytest.mark.spec("S2-78")
def test_the_process_ends_with_its_client(tmp_path: Path) -> None:
    with started(home=tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(jsonrpc.request(0, "initialize", HELLO))
        process.stdin.flush()
        assert select.select([process.stdout], [], [], LIMIT_S)[0]
        process.stdout.readline()
        _, logged = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, logged) == (0, b"")
