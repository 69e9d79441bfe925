"""The socket in front of a gate with tools of our own: what a peer can count on."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from itertools import count, groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate import Diagnostic, Gate, ToolContext, ToolError, error_result, ok_result, tool
from callgate.audit.reading import newest_first
from callgate.client.remote import read_reply
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.effects import Capability
from callgate.core.errors import ToolErrorClass, ToolPermissionDenied, ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.turns import SLICE_S, fair_turns
from callgate.dispatch import early_answers
from callgate.dispatch.permission.grants import Grant
from callgate.policy.rules import Outcome
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.connection import ServerWire
from callgate.protocol.socket_v1.values import envelope
from callgate.redaction.frame_log import FrameLog
from callgate.socket import connections
from callgate.socket.buffers import requests
from callgate.socket.calls import MOST_AT_ONCE, MOST_WAITING
from callgate.socket.connections import SocketServer
from callgate.socket.listening import Listener, listen
from callgate.socket.states import ConnectionState, Transition, next_state

SEEN: list[tuple[str, Any]] = []


@tool(side_effects="none")
async def give(what: str) -> Any:
    """Return something."""
    return {"null": None, "zero": 0, "empty": "", "list": [], "no": False, "data": {"ok": True}}[what]


@tool(side_effects="none")
async def whole(fine: bool) -> Any:
    """Return an envelope."""
    if fine:
        return ok_result({"n": 1}, diagnostics=[Diagnostic("slow disk", "warn")], meta={"pages": 2})
    return error_result("no such page", code="VALIDATION_ERROR", reason="gone", details={"page": 7})


@tool(side_effects="none")
async def refuse(details: Any) -> Any:
    """Fail with details of any shape."""
    return error_result("no", reason="mine", details=details)


@tool(side_effects="none")
async def fail(how: str) -> str:
    """Raise something."""
    if how == "own":
        raise ToolPermissionDenied("not yours", reason="mine", details={"owner": "ada"})
    if how == "plain":
        raise ToolError("it is broken")
    raise RuntimeError("the password is hunter2")


@tool(side_effects="none")
async def odd() -> Any:
    """Return what is not JSON."""
    return {"x": float("nan")}


@tool(side_effects="none")
async def look(context: ToolContext) -> Any:
    """Say what the context is."""
    return {"session": context.session_id, "scope": context.scope and dict(context.scope)}


@tool(side_effects="none", timeout_s=0.05)
async def brief() -> str:
    """Wait for ever, with a limit of its own."""
    await asyncio.Event().wait()
    return ""


@tool(side_effects="none")
async def wait(context: ToolContext) -> str:
    """Say that it has begun, and wait until it is told to stop."""
    context.progress("begun", 0.5)
    await context.cancel_event.wait()
    SEEN.append(("told", context.tool_use_id))
    return "stopped"


class Freed:
    """What the deaf tool waits for, in the loop of one test."""

    event: asyncio.Event


@tool(side_effects="none")
async def deaf(context: ToolContext) -> str:
    """Ignore whoever wants to stop it."""
    context.progress("begun")
    while not Freed.event.is_set():
        try:
            await Freed.event.wait()
        except asyncio.CancelledError:
            pass
    return "done"


@tool(capabilities=[Capability.WRITES_FILES])
async def put(text: str) -> str:
    """Have an effect."""
    SEEN.append(("put", text))
    return "put"


@tool(capabilities=[Capability.STARTS_PROCESS])
async def start() -> str:
    """Have another effect."""
    SEEN.append(("start", None))
    return "started"


@tool(capabilities=[Capability.READ_ONLY])
async def see() -> str:
    """Read."""
    return "seen"


@tool(capabilities=[Capability.ACCESSES_NETWORK, Capability.READ_ONLY])
async def reach() -> str:
    """Read from elsewhere."""
    return "reached"


TOOLS: list[Any] = [give, whole, refuse, fail, odd, look, brief, wait, deaf, put, start, see, reach]


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, **frame: Any) -> None:
        self.writer.write(json.dumps(frame).encode() + b"\n")

    async def read(self) -> Any:
        line = await asyncio.wait_for(self.reader.readline(), 60)
        return json.loads(line) if line else None

    def start(self, tool: str, id: str = "r1", timeout: int | None = None, info: Any = None, **arguments: Any) -> None:
        more = {} if timeout is None else {"timeoutMs": timeout}
        more |= {} if info is None else {"clientInfo": info}
        self.send(type="tool_call", requestId=id, toolName=tool, arguments=arguments, **more)

    async def call(self, tool: str, **more: Any) -> Any:
        self.start(tool, **more)
        frame = await self.read()
        assert frame["type"] == "tool_result", frame
        return frame["result"]


class Door:
    """A gate behind a socket."""

    def __init__(self, gate: Gate, listener: Listener, home: Path) -> None:
        self.gate, self.listener, self.home = gate, listener, home
        self.opened: list[Session] = []
        self.server = SocketServer(gate.runtime, self._open)
        self._peers: list[Peer] = []

    def _open(self, cwd: str | None, id: str) -> Session:
        made = msgspec.structs.replace(self.gate.session, id=id)
        self.opened.append(made)
        return made

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_unix_connection(self.listener.path))
        self._peers.append(peer)
        return peer

    async def close(self) -> None:
        await self.server.close()
        for peer in self._peers:
            peer.writer.close()
        self.listener.close()

    def records(self) -> list[Any]:
        return [record for record, _ in newest_first(str(self.home / "audit.jsonl"))][::-1]


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cg") as made:
        base = Path(made)
        (base / "ws").mkdir()
        yield base


@pytest.fixture
async def door(base: Path) -> AsyncIterator[Door]:
    SEEN.clear()
    Freed.event = asyncio.Event()
    async with Gate(base / "ws", TOOLS, home=base / "home", mode="ask") as gate:
        door = Door(gate, listen(str(base / "run" / "s")), base / "home")
        door.server.start(door.listener)
        yield door
        Freed.event.set()
        await door.close()


# --- calls and their envelopes -------------------------------------------------------------------


@pytest.mark.spec("S0-01", "S0-17", "S0-18", "S0-19")
async def test_a_call_is_told_of_and_then_answered_once(door: Door) -> None:
    peer = await door.peer()
    peer.send(type="tool_call", requestId="r1", toolName="see")  # no arguments, no client
    assert (await peer.read())["result"]["content"] == "seen"
    peer.start("wait")
    told = await peer.read()
    assert (told["type"], told["requestId"]) == ("tool_event", "r1")
    assert told["event"] == {"kind": "progress", "message": "begun", "fraction": 0.5}
    peer.send(type="cancel_tool_call", requestId="r1")
    assert (await peer.read())["type"] == "tool_result"
    peer.send(type="check_alive", requestId="end")
    assert (await peer.read())["requestId"] == "end"
    assert [record.caller for record in door.records()] == ["cli", "cli"]


@pytest.mark.spec("S0-25")
@pytest.mark.parametrize(
    ("what", "value"),
    [("null", None), ("zero", 0), ("empty", ""), ("list", []), ("no", False), ("data", {"ok": True})],
)
async def test_a_plain_value_is_the_content(door: Door, what: str, value: Any) -> None:
    result = await (await door.peer()).call("give", what=what)
    assert (result["ok"], result["content"]) == (True, value)
    assert type(result["content"]) is type(value)


@pytest.mark.spec("S0-26", "S0-29")
async def test_an_envelope_is_passed_on(door: Door) -> None:
    peer = await door.peer()
    fine = await peer.call("whole", fine=True)
    assert (fine["ok"], fine["content"], fine["meta"]["pages"]) == (True, {"n": 1}, 2)
    assert fine["diagnostics"] == [{"level": "warn", "message": "slow disk"}]
    wrong = (await peer.call("whole", fine=False))["error"]
    assert (wrong["code"], wrong["message"]) == ("VALIDATION_ERROR", "no such page")
    assert (wrong["details"]["page"], wrong["details"]["reason"]) == (7, "gone")


@pytest.mark.spec("S0-27")
@pytest.mark.parametrize("details", [[1, {"a": None}], "text", 7, [], {"a": 1}])
async def test_details_of_any_shape_reach_a_client_as_they_are(door: Door, details: Any) -> None:
    peer = await door.peer()
    answer = await peer.call("refuse", details=details)
    own = {"errorClass": "execution_error", "reason": "mine"}
    if isinstance(details, dict):
        assert answer["error"]["details"] == {**details, **own}
    else:
        assert (answer["error"]["details"], answer["meta"]["errorInfo"]) == (details, own)
    reply = msgspec.convert({"type": "tool_result", "requestId": "r", "result": answer}, frames.ToolResult)
    read = read_reply("refuse", reply)
    assert read.error is not None
    assert (read.error.error_class, read.error.reason, read.error.details) == ("execution_error", "mine", details)
    assert "errorInfo" not in read.meta


@pytest.mark.spec("S0-27", "S0-28", "S0-31")
async def test_what_a_tool_raises_is_a_result(door: Door) -> None:
    peer = await door.peer()
    own = (await peer.call("fail", how="own"))["error"]
    assert (own["code"], own["message"], own["details"]["owner"]) == ("PERMISSION_DENIED", "not yours", "ada")
    assert (await peer.call("fail", how="plain"))["error"]["code"] == "TOOL_FAILED"
    other = await peer.call("fail", how="other")
    assert other["error"]["code"] == "TOOL_FAILED"
    assert not {"hunter2", "Traceback"} & set(json.dumps(other).replace('"', " ").split())


@pytest.mark.spec("S0-32", "S0-33", "S0-34")
async def test_wrong_calls_and_wrong_results_leave_the_connection_alone(door: Door) -> None:
    peer = await door.peer()
    assert (await peer.call("nothing"))["error"]["code"] == "UNKNOWN_TOOL"
    wrong = (await peer.call("give", what=1))["error"]
    assert (wrong["code"], [each["path"] for each in wrong["details"]["errors"]]) == ("VALIDATION_ERROR", ["what"])
    assert (await peer.call("odd"))["error"]["code"] == "TOOL_FAILED"
    assert (await peer.call("see"))["ok"] is True


@pytest.mark.spec("S0-20")
async def test_a_slow_call_holds_up_no_other(door: Door) -> None:
    peer = await door.peer()
    peer.start("wait", id="slow")
    assert (await peer.read())["type"] == "tool_event"
    assert (await peer.call("see", id="quick"))["ok"] is True


@pytest.mark.spec("S0-23", "S0-24", "S0-35")
async def test_the_list_is_plain_data_and_has_what_came_later(door: Door) -> None:
    peer = await door.peer()
    peer.send(type="list_tools")
    before = (await peer.read())["tools"]
    assert all(set(each) >= {"name", "description", "inputSchema", "capabilities"} for each in before)
    assert "$ref" not in json.dumps(before)
    six = {"read-only", "writes-files", "controls-browser", "starts-process", "accesses-network", "destructive"}
    assert all(set(each["capabilities"]) <= six for each in before)

    @tool(side_effects="none")
    async def late() -> str:
        """Come later."""
        return "late"

    door.gate.runtime.tools.register(late)
    peer.send(type="list_tools", requestId="l")
    after = (await peer.read())["tools"]
    assert {each["name"] for each in after} - {each["name"] for each in before} == {"late"}
    with pytest.raises((ToolRegistrationError, ValueError)):
        door.gate.runtime.tools.register(tool(capabilities=["teleports"])(late.function))


# --- permission ----------------------------------------------------------------------------------


@pytest.mark.spec("S0-36", "S0-37")
@pytest.mark.parametrize("caller", ["cli", "plugin", "agent", "internal", None])
async def test_a_peer_without_a_grant_runs_nothing_privileged(door: Door, caller: str | None) -> None:
    peer = await door.peer()
    info = {} if caller is None else {"caller": caller}
    for name, arguments in (("put", {"text": "x"}), ("start", {})):
        assert (await peer.call(name, info=info, **arguments))["error"]["code"] == "PERMISSION_DENIED"
    assert SEEN == []
    assert (await peer.call("see", info=info))["ok"] is True


@pytest.mark.spec("S0-38", "S0-39")
async def test_a_grant_admits_what_it_says_and_no_more(door: Door) -> None:
    peer = await door.peer()
    assert (await peer.call("see"))["ok"] is True  # the connection's session is there
    (session,) = door.opened
    grants = door.gate._wired.dispatcher.authority.grants
    grants.add(session, Grant(tool="put", decision=Outcome.ALLOW, uses=1))
    assert (await peer.call("start"))["error"]["code"] == "PERMISSION_DENIED"
    assert (await peer.call("put", text="1"))["ok"] is True
    assert (await peer.call("put", text="2"))["error"]["code"] == "PERMISSION_DENIED"
    grants.add(session, Grant(tool="put", decision=Outcome.ALLOW))
    assert (await peer.call("put", text="3"))["ok"] is True
    other = await door.peer()
    assert (await other.call("put", text="4"))["error"]["code"] == "PERMISSION_DENIED"
    grants.revoke_session(session)
    assert (await peer.call("put", text="5"))["error"]["code"] == "PERMISSION_DENIED"
    assert SEEN == [("put", "1"), ("put", "3")]


@pytest.mark.spec("S0-40", "S0-45")
async def test_a_caller_in_the_process_meets_the_same_tools_and_is_on_record(door: Door) -> None:
    made = ToolCall(tool="put", arguments={"text": "x"}, session=door.gate.session, caller=CallerKind.INTERNAL)
    result = envelope(await door.gate.runtime.calls.run(made))
    assert (result.ok, result.content, SEEN) == (True, "put", [("put", "x")])
    assert [(record.caller, record.decision) for record in door.records()] == [("internal", "allow")]
    unknown = ToolCall(tool="nothing", arguments={}, session=door.gate.session)
    error = envelope(await door.gate.runtime.calls.run(unknown)).error
    assert error is not None and error.code == "UNKNOWN_TOOL"


# --- who a peer is -------------------------------------------------------------------------------


@pytest.mark.spec("S0-41")
async def test_a_greater_claim_counts_as_cli_and_is_logged(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    peer = await door.peer()
    claims = ["cli", "plugin", "renderer", "agent", "internal", "library", "\x1b[2J", "CLI"]
    with caplog.at_level(logging.WARNING, "callgate.socket"):
        for claim in claims:
            await peer.call("see", info={"caller": claim})
    assert [record.caller for record in door.records()] == ["cli", "plugin", *["cli"] * 6]
    assert len(caplog.records) == 6
    assert "\x1b" not in caplog.text


@pytest.mark.spec("S0-42", "S0-44")
async def test_a_session_belongs_to_its_connection(door: Door) -> None:
    one, two = await door.peer(), await door.peer()
    seen = []
    for peer in (one, one, two):
        info = {"sessionId": "sess_STOLEN", "spaceId": "space_1", "tabId": "btab_1"}
        content = (await peer.call("look", info=info))["content"]
        assert content["scope"] == {"spaceId": "space_1", "tabId": "btab_1"}
        seen.append(content["session"])
    assert seen[0] == seen[1] != seen[2]
    assert "sess_STOLEN" not in seen


@pytest.mark.spec("S0-43")
async def test_another_owners_call_cannot_be_touched(door: Door) -> None:
    owner, thief = await door.peer(), await door.peer()
    session = (await owner.call("look"))["content"]["session"]
    owner.start("wait", id="mine")
    assert (await owner.read())["type"] == "tool_event"
    info = {"sessionId": session, "caller": "internal"}
    assert (await thief.call("look", info=info))["content"]["session"] != session
    thief.send(type="cancel_tool_call", requestId="mine", clientInfo=info)
    thief.send(type="subscribe", requestId="s", session=session)
    assert (await thief.read())["type"] == "error"
    assert (await owner.call("see", id="other"))["ok"] is True  # and nothing of `mine`
    assert SEEN == []


# --- time, cancelling, the end -------------------------------------------------------------------


@pytest.mark.spec("S0-46", "S0-47")
async def test_the_calls_limit_beats_the_tools_which_beats_the_default(door: Door) -> None:
    peer = await door.peer()
    own = (await peer.call("brief"))["error"]
    assert (own["code"], "'brief'" in own["message"], "0.05 s" in own["message"]) == ("TIMEOUT", True, True)
    said = (await peer.call("brief", timeout=20))["error"]
    assert (said["code"], "0.02 s" in said["message"]) == ("TIMEOUT", True)
    peer.send(type="list_tools")
    limits = {each["name"]: each["timeoutMs"] for each in (await peer.read())["tools"]}
    assert (limits["brief"], limits["see"]) == (50, 60_000)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_answers, "STOP_S", 0.05)


@pytest.mark.spec("S0-47")
@pytest.mark.usefixtures("impatient")
async def test_a_tool_that_ignores_its_time_limit_holds_up_nobody(door: Door) -> None:
    peer = await door.peer()
    peer.start("deaf", timeout=20)
    assert (await peer.read())["type"] == "tool_event"
    ended = (await peer.read())["result"]
    assert ended["meta"]["durationMs"] >= 20
    result = ended["error"]
    assert (result["code"], result["details"]["stopped"]) == ("TIMEOUT", False)
    assert "'deaf'" in result["message"] and "0.02 s" in result["message"]


@pytest.mark.spec("S0-49", "S0-21")
@pytest.mark.usefixtures("impatient")
async def test_a_tool_that_ignores_a_cancel_holds_up_nobody(door: Door) -> None:
    peer = await door.peer()
    peer.start("deaf")
    assert (await peer.read())["type"] == "tool_event"
    peer.send(type="cancel_tool_call", requestId="r1")
    result = (await peer.read())["result"]["error"]
    assert (result["code"], result["details"]["stopped"]) == ("CANCELLED", False)
    peer.start("wait")  # the id is free again, and what the first one says is not for it
    assert (await peer.read())["event"]["fraction"] == 0.5
    Freed.event.set()
    assert (await peer.call("see", id="other"))["ok"] is True
    peer.send(type="cancel_tool_call", requestId="r1")
    assert (await peer.read())["result"]["error"]["code"] == "CANCELLED"


@pytest.mark.spec("S0-49", "S0-50")
async def test_a_cancelled_tool_is_told(door: Door) -> None:
    peer = await door.peer()
    peer.start("wait")
    await peer.read()
    peer.send(type="cancel_tool_call", requestId="r1")
    result = (await peer.read())["result"]
    assert (result["error"]["code"], SEEN[0][0]) == ("CANCELLED", "told")
    for id in ("r1", "never"):
        peer.send(type="cancel_tool_call", requestId=id)
    peer.send(type="check_alive", requestId="end")
    assert (await peer.read())["requestId"] == "end"


@pytest.mark.spec("S0-51")
async def test_a_peer_that_leaves_ends_its_calls_and_no_others(door: Door) -> None:
    one, two = await door.peer(), await door.peer()
    for peer in (one, two):
        peer.start("wait")
        await peer.read()
    one.writer.close()
    while not SEEN:
        await asyncio.sleep(0)
    assert (await two.call("see", id="other"))["ok"] is True
    assert len(SEEN) == 1


@pytest.mark.spec("S0-51", "S0-53")
async def test_a_peer_that_sends_and_leaves_at_once_leaves_a_record_and_no_work(door: Door) -> None:
    peer = await door.peer()
    for n in range(20):
        peer.start("wait", id=f"r{n}")
    peer.writer.close()
    await peer.writer.wait_closed()
    while len(door.server) or len(door.gate._wired.dispatcher.running):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert {(record.tool, record.error_class) for record in door.records()} <= {("wait", "cancelled")}


@pytest.mark.spec("S0-52")
async def test_stopping_answers_what_runs_and_refuses_what_comes(door: Door) -> None:
    peer, idle = await door.peer(), await door.peer()
    peer.start("deaf")
    await peer.read()
    closing = asyncio.ensure_future(door.server.close())
    await asyncio.sleep(0)
    peer.start("see", id="late")
    frames = []
    while (frame := await peer.read()) is not None:
        frames.append(frame)
    codes = {each["requestId"]: each["result"]["error"]["code"] for each in frames[:-1]}
    assert codes == {"r1": "RUNTIME_SHUTTING_DOWN", "late": "RUNTIME_SHUTTING_DOWN"}
    assert frames[-1]["type"] == (await idle.read())["type"] == "closing"
    await closing
    await door.server.close()
    door.listener.close()
    door.listener.close()
    assert not os.path.exists(door.listener.path)


# --- the record ----------------------------------------------------------------------------------


@pytest.mark.spec("S0-53", "S0-54")
async def test_every_call_is_on_record_once_however_it_ended(door: Door) -> None:
    peer = await door.peer()
    await peer.call("see", info={"spaceId": "s", "cwd": "/w"})
    await peer.call("put", text="x")
    await peer.call("nothing")
    await peer.call("give", what=1)
    await peer.call("brief")
    await door.gate.runtime.sessions.cancel(door.opened[0].id)  # its end may come after its answer
    peer.start("wait")
    await peer.read()
    peer.send(type="cancel_tool_call", requestId="r1")
    await peer.read()
    await door.gate.runtime.sessions.cancel(door.opened[0].id)
    running = door.gate._wired.dispatcher.running
    running.closing = running.draining = True
    await peer.call("see")
    records = door.records()
    assert [(each.tool, each.decision, each.error_class) for each in records] == [
        ("see", "allow", None),
        ("put", "deny", ToolErrorClass.PERMISSION_DENIED),
        ("nothing", "allow", ToolErrorClass.NOT_FOUND),
        ("give", "allow", ToolErrorClass.VALIDATION_ERROR),
        ("brief", "allow", ToolErrorClass.TIMEOUT),
        ("wait", "allow", ToolErrorClass.CANCELLED),
        ("see", "allow", ToolErrorClass.SHUTTING_DOWN),
    ]
    first = records[0]
    assert (first.caller, first.capabilities, first.session, first.scope, first.result) == (
        "cli",
        ("read-only",),
        door.opened[0].id,
        {"cwd": "/w", "spaceId": "s"},
        "seen",
    )
    assert first.ts > 0 and first.ms >= 0 and first.args == "{}" and first.cwd == str(door.gate.session.workspace)


@pytest.mark.spec("S0-55")
async def test_secrets_and_bulk_do_not_reach_the_record(door: Door) -> None:
    peer = await door.peer()
    bearer, key = "Bearer abcdefghijklmnopqrstuvwx", "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----"
    peer.send(
        type="tool_call",
        requestId="r1",
        toolName="see",
        arguments={"password": "hunter2", "header": bearer, "pem": key, "content": "x" * 100_000},
    )
    await peer.read()
    written = (door.home / "audit.jsonl").read_text()
    assert not [each for each in ("hunter2", "abcdefghijkl", "MIIB", "x" * 1000) if each in written]
    assert "100000" in written.replace(",", "").replace(" ", "")
    assert len(written) < 5_000


@pytest.mark.spec("S0-56")
async def test_a_record_that_cannot_be_written_loses_no_result(
    door: Door, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await door.peer()
    assert (await peer.call("see"))["ok"] is True

    def full(record: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(door.gate._wired._audit, "append", full)
    with caplog.at_level(logging.CRITICAL, "callgate.audit"):
        assert (await peer.call("see"))["ok"] is True
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


# --- calls that never wait ------------------------------------------------------------------------


def _calls(count: int) -> bytes:
    frames = [{"type": "tool_call", "requestId": f"{number}", "toolName": "see"} for number in range(count)]
    return b"".join(json.dumps(each).encode() + b"\n" for each in frames)


async def test_what_comes_together_is_answered_in_its_order_with_one_write(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, writes = await door.peer(), list[bytes]()
    await peer.call("see")
    monkeypatch.setattr(FrameLog, "sent", lambda log, data: writes.append(data))
    many = connections._MOST_BEGUN - 1
    monkeypatch.setattr(connections, "SLICE_S", 60.0)
    peer.writer.write(_calls(many))
    assert [(await peer.read())["requestId"] for _ in range(many)] == [f"{number}" for number in range(many)]
    assert [data.count(b"\n") for data in writes] == [many]
    writes.clear()
    peer.writer.write(_calls(2 * many))  # more than begin in one turn of the loop
    assert [(await peer.read())["requestId"] for _ in range(2 * many)] == [f"{number}" for number in range(2 * many)]
    assert [data.count(b"\n") for data in writes] == [many + 1, many - 1]


async def test_a_call_that_never_waits_has_no_task(door: Door) -> None:
    peer, loop, made = await door.peer(), asyncio.get_running_loop(), list[Any]()
    await peer.call("see")

    def make(loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **options)

    async with asyncio.timeout(60):
        loop.set_task_factory(make)
        for _ in range(100):
            peer.start("see")
            assert b'"seen"' in await peer.reader.readline()
        loop.set_task_factory(None)
    assert len(made) < 50  # which are not for calls


async def test_calls_that_waited_for_others_begin_in_other_turns_of_the_loop(door: Door) -> None:
    """However many wait, and none of them for anything, nobody else waits for them all."""
    peer, turns, many = await door.peer(), 0, MOST_WAITING // 2
    await peer.call("see")
    for number in range(MOST_AT_ONCE):
        peer.start("deaf", f"d{number}")
    peer.writer.write(_calls(many))
    [connection] = door.server._connections.values()
    await until(lambda: len(connection._calls) == MOST_AT_ONCE + many)
    Freed.event.set()
    while connection._calls:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= many // MOST_AT_ONCE
    frames = [await peer.read() for _ in range(2 * MOST_AT_ONCE + many)]
    answered = [each["requestId"] for each in frames if each["type"] == "tool_result"]
    assert sorted(answered) == sorted([f"d{n}" for n in range(MOST_AT_ONCE)] + [f"{n}" for n in range(many)])


# --- floods --------------------------------------------------------------------------------------


async def until(done: Any) -> None:
    """Wait for what nothing tells of."""
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.01)


async def test_a_peer_that_is_not_read_and_goes_away_ends_its_calls(door: Door) -> None:
    peer = await door.peer()
    for number in range(2_000):
        peer.start("wait", f"r{number}")
    await peer.writer.drain()
    assert (await peer.read())["type"] == "tool_event"
    [connection] = door.server._connections.values()
    await until(lambda: connection._calls.is_full)
    peer.writer.transport.abort()
    await until(lambda: len(door.server) == 0 and "told" in dict(SEEN))


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("asked", ["list_tools", "list_confirmations", "nothing that there is"])
async def test_a_peer_that_asks_very_often_and_reads_gets_every_answer(door: Door, busy: bool, asked: str) -> None:
    peer = await door.peer()
    if busy:
        peer.start("deaf", "busy")
        assert (await peer.read())["type"] == "tool_event"
    count = 4_000
    peer.writer.write(json.dumps({"type": asked}).encode().join([b"", b"\n"]) * count)
    kinds = {(await peer.read())["type"] for _ in range(count)}
    assert len(kinds) == 1
    assert "closing" not in kinds


def test_many_requests_come_a_few_at_a_time() -> None:
    line = b'{"type":"list_tools"}\n'
    taken = list(requests(ServerWire(), line * 10_000))
    assert len([each for each in taken if each is not None]) == 10_000
    rounds = [list(each) for none, each in groupby(taken, lambda each: each is None) if not none]
    assert max(map(len, rounds)) <= 400
    large = json.dumps({"type": "check_alive", "more": "x" * 100_000}).encode() + b"\n"
    assert len(list(requests(ServerWire(), large))) == 1


async def test_a_peer_that_floods_has_one_slice_in_a_turn_of_the_loop(door: Door) -> None:
    turns, clock = fair_turns(), count()
    turns.now = lambda: next(clock) * 2 * SLICE_S  # whatever is done fills a slice
    flooding = await door.peer()
    for number in range(200):
        flooding.send(type="check_alive", requestId=f"{number}")
    answers = asyncio.ensure_future(asyncio.wait_for(_lines(flooding, 200), 60))
    passed = 0
    while not answers.done():
        await asyncio.sleep(0)
        passed += 1
    assert {json.loads(line)["type"] for line in await answers} == {"alive"}
    assert passed >= 200


async def _lines(peer: Peer, count: int) -> list[bytes]:
    return [await peer.reader.readline() for _ in range(count)]


# --- the states of a connection ------------------------------------------------------------------


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[ConnectionState]:
    """The states that connections came into, in order."""
    found: list[ConnectionState] = []

    def following(state: ConnectionState, transition: Transition) -> ConnectionState:
        found.append(next_state(state, transition))
        return found[-1]

    monkeypatch.setattr(connections, "next_state", following)
    return found


async def reached(states: list[ConnectionState], wanted: ConnectionState) -> None:
    async with asyncio.timeout(60):
        while wanted not in states:
            await asyncio.sleep(0)


async def test_a_peer_that_asks_and_leaves_is_read_and_closed(door: Door, states: list[ConnectionState]) -> None:
    peer = await door.peer()
    peer.send(type="check_alive", requestId="a")
    assert (await peer.read())["type"] == "alive"
    peer.writer.close()
    await reached(states, ConnectionState.CLOSED)
    served = [ConnectionState.READING, ConnectionState.TAKING, ConnectionState.READING]
    assert [each for each in states if each is not ConnectionState.CLOSING] == [*served, ConnectionState.CLOSED]


async def test_a_peer_that_says_no_more_has_its_answer_and_is_closed(door: Door, states: list[ConnectionState]) -> None:
    peer = await door.peer()
    peer.start("deaf")
    peer.writer.write_eof()
    await reached(states, ConnectionState.HALF_CLOSED)
    Freed.event.set()
    while (frame := await peer.read())["type"] != "tool_result":
        pass
    assert frame["requestId"] == "r1"
    assert await peer.read() is None
    await reached(states, ConnectionState.CLOSED)
    half = states.index(ConnectionState.HALF_CLOSED)
    assert set(states[half:]) <= {ConnectionState.HALF_CLOSED, ConnectionState.CLOSING, ConnectionState.CLOSED}


async def test_with_too_many_calls_waiting_nothing_is_read_until_they_have_begun(
    door: Door, states: list[ConnectionState]
) -> None:
    peer = await door.peer()
    ids = {str(n) for n in range(MOST_AT_ONCE + MOST_WAITING + 100)}
    for id in ids:
        peer.start("deaf", id=id)
    await reached(states, ConnectionState.FULL)
    assert states[-1] is ConnectionState.FULL
    Freed.event.set()
    while ids:
        frame = await peer.read()
        if frame["type"] == "tool_result":
            ids.remove(frame["requestId"])
    full = states.index(ConnectionState.FULL)
    assert states[full + 1] is ConnectionState.READING


@pytest.mark.parametrize(("slice_s", "state"), [(3600.0, ConnectionState.BLOCKED), (-1.0, ConnectionState.WAITING)])
async def test_many_requests_at_once_are_taken_in_turns_and_all_answered(
    door: Door,
    states: list[ConnectionState],
    slice_s: float,
    state: ConnectionState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "SLICE_S", slice_s)
    peer = await door.peer()
    ids = {str(n) for n in range(200)}
    lines = [json.dumps({"type": "list_confirmations", "requestId": id}) for id in ids]
    peer.writer.write("\n".join([*lines, ""]).encode())
    while ids:
        ids.remove((await peer.read())["requestId"])
    assert state in states
    async with asyncio.timeout(60):
        while states[-1] is not ConnectionState.READING:
            await asyncio.sleep(0)
