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
from callgate.features.mcp.server.client_sessions import Wish
from callgate.features.mcp.server.local import Endpoint
from callgate.features.mcp.server.server import McpServer
from callgate.features.web.access import Access, Names
from callgate.features.web.application import make_application
from callgate.features.web.contexts import Context, Served
from callgate.features.web.server import HttpServer
from callgate.instance.wiring.runtime import Wired
from callgate.socket.listening import Address, bind
from tests.features.mcp.conformance.fixtures import Suite, SuitePrompts, SuiteResources


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
        open_session=lambda path, id: wired.session(str(workspace)),
        open_agent=wired.open_agent,
        access=Access(str(home / "token")),
        names=names,
        served=served,
        settings=wired.settings,
        hosts=None,
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
