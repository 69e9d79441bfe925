"""An instance with the suite's fixtures behind its own wall, on a port of this machine.

The suite cannot show a token: whoever comes without one is given it here, before the wall. Host
and Origin are judged by the wall itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from callgate.config.home import Home
from callgate.core.sessions import Mode, Session
from callgate.surfaces.draining import Draining
from callgate.surfaces.http.access import Access
from callgate.surfaces.http.addresses import Address, Names, bind
from callgate.surfaces.http.application import make_application
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.dependencies import Served
from callgate.surfaces.http.readiness import Readiness
from callgate.surfaces.http.server import HttpServer
from callgate.surfaces.http.stream.fanout import Fanout
from callgate.surfaces.live_sessions import LiveSessions
from callgate.surfaces.mcp.client_sessions import Wish
from callgate.surfaces.mcp.http import Endpoint
from callgate.surfaces.mcp.server import McpServer
from callgate.wiring.runtime import Wired
from callgate.workspace.undo.history import History
from tests.mcp_conformance.fixtures import Suite, SuitePrompts, SuiteResources


@asynccontextmanager
async def suite_server(directory: Path) -> AsyncIterator[str]:
    """Its URL."""
    home, workspace = directory / "home", directory / "workspace"
    home.mkdir(mode=0o700)
    workspace.mkdir()
    # The suite leaves many calls behind, all of them as one client.
    (home / "settings.toml").write_text("[limits]\nconcurrency = 64\n")
    wired = Wired(Home(str(home)))
    suite = Suite()
    for factory in suite.tools:
        wired.register(factory)

    def open_session(wish: Wish) -> Session:
        return wired.session(str(workspace), Mode.WRITE)

    suite.server = McpServer(wired.runtime, open_session, resources=[SuiteResources()], prompts=[SuitePrompts()])
    endpoint = Endpoint(suite.server)
    await endpoint.start()
    listening = bind(Address("127.0.0.1", 0))
    names = Names(Address("127.0.0.1", listening.getsockname()[1]), None)
    context = _context(wired, home, workspace, names)
    token = Path(context.access.path).read_text().strip()
    server = HttpServer(_with_token(make_application(context, mcp=endpoint), token))
    server.start(listening)
    try:
        yield f"http://127.0.0.1:{names.address.port}/mcp"
    finally:
        await endpoint.close()
        await server.close()
        context.fanout.close()
        await wired.close()


def _context(wired: Wired, home: Path, workspace: Path, names: Names) -> Context:
    served = Served(
        pid=1,
        version="test",
        started_at=0.0,
        workspaces=[str(workspace)],
        mode=Mode.WRITE,
        ceiling=None,
        model=None,
        models=[],
        home=str(home),
        audit=str(home / "audit.jsonl"),
    )
    return Context(
        runtime=wired.runtime,
        sessions=LiveSessions(wired.runtime, lambda path, id: wired.session(str(workspace)), wired.open_agent),
        access=Access(str(home / "token")),
        names=names,
        served=served,
        fanout=Fanout(wired.runtime),
        hosts=None,
        history=History(str(home / "undo")),
        draining=(draining := Draining()),
        readiness=Readiness(wired.runtime, draining, str(workspace)),
    )


def _with_token(inside: ASGIApp, token: str) -> ASGIApp:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            said = (b"authorization", f"Bearer {token}".encode())
            scope["headers"] = [*scope["headers"], said]
        await inside(scope, receive, send)

    return application


async def main(directory: Path) -> None:
    async with suite_server(directory) as url:
        print(url, flush=True)
        await asyncio.Event().wait()
