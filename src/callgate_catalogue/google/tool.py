"""One tool of the catalogue: it loads the module of its function when it is called."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from callgate import ToolContext, ToolOutput
from callgate.packs.tools import LoadedTool, Row, ToolFactory
from callgate_catalogue.google.catalogue import CATALOGUE, Spec

if TYPE_CHECKING:  # loaded with the first call
    from callgate_catalogue.google.requests import Call, Connections, Credentials, Google

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
            from callgate_catalogue.google.requests import Connections  # lazy: with the first call  # noqa: PLC0415

            self._connections = Connections(self._endpoint)
        return self._connections

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()


class GoogleTool(LoadedTool):
    def __init__(self, spec: Spec, shared: GoogleTools) -> None:
        super().__init__(Row(spec.definition, spec.function, spec.preview), shared)
        self._spec = spec
        self._google: Google | None = None

    def _begin(
        self, input: dict[str, Any], context: ToolContext
    ) -> Coroutine[Any, Any, ToolOutput]:
        from callgate_catalogue.google.requests import (  # lazy: the first call  # noqa: PLC0415
            Call,
            Google,
            understood,
        )

        google = Google(
            self._shared.connections(),
            self._shared.credentials,
            context,
            account=input.get("account"),
            scopes=self._spec.scopes,
            writes=self._spec.writes,
        )
        self._google = google
        function: Function = self._spec.function()
        return understood(google, function(Call(google, input, context)))

    @property
    def stoppable(self) -> bool:
        """False while Google may be doing what it was asked to."""
        return self._google is None or not self._google.unanswered
