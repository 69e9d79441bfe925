"""Entry of an agent behind the ACP proxy, with an editor and an agent in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from callgate.config.home import Home
from callgate.dispatch.tools.sources import FixedTools
from callgate.features.agents.proxy.agents import AgentLocation, Dependencies, Handlers
from callgate.features.agents.proxy.instance import ProxyOptions, make_dependencies
from callgate.features.agents.proxy.proxy import Proxy
from callgate.features.agents.proxy.runners import AgentAction, AgentTurn
from callgate.features.agents.proxy.server import ProxyServer
from callgate.features.editor.peer import EditorPeer
from callgate.instance.wiring.builder import register_own
from callgate.instance.wiring.runtime import Wired
from callgate.policy.rules import Outcome
from callgate.protocol.jsonrpc import Request, RpcError
from tests.features.contract.pipeline.cases import DENY, ECHO, PATCH, PRIVATE, WRITE, Case, only, varied
from tests.features.contract.pipeline.players import Entry, until
from tests.features.contract.pipeline.scenes import Scene

_OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
_SKIPPED = ("edited", "no approver", "command without approver", "invalid arguments", "over budget", "command outside")


def _possible(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases without those that an editor or an agent cannot bring about."""
    return tuple(case for case in cases if not case.name.startswith(_SKIPPED) and "network" not in case.name)


_OWN = (
    *_possible(only("write_file", "patch_file", "shell")),
    Case(name="unknown action", tool="?", arguments={"a": 1}),
    Case(name="unknown action denied", tool="?", arguments={"a": 1}, answer=DENY),
    Case(name="unknown action in mode read", tool="?", arguments={"a": 1}, mode="read"),
    Case(name="unbound path rule denied", tool="shell", arguments=ECHO, mode="write", settings=PRIVATE, answer=DENY),
)
_CLIENT = _possible(only("read_file", "write_file", "shell"))
PROXY = (
    *varied("own", _OWN),
    *varied("client", _CLIENT),
    Case(name="agent reports a failure", tool="shell", arguments=ECHO, mode="write", variant="failure"),
    Case(name="agent never reports", arguments=WRITE, mode="write", variant="silent"),
    Case(name="exact read of a part", tool="read_file", arguments={"path": "a.txt"}, variant="part"),
    Case(name="terminal killed", tool="shell", arguments={"command": "exec sleep 60"}, mode="write", variant="killed"),
    Case(name="turn that changes files", arguments=WRITE, variant="turn"),
    Case(name="approved, then written by the client", arguments=WRITE, variant="covered"),
    Case(name="approved, then run in a terminal", tool="shell", arguments=ECHO, variant="covered"),
    Case(name="patch denied with its card", tool="patch_file", arguments=PATCH, answer=DENY, variant="card"),
)


class ScriptedAgent:
    """The only agent of a proxy. Its turn is a call of one method of its client after the other."""

    def __init__(self, dependencies: Dependencies, handlers: Handlers) -> None:
        self.location: AgentLocation = dependencies.first_location
        self.runs_in = dependencies.runs_in
        self.is_alive = True
        self.handlers = handlers
        self.turn: Any = None

    async def ask(self, method: str, **params: Any) -> Any:
        """Ask the client; an error is part of the result."""
        given = {"sessionId": "s1", **params}
        try:
            answer = await self.handlers.answer(self, method, given, Request(1, method, given))
        except RpcError as error:
            return {"error": error.code, "message": str(error), "data": error.data}
        return answer

    def tell(self, **update: Any) -> None:
        self.handlers.noted(self, "session/update", {"sessionId": "s1", "update": update})

    async def request(self, method: str, params: Any) -> Any:
        if method == "session/new":
            return {"sessionId": "s1"}
        if method == "session/prompt":
            await self.turn()
            return {"stopReason": "end_turn"}
        return {"protocolVersion": 1, "agentInfo": {"name": "scripted", "version": "1"}, "agentCapabilities": {}}

    def notify(self, method: str, params: Any) -> None:
        pass

    def failure(self) -> RpcError:
        return RpcError(-32603, "gone")

    def kill(self, why: str) -> None:
        self.is_alive = False

    async def greet(self, params: Any) -> Any:
        return await self.request("initialize", params)

    def logged_in(self, params: Any) -> None:
        pass

    async def at(self, location: AgentLocation) -> ScriptedAgent:
        return self

    def every(self) -> list[Any]:
        return [self]

    def usual(self) -> ScriptedAgent:
        return self

    async def close(self) -> None:
        self.is_alive = False


