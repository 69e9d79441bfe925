"""Entries of programs that embed callgate: `Gate`, and the guard of the framework adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import msgspec

from callgate import Gate
from callgate.adapters.guard import GateError, Guard
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import Message, ToolUseBlock
from tests.features.contract.pipeline.cases import COMMON, DENY, ECHO, PATCH, WRITE, Case, edited, rule, varied
from tests.features.contract.pipeline.players import Entry
from tests.features.contract.pipeline.scenes import Scene

OPEN_QUESTIONS = (
    Case(name="write", arguments=WRITE),
    Case(name="patch", tool="patch_file", arguments=PATCH),
    Case(name="command", tool="shell", arguments=ECHO),
    Case(name="denied", arguments=WRITE, answer=DENY),
    Case(name="denied command", tool="shell", arguments=ECHO, answer=DENY),
    Case(name="edited", arguments=WRITE, answer=edited(path="c.txt", content="edited\n")),
    Case(name="edited command", tool="shell", arguments=ECHO, answer=edited(command="echo edited")),
    Case(name="edited to a path outside", arguments=WRITE, answer=edited(path="../x", content="")),
    Case(name="no sandbox any more", tool="shell", arguments=ECHO, is_containable=False),
    Case(name="cancelled", arguments=WRITE, answer=None, stop="asked"),
)
MORE = (
    Case(name="call with a time limit", tool="wait", timeout_s=0.05, variant="limited"),
    Case(name="id of a running call", tool="put", arguments={"what": "x"}, mode="write", variant="duplicate"),
    Case(name="repaired call with effects", tool="put", arguments={"what": "x"}, mode="write", variant="repaired"),
    Case(name="repaired command", tool="shell", arguments=ECHO, mode="write", variant="repaired", answer=DENY),
    Case(name="repaired read", tool="read_file", arguments={"path": "a.txt"}, variant="repaired"),
    Case(name="internal caller", arguments=WRITE, variant="internal"),
    Case(name="call of an agent block", arguments=WRITE, variant="block"),
    Case(name="agent block with a bad id", arguments=WRITE, variant="bad id"),
    Case(name="response to a message", tool="put", arguments={"what": "x"}, variant="message"),
    Case(name="call in a turn", arguments=WRITE, variant="turn"),
    Case(name="caller gone", tool="work", mode="write", variant="gone"),
)
LIBRARY = (*COMMON, *MORE, *varied("resumed", OPEN_QUESTIONS))


class Library(Entry):
    def __init__(self, scene: Scene, gate: Gate) -> None:
        super().__init__(scene, gate._wired)
        self.gate = gate

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        case = self.scene.case
        match case.variant:
            case "duplicate":
                return await self._duplicate(tool, arguments)
            case "repaired":
                return await self._run(tool, arguments, repaired=True)
            case "internal":
                return await self._run(tool, arguments, caller=CallerKind.INTERNAL)
            case "block" | "bad id":
                block = ToolUseBlock("toolu_1" if case.variant == "block" else "\0", tool, arguments)
                found = await self.wired.dispatcher.dispatch(block, self.gate.session)
                return msgspec.structs.replace(found, duration_ms=msgspec.UNSET)
            case "message":
                use = {"type": "tool_use", "id": "toolu_1", "name": tool, "input": arguments}
                other = {"type": "tool_use", "id": "toolu_2", "name": tool, "input": "no object"}
                return await self.gate.respond({"role": "assistant", "content": [use, other]}, "anthropic")
            case "turn":
                async with self.gate.turn("Do it."):
                    return await self.gate.call(tool, arguments)
            case "gone":
                task = asyncio.ensure_future(self.gate.call(tool, arguments))
                await self.scene.started.wait()
                task.cancel()
                (left,) = await asyncio.gather(task, return_exceptions=True)
                await self.scene.ended(1)
                return type(left).__name__
        return await self.gate.call(tool, arguments, timeout_s=case.timeout_s)

    async def _run(self, tool: str, arguments: dict[str, Any], **more: Any) -> Any:
        given: dict[str, Any] = {"caller": CallerKind.LIBRARY, "session": self.gate.session, **more}
        return await self.wired.runtime.calls.run(ToolCall(tool=tool, arguments=arguments, **given))

    async def _duplicate(self, tool: str, arguments: dict[str, Any]) -> Any:
        first = asyncio.ensure_future(self._run("wait", {}))
        await self.scene.started.wait()
        (running,) = self.wired.runtime.calls.in_flight()
        result = await self._run(tool, arguments, id=running.call.id)
        await self.wired.runtime.calls.cancel(running.call.id)
        await first
        return result


def _gate(scene: Scene, **options: Any) -> Gate:
    gate = Gate(home=scene.home, confirm=scene.person if scene.case.person else None, **options)
    for each in scene.tools():
        gate.register(each)
    scene.watch(gate._wired)
    return gate


@asynccontextmanager
async def library(scene: Scene) -> AsyncIterator[Entry]:
    if scene.case.variant == "resumed":
        async with _resumed(scene) as resumed:
            yield resumed
        return
    async with _gate(scene, workspace=scene.work, mode=scene.case.mode) as gate:
        yield Library(scene, gate)


class Resumed(Entry):
    """A call whose question outlived the process that asked it."""

    def __init__(self, scene: Scene, gate: Gate) -> None:
        super().__init__(scene, gate._wired)
        self.gate = gate

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        assert self.gate.resumed is not None
        (call,) = self.gate.resumed.calls.values()
        return await call


@asynccontextmanager
async def _resumed(scene: Scene) -> AsyncIterator[Entry]:
    is_containable, scene.is_containable = scene.is_containable, True
    answer, scene.answer = scene.answer, None
    with ExitStack() as stack:
        async with _gate(scene, workspace=scene.work, mode=scene.case.mode) as gate:
            session = gate.session.id
            turn = stack.enter_context(gate.runtime.sessions.turns.reserve(gate.session, stop=lambda: False))
            await turn.begin(Message.text("user", "Do it."))
            asking = asyncio.ensure_future(gate.call(scene.case.tool, scene.case.arguments))
            await scene.asked.wait()
    scene.wire.append(msgspec.to_builtins(await asking))
    scene.is_containable, scene.answer = is_containable, answer
    async with _gate(scene, session=session) as gate:
        yield Resumed(scene, gate)


FRAMEWORK_EFFECTS = {"send": "network", "look": "read", "store": "write", "work": "write", "wait": "read"}
SCHEMA = {"type": "object", "properties": {"to": {"type": "string", "minLength": 2}}, "required": ["to"]}
TO = {"to": "ann"}
FRAMEWORK = (
    Case(name="allowed read", tool="look", arguments=TO),
    Case(name="allowed write", tool="store", arguments=TO, mode="write"),
    Case(name="allowed by rule", tool="send", arguments=TO, settings=rule("allow", tool="send")),
    Case(name="approved", tool="send", arguments=TO),
    Case(name="undeclared effects", tool="unknown", arguments=TO),
    Case(name="denied", tool="send", arguments=TO, answer=DENY),
    Case(name="edited", tool="send", arguments=TO, answer=edited(to="bob")),
    Case(name="edited to invalid arguments", tool="send", arguments=TO, answer=edited(to="b")),
    Case(name="cancelled while asked", tool="send", arguments=TO, answer=None, stop="asked"),
    Case(name="cancelled while running", tool="wait", arguments=TO, stop="running"),
    Case(name="cancelled with effects while running", tool="work", arguments=TO, mode="write", stop="running"),
    Case(
        name="question timed out",
        tool="send",
        arguments=TO,
        answer=None,
        settings="[limits]\nconfirmation_timeout_s = 0.05\n",
    ),
    Case(name="timed out", tool="wait", arguments=TO, settings="[limits]\nmax_timeout_s = 0.05\n"),
    Case(name="tool error", tool="look", arguments=TO, variant="fails"),
    Case(name="invalid arguments", tool="look", arguments={"to": "a", "more": 1}),
    Case(name="refused by mode", tool="send", arguments=TO, mode="read"),
    Case(name="undeclared effects in mode read", tool="unknown", arguments=TO, mode="read"),
    Case(name="refused by rule", tool="send", arguments=TO, settings=rule("deny", tool="send")),
    Case(name="no approver", tool="send", arguments=TO, person=False),
    Case(name="audit log not writable", tool="store", arguments=TO, mode="write", is_recordable=False),
    Case(name="shutting down", tool="look", arguments=TO, is_closing=True),
    Case(
        name="over budget",
        tool="look",
        arguments=TO,
        settings="[policy.budgets.session]\ncalls = 1\n",
        before=(("look", TO),),
    ),
)


class Framework(Entry):
    """Calls through the guard that every framework adapter builds on."""

    def __init__(self, scene: Scene, gate: Gate) -> None:
        super().__init__(scene, gate._wired)
        self.guard = Guard(gate, FRAMEWORK_EFFECTS)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        async def run(judged: dict[str, Any]) -> Any:
            if tool in ("wait", "work"):
                self.scene.started.set()
                await asyncio.Event().wait()
            if self.scene.case.variant == "fails":
                raise LookupError("no such person")
            return f"{tool} {judged}"

        try:
            return await self.guard.call(
                tool, arguments, run, description="A tool.", schema=SCHEMA, call_id="c1", prompts=["Write to ann."]
            )
        except GateError as error:
            return {"error": str(error), "class": error.error_class}
        except LookupError as error:
            return {"raised": str(error)}


@asynccontextmanager
async def framework(scene: Scene) -> AsyncIterator[Entry]:
    confirm = scene.person if scene.case.person else None
    async with Gate(scene.work, [], home=scene.home, mode=scene.case.mode, confirm=confirm) as gate:
        scene.watch(gate._wired)
        yield Framework(scene, gate)
