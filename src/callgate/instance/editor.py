"""One editor on two descriptors: the greeting, then the agent, until the editor goes.

Light to import: what the greeting does not need is in `editor_agent`, loaded once it was answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.protocol.acp.initialize import Initialize
from callgate.surfaces.acp import stdio
from callgate.surfaces.acp.peer import Peer
from callgate.surfaces.acp.stdio import AcpOptions

if TYPE_CHECKING:  # loaded after the greeting
    from callgate.surfaces.acp.agent import AcpAgent
    from callgate.wiring.runtime import Wired


async def serve_editor(
    requests: int, answers: int, options: AcpOptions, report: Callable[[Wired], None]
) -> int:
    """Serve the editor that writes to `requests` and reads `answers`; returns the exit code.

    `report` may tell a person which runtime it is, once there is one.
    """

    async def make_agent(peer: Peer, client: Initialize) -> AcpAgent:
        await asyncio.to_thread(_load_agent)
        from callgate.instance import editor_agent  # lazy: after the greeting  # noqa: PLC0415

        return await editor_agent.make_agent(options, report, peer, client)

    return await stdio.serve(requests, answers, options, make_agent)


def _load_agent() -> None:
    """Load all that an agent needs, in a thread: the event loop goes on meanwhile."""
    import callgate.instance.editor_agent  # lazy: after the greeting  # noqa: PLC0415
    import callgate.wiring.agents  # lazy: after the greeting  # noqa: F401, PLC0415