class Proxied(Entry):
    def __init__(self, scene: Scene, wired: Wired) -> None:
        super().__init__(scene, wired)
        self.agent: ScriptedAgent | None = None
        self.answers: list[Any] = []
        self.server = ProxyServer(self._proxy, False, lambda data: self.editor.feed(data), lambda: None)
        self.editor = EditorPeer(lambda data: self.server.peer.feed(data), self._answer, lambda method, params: None)

    async def _proxy(self, peer: EditorPeer, client: Any, make_chain: Any) -> Proxy:
        options = ProxyOptions(argv=("scripted",), workspace=str(self.scene.work), mode=self.scene.case.mode)
        dependencies = make_dependencies(self.wired, options)

        def make_agents(handlers: Handlers) -> Any:
            self.agent = ScriptedAgent(dependencies, handlers)
            return self.agent

        return Proxy(dependencies, peer, "a test editor", make_agents)

    async def _answer(self, method: str, params: Any, request: Request) -> Any:
        """Answer a question as the person at the editor."""
        self.scene.wire.append({"method": method, "params": params})
        if self.scene.answer is None:
            await asyncio.Event().wait()
        assert self.scene.answer is not None
        kind = "allow_once" if self.scene.answer.decision is Outcome.ALLOW else "reject_once"
        (chosen,) = (each["optionId"] for each in params["options"] if each["kind"] == kind)
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    async def greet(self) -> None:
        await self.editor.request("initialize", {"protocolVersion": 1, "clientInfo": {"name": "a test editor"}})
        await self.editor.request("session/new", {"cwd": str(self.scene.work), "mcpServers": []})

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        assert self.agent is not None
        self.agent.turn = lambda: self._turn(tool, arguments)
        prompt = {"sessionId": "s1", "prompt": [{"type": "text", "text": "Do it."}]}
        await self.editor.request("session/prompt", prompt)
        await self.scene.ended(1)
        return self.answers

    async def _turn(self, tool: str, arguments: dict[str, Any]) -> None:
        variant = self.scene.case.variant
        if variant == "turn":
            (self.scene.work / arguments["path"]).write_text(arguments["content"])
            return
        if variant in ("client", "part", "killed"):
            await self._through_client(tool, arguments)
            return
        if variant == "card":
            self._tell("tool_call", title="Edit", kind="edit", status="pending")
        is_allowed = await self._permission(tool, arguments)
        if variant == "covered":
            await self._through_client(tool, arguments)
        elif is_allowed and variant != "silent":
            self._tell("tool_call_update", status="failed" if variant == "failure" else "completed")

    def _tell(self, update: str, **fields: Any) -> None:
        assert self.agent is not None
        self.agent.tell(sessionUpdate=update, toolCallId="c1", **fields)

    async def _ask(self, method: str, **params: Any) -> Any:
        assert self.agent is not None
        self.answers.append(await self.agent.ask(method, **params))
        return self.answers[-1]

    async def _permission(self, tool: str, arguments: dict[str, Any]) -> bool:
        names = {"path": "file_path", "old": "old_string", "new": "new_string"}
        input = {names.get(key, key): value for key, value in arguments.items()}
        if "file_path" in input:
            input["file_path"] = f"{self.scene.work}/{input['file_path']}"
        kind = {"shell": "execute", "write_file": "edit", "patch_file": "edit"}.get(tool, "other")
        call = {"toolCallId": "c1", "kind": kind, "title": "Act", "rawInput": input}
        answer = await self._ask("session/request_permission", toolCall=call, options=_OPTIONS)
        return bool(answer["outcome"].get("optionId") == "yes")

    async def _through_client(self, tool: str, arguments: dict[str, Any]) -> None:
        if tool == "shell":
            made = await self._ask("terminal/create", command=arguments["command"])
            if not (id := getattr(made, "terminal_id", None)):
                return
            if self.scene.case.variant == "killed":
                await self._ask("terminal/kill", terminalId=id)
            await self._ask("terminal/wait_for_exit", terminalId=id)
            await self._ask("terminal/output", terminalId=id)
            await until(lambda: not self.wired.runtime.calls.in_flight())
            return
        path = f"{self.scene.work}/{arguments['path']}"
        if tool == "read_file":
            more = {"line": 1, "limit": 1} if self.scene.case.variant == "part" else {}
            await self._ask("fs/read_text_file", path=path, **more)
            return
        await self._ask("fs/write_text_file", path=path, content=arguments["content"])


@asynccontextmanager
async def proxy(scene: Scene) -> AsyncIterator[Entry]:
    wired = Wired(Home(str(scene.home)))
    register_own(wired)
    wired.registry.add(FixedTools((AgentAction, AgentTurn), listed=False))
    scene.watch(wired)
    made = Proxied(scene, wired)
    await made.greet()
    try:
        yield made
    finally:
        await made.server.close()
        await made.editor.close()
