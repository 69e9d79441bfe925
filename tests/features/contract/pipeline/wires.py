"""Entries over a protocol: HTTP, the local socket, MCP and ACP, each with a client in the same process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from mcp.client.client import Client as McpClient

from callgate import Gate
from callgate.config.home import Home
from callgate.features.editor.stdio import AcpOptions
from callgate.features.mcp.server.local import local_server
from callgate.instance.wiring.builder import register_own
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import Outcome
from callgate.socket.listening import listen
from tests.features.contract.pipeline.cases import COMMON, DENY, ECHO, Case, varied
from tests.features.contract.pipeline.players import Entry
from tests.features.contract.pipeline.scenes import Scene
from tests.features.editor.clients import EVERYTHING
from tests.features.editor.clients import Client as AcpClient
from tests.features.mcp.server.talks import answers
from tests.features.web import instances
from tests.kernel.socket.test_socket_items import Door, Peer

HTTP = SOCKET = COMMON
_EDITED = tuple(case for case in COMMON if "edited" in case.name)
MCP = tuple(case for case in COMMON if case not in _EDITED and case.person)
_ASKED = tuple(case for case in MCP if case.name.startswith(("allowed", "approved", "denied", "no sandbox")))
ACP = (
    *(case for case in MCP if case.stop != "queued"),
    *varied("editor", tuple(case for case in _ASKED if case.tool in ("write_file", "patch_file", "read_file"))),
    *varied("model", tuple(case for case in _ASKED if not case.is_containable or "command" in case.name)),
    *varied(
        "repaired",
        (
            Case(name="command", tool="shell", arguments=ECHO, mode="write"),
            Case(name="denied command", tool="shell", arguments=ECHO, mode="write", answer=DENY),
        ),
    ),
)


class Http(Entry):
    def __init__(self, scene: Scene, wired: Wired, client: instances.Client, session: str) -> None:
        super().__init__(scene, wired)
        self.client, self.session = client, session

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        body = {"session": self.session, "tool": tool, "arguments": arguments}
        answer = await self.client.post("/v1/calls", **body)
        return {"status": answer.status_code, **answer.json()}


@asynccontextmanager
async def http(scene: Scene) -> AsyncIterator[Entry]:
    async with instances.serving(scene.home, scene.work, tools=scene.tools()) as instance:
        scene.watch(instance.wired)
        client = instance.client()
        session = await client.session(mode=scene.case.mode)
        with ExitStack() as stack:
            if scene.case.person:
                stack.enter_context(instance.runtime.permission.attach(scene.person))
            yield Http(scene, instance.wired, client, session)


class Socket(Entry):
    def __init__(self, scene: Scene, wired: Wired, peer: Peer) -> None:
        super().__init__(scene, wired)
        self.peer = peer
        self.ended: dict[str, asyncio.Future[Any]] = {}
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while (frame := await self.peer.read()) is not None:
            if frame["type"] == "tool_event":
                self.scene.wire.append(frame)
            elif frame.get("requestId") in self.ended:
                self.ended[frame["requestId"]].set_result(frame)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        id = f"r{len(self.ended) + 1}"
        self.ended[id] = asyncio.get_running_loop().create_future()
        self.peer.send(type="tool_call", requestId=id, toolName=tool, arguments=arguments)
        return await self.ended[id]


@asynccontextmanager
async def socket(scene: Scene) -> AsyncIterator[Entry]:
    confirm = scene.person if scene.case.person else None
    async with Gate(scene.work, home=scene.home, mode=scene.case.mode) as gate:
        for each in scene.tools():
            gate.register(each)
        scene.watch(gate._wired)
        door = Door(gate, listen(str(scene.home / "run" / "s")), scene.home)
        door.server.start(door.listener)
        made = Socket(scene, gate._wired, await door.peer())
        with ExitStack() as stack:
            if confirm is not None:
                stack.enter_context(gate.runtime.permission.attach(confirm))
            yield made
        made.reading.cancel()
        await door.close()


class Mcp(Entry):
    def __init__(self, scene: Scene, wired: Wired, client: McpClient) -> None:
        super().__init__(scene, wired)
        self.client = client

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        try:
            result = await self.client.call_tool(tool, arguments)
        except Exception as error:  # errors of the protocol are results of the case
            return {"raised": type(error).__name__, "message": str(error)}
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)


@asynccontextmanager
async def mcp(scene: Scene) -> AsyncIterator[Entry]:
    wired = Wired(Home(str(scene.home)))
    register_own(wired)
    for each in scene.tools():
        wired.register(each)
    scene.watch(wired)
    session = wired.session(str(scene.work))
    server = local_server(wired.runtime, session, home=str(scene.home), skills=lambda: wired.skills)

    async def fill(context: Any, params: Any) -> Any:
        scene.wire.append({"message": params.message})
        if scene.answer is None:
            await asyncio.Event().wait()
        assert scene.answer is not None
        decision = "Allow once" if scene.answer.decision is Outcome.ALLOW else "Deny"
        return await answers(decision)(context, params)

    try:
        async with McpClient(server.sdk, mode="legacy", cache=None, elicitation_callback=fill) as client:
            yield Mcp(scene, wired, client)
    finally:
        await server.close()
        await wired.close()


class Acp(Entry):
    def __init__(self, scene: Scene, client: AcpClient, session: str) -> None:
        super().__init__(scene, client.wired)
        self.client, self.session = client, session

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        is_model = self.scene.case.variant in ("model", "repaired")
        text = "Do it." if is_model else f"/tool {tool} {json.dumps(arguments)}"
        before = len(self.client.updates(self.session))
        reason = await self.client.prompt(self.session, text)
        shown = [each for each in self.client.updates(self.session)[before:] if "toolCallId" in each]
        return {"stopReason": reason, "updates": shown}


@asynccontextmanager
async def acp(scene: Scene) -> AsyncIterator[Entry]:
    case = scene.case
    fields = ", ".join(f"{key} = {json.dumps(value)}" for key, value in case.arguments.items())
    reply = f"[[replies]]\ncalls = [{{ tool = {json.dumps(case.tool)}, input = {{ {fields} }} }}]\n"
    if case.variant == "repaired":
        broken = json.dumps({"name": case.tool, "arguments": case.arguments})[:-1] + ",}"
        reply = f"[[replies]]\ntext = {json.dumps(f'<tool_call>{broken}</tool_call>')}\n"
        with (scene.home / "settings.toml").open("a") as settings:
            path = scene.base / "script.toml"
            settings.write(f'[models.played]\nkind = "scripted"\npath = "{path}"\ntools = "text"\n')
    (scene.base / "script.toml").write_text(reply + '[[replies]]\ntext = "Done."\n')
    model = "played" if case.variant == "repaired" else f"scripted/{scene.base / 'script.toml'}"
    client = AcpClient(scene.home, AcpOptions(model=model))
    for each in scene.tools():
        client.wired.register(each)
    scene.watch(client.wired)

    async def permission(params: Any) -> Any:
        scene.wire.append({"method": "session/request_permission", "params": params})
        if scene.answer is None:
            await asyncio.Event().wait()
        assert scene.answer is not None
        kind = "allow_once" if scene.answer.decision is Outcome.ALLOW else "reject_once"
        chosen = next(each["optionId"] for each in params["options"] if each["kind"] == kind)
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    def read(params: Any) -> Any:
        scene.wire.append({"method": "fs/read_text_file", "params": params})
        return {"content": "unsaved\n"}

    def write(params: Any) -> Any:
        scene.wire.append({"method": "fs/write_text_file", "params": params})
        return {}

    client.replies = {
        "session/request_permission": permission,
        "fs/read_text_file": read,
        "fs/write_text_file": write,
    }
    capabilities = {"fs": EVERYTHING["fs"]} if case.variant == "editor" else {}
    try:
        await client.ask("initialize", protocolVersion=1, clientCapabilities=capabilities)
        yield Acp(scene, client, await client.new(scene.work))
    finally:
        await client.close()
