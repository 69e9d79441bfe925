"""An instance behind a real port, in the loop of the test: clients come over TCP as any would."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect

from callgate import ToolContext, tool
from callgate.audit.forward import end_of
from callgate.config.home import Home
from callgate.core.errors import ToolPermissionDenied
from callgate.core.sessions import Mode, Session
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.live_sessions import LiveSessions
from callgate.features.web.access import Access, Names
from callgate.features.web.contexts import Context, Hosting, Served
from callgate.features.web.instance import LazyHttpServer
from callgate.instance.wiring.builder import register_own
from callgate.instance.wiring.runtime import Wired
from callgate.runtime import Runtime
from callgate.socket.listening import Address, bind

LIMIT_S = 60.0
JSON = {"content-type": "application/json"}

DONE: list[str] = []
"""What the tools below did."""


@tool(side_effects="write", requires_workspace=False)
async def put(what: str) -> str:
    """Put something down: asked about in mode ask."""
    DONE.append(what)
    return f"put {what}"


@tool(side_effects="execute", requires_workspace=False)
async def run(what: str) -> str:
    """Run something: asked about too."""
    DONE.append(what)
    return f"ran {what}"


@tool(side_effects="none")
async def show(what: str = "") -> str:
    """Give it back."""
    return what


@tool(side_effects="none")
async def wait(context: ToolContext) -> str:
    """Wait until it is stopped."""
    await context.cancel_event.wait()
    return "stopped"


TOOLS = (put, run, show, wait)


class Client:
    """Somebody who has the token, or has not."""

    def __init__(self, port: int, token: str | None) -> None:
        self.port = port
        self.headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=self.headers, timeout=LIMIT_S)

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        return await self.http.post(path, json=body)

    async def call(self, tool: str, session: str | None = None, **arguments: Any) -> Any:
        given = {} if session is None else {"session": session}
        answer = await self.post("/v1/calls", tool=tool, arguments=arguments, **given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def session(self, **body: Any) -> str:
        answer = await self.post("/v1/sessions", **body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def stream(self, query: str = "", **more: Any) -> Any:
        return watching(self.port, query, headers=self.headers, **more)


class Watcher:
    """A client of the stream."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def read(self) -> Any:
        async with asyncio.timeout(LIMIT_S):
            frame = json.loads(await self.socket.recv())
        return await self.read() if frame["type"] == "ping" else frame

    async def until(self, met: Callable[[Any], bool]) -> Any:
        while not met(frame := await self.read()):
            pass
        return frame

    async def event(self, type: str) -> Any:
        frame = await self.until(lambda each: each["type"] == "event" and each["event"]["type"] == type)
        return frame["event"]

    async def subscribe(self, id: str = "s", **more: Any) -> Any:
        await self.send(type="subscribe", id=id, **more)
        return await self.until(lambda frame: frame["type"] in ("subscribe_ack", "error"))

    async def closed(self) -> tuple[int | None, str]:
        async with asyncio.timeout(LIMIT_S):
            await self.socket.wait_closed()
        return self.socket.close_code, self.socket.close_reason or ""


@asynccontextmanager
async def watching(port: int, query: str = "", *, headers: Any = (), **more: Any) -> AsyncIterator[Watcher]:
    where = f"ws://127.0.0.1:{port}/v1/stream{query}"
    async with connect(where, additional_headers=headers, compression=None, max_size=None, proxy=None, **more) as made:
        yield Watcher(made)


class Instance:
    def __init__(self, wired: Wired, server: LazyHttpServer, access: Access, port: int, workspace: str) -> None:
        self.wired = wired
        self.runtime: Runtime = wired.runtime
        self.server = server
        self.access = access
        self.port = port
        self.workspace = workspace
        self._clients: list[Client] = []

    @property
    def token(self) -> str:
        return Path(self.access.path).read_text().strip()

    @property
    def sessions(self) -> LiveSessions:
        serving = self.server._serving
        assert serving is not None
        return serving.context.sessions

    def client(self, token: str | None = "") -> Client:
        made = Client(self.port, self.token if token == "" else token)
        self._clients.append(made)
        return made

    async def close(self) -> None:
        for each in self._clients:
            await each.http.aclose()
        self.server.stop_accepting()
        await self.runtime.close()
        await self.server.close()
        await self.wired.close()


@asynccontextmanager
async def serving(
    home: Path,
    workspace: Path,
    *,
    tools: Sequence[Any] = TOOLS,
    open_agent: Callable[[Wired, str | None], Agent] | None = None,
    ceiling: Mode | None = None,
    settings: str = "",
    hosts: Hosting | None = None,
    **options: Any,
) -> AsyncIterator[Instance]:
    DONE.clear()
    workspace.mkdir(exist_ok=True)
    if settings:
        (home / "settings.toml").write_text(settings)
    wired = Wired(Home(str(home)))
    register_own(wired)
    for each in tools:
        wired.register(each)
    root = str(workspace)

    def open_session(cwd: str | None, id: str) -> Session:
        if cwd not in (None, root):
            raise ToolPermissionDenied("not served", reason="workspace_not_served")
        made = wired.session(root)
        made.id = id
        return made

    listening: socket.socket = bind(Address("127.0.0.1", 0))
    port = listening.getsockname()[1]
    access = Access(str(home / "run" / "1.token"))
    served = Served(
        pid=1,
        version="0.1.0",
        started_at=1.5,
        workspaces=[root],
        mode=Mode.ASK,
        ceiling=ceiling,
        model=None,
        models=[],
        home=str(home),
        audit=str(home / "audit.jsonl"),
    )
    context = Context(
        runtime=wired.runtime,
        open_session=open_session,
        open_agent=(lambda name: open_agent(wired, name)) if open_agent else wired.open_agent,
        hosts=hosts,
        served=served,
        settings=wired.settings,
        access=access,
        refresh=wired.policies.refresh,
        names=Names(Address("127.0.0.1", port)),
        options=options,
        chain=lambda: wired.chain,
        counted_from=end_of(served.audit),
    )
    server = LazyHttpServer(listening, context)
    server.start()
    await server.load()
    instance = Instance(wired, server, access, port, root)
    try:
        yield instance
    finally:
        await instance.close()
