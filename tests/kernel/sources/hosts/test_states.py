"""What hosts want to be reminded of: it does not grow without end, and is not set back."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from callgate.core.tools import ToolContext
from callgate.protocol.host_v1 import frames
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sources import host_handshake as module
from callgate.sources.host_handshake import States
from callgate.sources.hosts import Host, HostSettings


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> States:
    monkeypatch.setattr(module, "MOST_SESSIONS", 3)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    return States()


def kept(states: States) -> dict[str, object]:
    return {session: states.get(session, {}) for session in "abcde" if session in states}


def test_the_sessions_that_were_kept_first_go_first(states: States) -> None:
    for n, session in enumerate("abacd"):
        states.keep(session, {"n": n})
    assert kept(states) == {"a": {"n": 2}, "c": {"n": 3}, "d": {"n": 4}}


def test_a_large_state_takes_the_place_of_others(states: States) -> None:
    large = {"text": "x" * 80}
    states.keep("a", {"n": 1})
    states.keep("b", large)
    assert kept(states) == {"a": {"n": 1}, "b": large}
    states.keep("c", {"text": "y" * 80})
    assert [*kept(states)] == ["c"]
    states.keep("d", {"text": "z" * 200})  # too large for all of them
    assert kept(states) == {}


def test_what_was_forgotten_leaves_its_room(states: States) -> None:
    for _ in range(10):
        states.keep("a", {"text": "x" * 80})
        states.forget("a")
        states.forget("a")
    states.keep("b", {"text": "x" * 80})
    assert ([*kept(states)], states.get("a", {"n": 0})) == (["b"], {"n": 0})


COUNTING = """
import json, sys
held = []

def send(id, value, **more):
    print(json.dumps({"v": 1, "id": id, "ok": True, "result": {"value": value, **more}}), flush=True)

for line in sys.stdin:
    request = json.loads(line)
    id, method, params = request["id"], request["method"], request["params"]
    if method == "execute_tool":
        n = params["state"]["n"] + 1
        send(id, n, state={"n": n})
        for late, state in held:
            send(late, "formatted", state=state)
        held.clear()
    elif method == "format_tool_result":
        held.append((id, params["state"]))
    elif method == "init":
        send(id, {}, state={"n": 0})
    elif method == "get_tool_schemas":
        send(id, [])
    else:
        print(json.dumps({"v": 1, "id": id, "ok": False, "error": {"type": "MethodNotFound", "detail": ""}}), flush=True)
"""


async def test_what_is_formatted_late_does_not_bring_back_an_old_state(tmp_path: Path) -> None:
    process = BrokerProcess()
    command = (sys.executable, "-I", "-c", COUNTING)
    settings = HostSettings(name="counting", command=command, cwd=str(tmp_path), env=dict(os.environ))
    host = Host(settings, lambda: BrokerLauncher(process, None))

    async def count() -> Any:
        returned = await host.execute("count", {}, context(), lambda event: None, no_ask, lambda asked: None)
        return returned.result.value

    async with asyncio.timeout(60):
        counts = [await count()]
        formatting = asyncio.create_task(host.try_ask("s", frames.FormatToolResult(result={}), 5.0))
        await asyncio.sleep(0)  # it is asked
        counts.append(await count())
        assert await formatting == "formatted"
        counts.append(await count())
        await host.close()
    process.close()
    assert counts == [1, 2, 3]


async def no_ask(asked: frames.OfRuntime) -> None: ...


def context() -> ToolContext:
    def no_files() -> NoReturn:
        raise AssertionError

    return ToolContext(
        session_id="s",
        turn_id=None,
        tool_use_id="t",
        workspace_path="/",
        open_files=no_files,
        publish=lambda *said: None,
    )
