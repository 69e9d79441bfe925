"""One tool of the catalogue: it loads the module of its function when it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from callgate.core.environment import Environment
from callgate.core.tools import Preview, ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.tools.google.catalogue import CATALOGUE, Spec
from callgate.tools.google.credentials import Credentials

if TYPE_CHECKING:  # loaded with the first call
    from callgate.tools.google.requests import Connections, Google


class Call(NamedTuple):
    """What the function of a tool gets."""

    google: Google
    input: dict[str, Any]
    context: ToolContext


Function = Callable[[Call], Coroutine[Any, Any, ToolOutput]]


class GoogleTools:
    """The tools of a runtime, and what they share: accounts and connections."""

    def __init__(self, credentials: Credentials, endpoint: str | None = None) -> None:
        self.credentials = credentials
        self._endpoint = endpoint
        self._connections: Connections | None = None

    def factories(self) -> Iterator[tuple[Spec, ToolFactory]]:
        for spec in CATALOGUE:
            yield spec, partial(GoogleTool, spec, self)

    def why_not(self, spec: Spec) -> str | None:
        """Why a tool cannot be used; None where it can."""
        return self.credentials.why_not(writes=spec.writes)

    def connections(self) -> Connections:
        if self._connections is None:
            requests = import_module("callgate.tools.google.requests")
            self._connections = requests.Connections(self._endpoint)
        connections: Connections = self._connections
        return connections

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()


class GoogleTool:
    def __init__(self, spec: Spec, shared: GoogleTools) -> None:
        self._spec, self._shared = spec, shared
        self._google: Google | None = None

    @property
    def definition(self) -> ToolDefinition:
        return self._spec.definition

    async def preview(self, input: dict[str, Any], environment: Environment) -> Preview | None:
        """What a person would allow, where the arguments alone do not say it well."""
        if self._spec.preview is None:
            return None
        said = self._function(self._spec.preview)(input, environment)
        if inspect.isawaitable(said):
            said = await said
        return Preview(said)

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        google = import_module("callgate.tools.google.requests").Google(
            self._shared.connections(),
            self._shared.credentials,
            context,
            account=input.get("account"),
            scopes=self._spec.scopes,
            writes=self._spec.writes,
        )
        self._google = google
        function: Function = self._function(self._spec.function)
        return await function(Call(google, input, context))

    @property
    def stoppable(self) -> bool:
        """False while Google may be doing what it was asked to."""
        return self._google is None or not self._google.unanswered

    async def cancel(self) -> bool:
        return False  # a request ends with the task that waits for it

    @staticmethod
    def _function(name: str) -> Any:
        module, _, function = name.partition(".")
        return getattr(import_module(f"callgate.tools.google.{module}"), function)
