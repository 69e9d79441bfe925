"""A server with all that a runtime has to offer: its tools, files, transcripts and skills."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.core.sessions import Session
from callgate.runtime import Runtime
from callgate.surfaces.mcp import transcripts, workspace
from callgate.surfaces.mcp.client_sessions import OpenSession
from callgate.surfaces.mcp.resources import Prompts
from callgate.surfaces.mcp.server import McpServer
from callgate.surfaces.mcp.skills import SkillPrompts
from callgate.surfaces.mcp.transcripts import Transcripts
from callgate.surfaces.mcp.workspace import WorkspaceResources

if TYPE_CHECKING:  # loaded where skills are used
    from callgate.agent.skills import Skills


def local_server(
    runtime: Runtime,
    session: Session,
    *,
    home: str,
    skills: Callable[[], Skills] | None = None,
    elicits: bool = True,
) -> McpServer:
    """For one client, whose calls are all made in one session."""
    return full_server(runtime, lambda wish: session, home=home, skills=skills, elicits=elicits)


def full_server(
    runtime: Runtime,
    open_session: OpenSession,
    *,
    home: str,
    skills: Callable[[], Skills] | None = None,
    elicits: bool = True,
) -> McpServer:
    """Raises `ToolRegistrationError` where another tool has a name that is needed."""
    workspace.register(runtime)
    transcripts.register(runtime)
    prompts: list[Prompts] = [] if skills is None else [SkillPrompts(skills)]
    return McpServer(
        runtime,
        open_session,
        resources=[
            WorkspaceResources(os.path.join(home, "artifacts")),
            Transcripts(runtime),
        ],
        prompts=prompts,
        elicits=elicits,
    )
