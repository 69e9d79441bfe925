"""One editor on two descriptors: the greeting, then the agent, until the editor disconnects.

Light to import: code that the greeting does not need is in `editor_agent`, loaded later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.features.editor import stdio
from callgate.features.editor.peer import EditorPeer
from callgate.features.editor.stdio import AcpOptions
from callgate.protocol.acp.initialize import Initialize

if TYPE_CHECKING:  # loaded after the greeting
    from callgate.features.editor.agent import AcpAgent
    from callgate.instance.wiring.runtime import Wired


async def serve_editor(
    requests: int, answers: int, options: AcpOptions, report: Callable[[Wired], None]
) -> int:
    """Serve the editor that writes to `requests` and reads `answers`. Return the exit code.

    `report` receives the runtime and may print information about it.
    """

    async def make_agent(peer: EditorPeer, client: Initialize) -> AcpAgent:
        await asyncio.to_thread(_load_agent)
        from callgate.features.editor import editor_agent  # lazy: after the greeting  # noqa: PLC0415

        return await editor_agent.make_agent(options, report, peer, client)

    return await stdio.serve(requests, answers, options, make_agent)


def _load_agent() -> None:
    """Load the modules of an agent. Runs in a thread, so that the event loop stays responsive."""
    import callgate.features.chat.wiring  # lazy: after the greeting  # noqa: F401, PLC0415
