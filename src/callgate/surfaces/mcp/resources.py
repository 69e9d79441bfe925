"""What a server offers beside tools: resources to read, and prompts to begin with.

A source of them is one small class; a server has several, and asks each. Whatever has to be
allowed goes through the runtime, also here: a source that reads files makes a call for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import mcp_types as types

from callgate.core.calls import ToolCall
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.surfaces.mcp.pending_requests import PendingRequest

T = TypeVar("T")

Run = Callable[[ToolCall], Awaitable[ToolResult]]
"""Makes a call as part of a request, so that its questions reach the client."""


class Here:
    """The request for which something is offered."""

    def __init__(
        self, session: Session, run: Run, client: PendingRequest[object] | None = None
    ) -> None:
        self.session = session
        self.run = run
        self.client = client
        """Who can be asked something meanwhile; None where nothing may be asked."""


class Typed(NamedTuple):
    """Somebody has begun to type."""

    name: str
    """Of a parameter, or an argument."""
    value: str
    """So far."""
    given: Mapping[str, str] = {}
    """What others have been set to."""


Contents = types.TextResourceContents | types.BlobResourceContents


class Resources(Protocol):
    async def listed(self, here: Here) -> Sequence[types.Resource]: ...

    async def templates(self, here: Here) -> Sequence[types.ResourceTemplate]: ...

    async def read(self, uri: str, here: Here) -> Sequence[Contents] | None:
        """None where it has no such resource. Raises a `ToolError`."""
        ...

    async def complete(self, template: str, typed: Typed, here: Here) -> Sequence[str]:
        """How the value of a template's parameter may go on."""
        ...


class Prompts(Protocol):
    async def listed(self, here: Here) -> Sequence[types.Prompt]: ...

    async def get(
        self, name: str, arguments: Mapping[str, str], here: Here
    ) -> types.GetPromptResult | None:
        """None where it has no such prompt. Raises a `ToolError`."""
        ...

    async def complete(self, prompt: str, typed: Typed, here: Here) -> Sequence[str]:
        """How the value of a prompt's argument may go on."""
        ...
