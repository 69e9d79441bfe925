"""An editor and the real agent in one process: lines go from one to the other without a pipe."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callgate.config.home import Home
from callgate.features.editor.agent import AcpAgent
from callgate.features.editor.editor_agent import make_dependencies
from callgate.features.editor.stdio import AcpOptions, Served
from callgate.instance.wiring.builder import register_configured
from callgate.instance.wiring.runtime import Wired
from tests.features.editor.acp.published import Published

LIMIT_S = 60.0
EVERYTHING: dict[str, Any] = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
Reply = Callable[[dict[str, Any]], Any]


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Client:
    def __init__(self, home: Path, options: AcpOptions) -> None:
        self.said: list[dict[str, Any]] = []
        """Everything that came from the agent, in its order."""
        self.wrong: list[str] = []
        """What is not valid by the published schema."""
        self.replies: dict[str, Reply] = {}
        """By method: how we answer. What is not here stays without an answer."""
        self.wired = Wired(Home(str(home)))
        self.served = Served(options, self._agent, self._hear, lambda: None)
        self._published = Published()
        self._ids = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = asyncio.Event()

    async def _agent(self, peer: Any, client: Any) -> AcpAgent:
        register_configured(self.wired, "/")
        return AcpAgent(make_dependencies(self.wired, self.served._options), peer, client)

    # What we say.

    def send(self, *messages: dict[str, Any]) -> None:
        """In one piece, as a client that waits for nothing."""
        lines = [json.dumps({"jsonrpc": "2.0", **each}, ensure_ascii=False) for each in messages]
        self.served.peer.feed("".join(f"{line}\n" for line in lines).encode())

    def start(self, method: str, **params: Any) -> tuple[int, asyncio.Future[Any]]:
        id, message = self.question(method, **params)
        self.send(message)
        return id, self._asked[id][1]

    def question(self, method: str, **params: Any) -> tuple[int, dict[str, Any]]:
        """One that is not sent yet."""
        id = next(self._ids)
        self._asked[id] = method, asyncio.get_running_loop().create_future()
        return id, {"id": id, "method": method, "params": params}

    def answer(self, id: int) -> asyncio.Future[Any]:
        return self._asked[id][1]

    def tell(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    async def ask(self, method: str, **params: Any) -> Any:
        return await asyncio.wait_for(self.start(method, **params)[1], LIMIT_S)

    async def code(self, answer: Awaitable[Any]) -> int | None:
        """The code of the error that answers; None for a result."""
        try:
            await asyncio.wait_for(answer, LIMIT_S)
        except Refused as refused:
            return refused.code
        return None

    async def new(self, cwd: Path, **params: Any) -> str:
        made = await self.ask("session/new", cwd=str(cwd), mcpServers=[], **params)
        return str(made["sessionId"])

    def start_prompt(self, session: str, text: str) -> tuple[int, asyncio.Future[Any]]:
        return self.start("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def prompt(self, session: str, text: str) -> str:
        return str((await asyncio.wait_for(self.start_prompt(session, text)[1], LIMIT_S))["stopReason"])

    # What we hear.

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._heard.clear()
                await self._heard.wait()

    def updates(self, session: str) -> list[dict[str, Any]]:
        return [
            each["params"]["update"]
            for each in self.said
            if each.get("method") == "session/update" and each["params"]["sessionId"] == session
        ]

    def requests(self, method: str) -> list[dict[str, Any]]:
        return [each for each in self.said if each.get("method") == method]

    def _hear(self, data: bytes) -> None:
        for line in data.splitlines():
            message = json.loads(line)
            self.said.append(message)
            method = None
            if "method" not in message and message["id"] in self._asked:
                method, answer = self._asked[message["id"]]
                if answer.done():
                    continue
                if "error" in message:
                    answer.set_exception(Refused(message["error"]["code"], message["error"]["message"]))
                    answer.exception()  # whoever waits sees it; nobody has to
                else:
                    answer.set_result(message["result"])
            self.wrong += self._published.problems(message, method)
            if "id" in message and message.get("method") in self.replies:
                task = asyncio.get_running_loop().create_task(self._reply(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._heard.set()

    async def _reply(self, message: dict[str, Any]) -> None:
        try:
            said = self.replies[message["method"]](message["params"])
            result = await said if isinstance(said, Awaitable) else said
        except Refused as refused:
            self.send({"id": message["id"], "error": {"code": refused.code, "message": str(refused)}})
        else:
            self.send({"id": message["id"], "result": result})

    async def close(self) -> None:
        await self.served.close()
        for task in list(self._tasks):
            task.cancel()


@asynccontextmanager
async def connected(
    home: Path,
    *,
    settings: str = 'mode = "write"\n',
    script: str = "",
    capabilities: dict[str, Any] | None = None,
    model: str | None = None,
) -> AsyncIterator[Client]:
    """A client that has introduced itself; the model plays `script` for it."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "settings.toml").write_text(settings)
    played = home.parent / "script.toml"
    played.write_text(script or 'repeat = true\n[[replies]]\ntext = "Fine."\n')
    client = Client(home, AcpOptions(model=model or f"scripted/{played}"))
    try:
        await client.ask("initialize", protocolVersion=1, clientCapabilities=capabilities or {})
        yield client
    finally:
        await client.close()
