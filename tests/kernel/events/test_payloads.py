"""Every event that a call can cause, with a payload of the shape that readers rely on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from callgate.core.effects import SideEffects
from callgate.core.events import Event
from callgate.core.sessions import Mode
from callgate.tools.files import ReadFile, WriteFile
from callgate.tools.shell import Shell
from tests.support import Bench, FakeHuman, make_tool

ErrorClass = Literal[
    "not_found",
    "validation_error",
    "permission_denied",
    "user_denied",
    "timeout",
    "execution_error",
    "cancelled",
    "confirmation_timeout",
]
Class = Literal["none", "read", "write", "network", "execute"]


class _Payload(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tool_use_id: str
    call_id: str


class Called(_Payload):
    tool_name: str
    input_hash: str
    input_size_bytes: int
    side_effects: Class
    sandbox: str | None = None
    provenance: list[str] | None = None


class Completed(_Payload):
    success: bool
    output_size_bytes: int
    latency_ms: float
    files_modified: list[str] | None = None
    command_executed: str | None = None


class Failed(_Payload):
    tool_name: str
    error_class: ErrorClass
    message: str
    error_message: str
    latency_ms: float
    error: str | None = msgspec.field(name="class", default=None)
    reason: str | None = None
    partial_output: str | None = None


class InputInvalid(_Payload):
    tool_name: str
    validation_errors: list[str]


class Requested(_Payload):
    tool_name: str
    side_effects: Class
    confirmation_request_id: str
    input_summary: str
    input_hash: str
    projected_modifications: list[str] | None
    command_summary: str | None
    why: str
    expires_at: float
    provenance: list[str] | None = None


class Resolved(_Payload):
    confirmation_request_id: str
    decision: Literal["allow", "deny", "timeout", "cancelled"]
    scope: Literal["once", "session", "always"] | None
    by: str | None


class Delta(_Payload):
    stream: Literal["stdout", "stderr", "text"]
    text: str


class Progress(_Payload):
    message: str | None
    fraction: float | None


SHAPES: dict[str, type[_Payload]] = {
    "tool.called": Called,
    "tool.completed": Completed,
    "tool.failed": Failed,
    "tool.input_invalid": InputInvalid,
    "tool.confirmation_requested": Requested,
    "tool.confirmation_resolved": Resolved,
    "tool.output_delta": Delta,
    "tool.progress": Progress,
}
ACTORS = {
    "tool.called": "agent",
    "tool.completed": "tool",
    "tool.failed": "tool",
    "tool.input_invalid": "system",
    "tool.confirmation_requested": "system",
    "tool.output_delta": "tool",
    "tool.progress": "tool",
}


async def everything(tmp_path: Path) -> list[Event]:
    async def slow(input: Any, context: Any) -> str:
        context.progress("working", 0.5)
        await asyncio.sleep(60)
        return ""

    def broken(input: Any, context: Any) -> str:
        raise RuntimeError("x")

    human = FakeHuman("allow", "deny", "always-allow-this-tool", "allow")
    bench = Bench(
        tmp_path,
        ReadFile,
        WriteFile,
        Shell,
        make_tool("slow", run=slow, timeout_s=0.02),
        make_tool("broken", run=broken),
        make_tool("mail", SideEffects.NETWORK),
        human=human,
    )
    await bench.run("write_file", {"path": "a", "content": "b"})
    await bench.run("write_file", {"path": "a", "content": "c"})
    await bench.run("shell", {"command": "echo out; echo err >&2; exit 3"})
    await bench.run("mail")
    await bench.run("read_file", {"path": "../x"})
    await bench.run("read_file", {"file": 1})
    await bench.run("read_file", {"path": "missing"})
    await bench.run("slow")
    await bench.run("broken")
    await bench.run("unknown")
    bench.session.mode = Mode.NONE
    await bench.run("read_file", {"path": "a"})
    await bench.dispatcher.close()
    await bench.run("read_file", {"path": "a"})
    return bench.recorder.events


@pytest.mark.spec("S4-79", "S4-76")
async def test_every_payload_has_the_shape_that_is_promised(tmp_path: Path) -> None:
    events = await everything(tmp_path)
    assert {event.type for event in events} == set(SHAPES)
    for event in events:
        payload = msgspec.json.decode(msgspec.json.encode(event.payload))
        msgspec.convert(payload, SHAPES[event.type])
        assert event.actor == ACTORS.get(event.type, event.actor)
    written = next(e for e in events if e.type == "tool.completed" and "files_modified" in e.payload)
    assert written.payload["files_modified"] == ["a"]
    ran = next(e for e in events if "command_executed" in e.payload)
    assert ran.payload["command_executed"].startswith("echo out")
