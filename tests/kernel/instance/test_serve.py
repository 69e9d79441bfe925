"""A program serves an instance of its own: over the socket, over HTTP, and as long as it wants."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import callgate
from callgate import CannotServe, Instance, NoInstance, ToolRegistrationError, tool
from callgate.sandbox.processes.command_marks import MARK
from callgate.socket.instances import running
from tests.support import descriptors

LIMIT_S = 60.0


@tool(side_effects="read")
async def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@tool(side_effects="write")
async def remember(text: str) -> str:
    """Change something."""
    return text


class Place:
    def __init__(self, base: Path) -> None:
        self.base, self.home, self.ws = base, base / "h", base / "ws"
        self.ws.mkdir()
        (self.ws / "a.txt").write_text("hello\n")

    def serve(self, **options: Any) -> Any:
        return callgate.serve([self.ws], **{"home": self.home, "tools": [shout, remember], **options})

    def connect(self, **options: Any) -> Any:
        return callgate.connect(**{"home": self.home, "cwd": self.ws, **options})


@pytest.fixture
def place() -> Iterator[Place]:
    base = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    yield Place(base)
    shutil.rmtree(base, ignore_errors=True)


async def post_call(instance: Instance, tool: str, **arguments: Any) -> Any:
    headers = {"authorization": f"Bearer {instance.token}"}
    async with httpx2.AsyncClient(base_url=instance.url or "", timeout=LIMIT_S, headers=headers) as client:
        return (await client.post("/v1/calls", json={"tool": tool, "arguments": arguments})).json()


async def test_a_program_serves_its_own_tools_and_those_of_the_settings(place: Place) -> None:
    async with place.serve(label="mine") as instance, place.connect(instance="mine") as gate:
        assert (await gate.call("shout", {"text": "hi"})).value == "HI"
        assert "hello" in (await gate.call("read_file", {"path": "a.txt"})).text
        assert (instance.pid, instance.label, instance.url, instance.token) == (os.getpid(), "mine", None, None)
        assert (instance.socket, instance.workspaces) == (str(place.home / "run/callgate.sock"), (str(place.ws),))


async def test_the_same_instance_answers_http(place: Place) -> None:
    async with place.serve(http="127.0.0.1:0", socket=place.base / "s" / "x.sock") as instance:
        assert (await post_call(instance, "shout", text="hi"))["value"] == "HI"
        async with place.connect(socket=instance.socket) as gate:
            assert (await gate.call("shout", {"text": "ho"})).value == "HO"
        async with httpx2.AsyncClient(base_url=instance.url) as stranger:
            assert (await stranger.get("/v1/instance")).status_code == 401


async def test_the_usual_address_gives_way_to_any_that_is_free(place: Place) -> None:
    second = Place(Path(tempfile.mkdtemp(prefix="cg", dir=place.base)))
    async with place.serve(http=True) as one, second.serve(http=True) as two:
        assert one.url != two.url
        assert (await post_call(two, "shout", text="hi"))["value"] == "HI"


async def test_others_find_it_for_as_long_as_it_serves(place: Place) -> None:
    async with place.serve(http="127.0.0.1:0") as instance:
        (record,) = running(str(place.home))
        assert (record.pid, record.socket, record.http) == (os.getpid(), instance.socket, instance.url)
        assert json.loads((place.home / "config.json").read_text())["pid"] == os.getpid()
        assert (place.home / "run" / f"{os.getpid()}.token").stat().st_mode & 0o777 == 0o600
    assert running(str(place.home)) == []
    assert not (place.home / "config.json").exists()
    assert not list((place.home / "run").glob("*.token")) and not Path(instance.socket).exists()
    with pytest.raises(NoInstance):
        await place.connect().__aenter__()


async def test_it_can_be_served_again_and_nothing_stays_open(place: Place) -> None:
    async with place.serve(http="127.0.0.1:0"):
        pass
    before = descriptors()
    for _ in range(3):
        async with place.serve(http="127.0.0.1:0") as instance:
            assert (await post_call(instance, "shout", text="hi"))["value"] == "HI"
    assert len(descriptors()) <= len(before)


async def test_other_machines_reach_it_only_where_that_is_allowed(place: Place) -> None:
    async with place.serve(http="0.0.0.0:0", http_allow_remote=True) as instance:
        assert (await post_call(instance, "shout", text="hi"))["value"] == "HI"


async def test_a_peer_works_only_in_a_directory_that_is_served(place: Place) -> None:
    elsewhere = place.base / "elsewhere"
    elsewhere.mkdir()
    async with place.serve(), place.connect(cwd=elsewhere) as gate:
        refused = await gate.call("read_file", {"path": "a.txt"})
        assert refused.error.reason == "workspace_not_served"


async def test_a_mode_that_is_given_is_the_widest(place: Place) -> None:
    async with place.serve(mode="read", http="127.0.0.1:0") as instance, place.connect() as gate:
        assert (await gate.call("remember", {"text": "x"})).error.error_class == "permission_denied"
        headers = {"authorization": f"Bearer {instance.token}"}
        async with httpx2.AsyncClient(base_url=instance.url, timeout=LIMIT_S, headers=headers) as client:
            wider = await client.post("/v1/sessions", json={"mode": "write"})
            assert (wider.status_code, wider.json()["error"]["reason"]) == (403, "mode_ceiling")


async def test_the_program_is_asked_about_the_calls_of_its_peers(place: Place) -> None:
    questions = []

    async def confirm(question: Any) -> bool:
        questions.append(question.tool)
        return len(questions) == 1

    async with place.serve(confirm=confirm), place.connect() as gate:
        assert (await gate.call("remember", {"text": "x"})).value == "x"
        assert (await gate.call("remember", {"text": "y"})).error.error_class == "user_denied"
    assert questions == ["remember", "remember"]


async def test_without_anybody_to_ask_a_write_is_refused(place: Place) -> None:
    async with place.serve(), place.connect() as gate:
        assert (await gate.call("remember", {"text": "x"})).error.error_class == "permission_denied"


async def test_one_process_serves_a_home_once(place: Place) -> None:
    async with place.serve(), place.connect() as gate:
        with pytest.raises(CannotServe, match="serves"):
            await place.serve(socket=place.base / "s" / "x.sock").__aenter__()
        assert not (place.base / "s").exists()
        assert (await gate.call("shout", {"text": "hi"})).value == "HI"  # the first one goes on


@pytest.mark.parametrize(
    "options",
    [
        {"http": "0.0.0.0:0"},
        {"http": "nonsense"},
        {"http": "127.0.0.1:{taken}"},
        {"socket": "{ws}/../x.sock"},
        {"socket": "{base}/" + "x" * 120},
    ],
)
async def test_where_it_cannot_or_must_not_listen_nothing_is_left(place: Place, options: dict[str, str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        names = {"base": place.base, "ws": place.ws, "taken": other.getsockname()[1]}
        with pytest.raises(CannotServe):
            await place.serve(**{key: value.format(**names) for key, value in options.items()}).__aenter__()
    assert running(str(place.home)) == []
    async with place.serve(), place.connect() as gate:  # the home is free
        assert (await gate.call("shout", {"text": "hi"})).value == "HI"


async def test_a_record_that_cannot_be_written_leaves_nothing_open(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    (place.home / "instances").write_text("in the way")
    before = descriptors()
    with pytest.raises(OSError):
        await place.serve(http="127.0.0.1:0").__aenter__()
    assert not list((place.home / "run").glob("*.token")) and not (place.home / "run/callgate.sock").exists()
    assert len(descriptors()) <= len(before)


async def test_a_tool_that_cannot_be_registered_leaves_nothing_open(place: Place) -> None:
    before = descriptors()
    with pytest.raises(ToolRegistrationError):
        await place.serve(tools=[shout, shout]).__aenter__()
    assert running(str(place.home)) == []
    assert len(descriptors()) <= len(before)


async def test_a_workspace_that_is_not_there_is_not_served(place: Place) -> None:
    with pytest.raises(CannotServe, match="not a directory"):
        await callgate.serve([place.base / "gone"], home=place.home).__aenter__()


async def test_a_tool_cannot_serve_an_instance_of_its_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "1")
    with pytest.raises(CannotServe, match="inside a running call"):
        await place.serve().__aenter__()


async def test_what_belongs_to_the_program_stays_as_it_is(place: Place) -> None:
    def process() -> Any:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        return gc.get_threshold(), sys.getswitchinterval(), files

    before, frozen = process(), gc.get_freeze_count()
    async with place.serve(http="127.0.0.1:0") as instance:
        await post_call(instance, "shout", text="hi")
        assert process() == before
        assert gc.get_freeze_count() <= frozen  # of what an earlier test froze, some is gone by now


async def test_a_socket_that_was_deleted_is_made_again(place: Place) -> None:
    async with place.serve() as instance, asyncio.timeout(LIMIT_S):
        os.unlink(instance.socket)
        while True:
            try:
                async with place.connect(socket=instance.socket) as gate:
                    assert (await gate.call("shout", {"text": "hi"})).value == "HI"
                    break
            except NoInstance:
                await asyncio.sleep(0.02)


async def test_a_program_learns_why_its_instance_can_serve_no_longer(place: Place) -> None:
    async with place.serve() as instance, asyncio.timeout(LIMIT_S):
        place.home.rename(place.base / "moved")
        assert str(place.home) in await instance.wait()


PROGRAM = """
import asyncio, sys, callgate, httpx2

async def main(base):
    async with callgate.serve([f"{base}/ws"], home=f"{base}/h", http="127.0.0.1:0") as instance:
        assert not {"starlette", "uvicorn", "websockets"} & set(sys.modules)
        async with callgate.connect(home=f"{base}/h", cwd=f"{base}/ws") as gate:
            assert (await gate.call("read_file", {"path": "a.txt"})).ok
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {instance.token}"}, timeout=60) as client:
            body = {"tool": "read_file", "arguments": {"path": "a.txt"}}
            assert (await client.post(f"{instance.url}/v1/calls", json=body)).json()["ok"]

asyncio.run(main(sys.argv[1]))
print([name for name in sys.modules if name.split(".")[:2] == ["callgate", "cli"]])
"""


def test_a_call_by_socket_or_http_needs_nothing_of_the_command_line(place: Place) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place.base)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
