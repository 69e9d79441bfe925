"""One MCP client on two descriptors: the tools of one session, until the client goes."""

from __future__ import annotations

from callgate.core.sessions import Session
from callgate.instance.watchdog import watch_runtime
from callgate.surfaces.mcp import stdio
from callgate.surfaces.mcp.local import local_server
from callgate.wiring.runtime import Wired


async def serve_mcp(
    requests: int, answers: int, wired: Wired, session: Session, *, elicits: bool
) -> None:
    """`elicits`: questions may be put to the client's user. Closes `wired`."""
    try:
        watch_runtime(wired)
        wired.warm()
        server = local_server(
            wired.runtime,
            session,
            home=wired.home.path,
            skills=lambda: wired.skills,
            elicits=elicits,
        )
        await stdio.serve(requests, answers, server)
    finally:
        await wired.close()
