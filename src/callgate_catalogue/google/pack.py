"""Google tools of a runtime: always registered, offered if an account is logged in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from callgate import Session, ToolContext, ToolOutput
from callgate.packs.tools import LoadedTool, Pack, PackContext, PackTool, Row, ToolFactory
from callgate_catalogue.google.accounts import GoogleAccounts
from callgate_catalogue.google.catalogue import CATALOGUE, Spec

if TYPE_CHECKING:
    from callgate_catalogue.google.requests import Call, Connections, Credentials, Google

    Function = Callable[[Call], Coroutine[Any, Any, ToolOutput]]


class GoogleTools:
    """Shared accounts and connections of the tools of a runtime."""

    def __init__(self, credentials: Credentials, endpoint: str | None = None) -> None:
        self.credentials = credentials
        self._endpoint = endpoint
        self._connections: Connections | None = None

    def factories(self) -> Iterator[tuple[Spec, ToolFactory]]:
        for spec in CATALOGUE:
            yield spec, partial(GoogleTool, spec, self)

    def why_not(self, spec: Spec) -> str | None:
        """Return why a tool is unusable; None if it is usable."""
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
        """Return False while Google may be executing a change."""
        return self._google is None or not self._google.unanswered


def pack(context: PackContext) -> Pack:
    table = context.settings
    google = GoogleTools(GoogleAccounts(context.home, table), table.endpoint)
    tools = [
        PackTool(factory=factory, why_not=partial(_lacks, google, spec))
        for spec, factory in google.factories()
    ]
    return Pack(tools=tools, close=google.close)


def _lacks(google: GoogleTools, spec: Spec, session: Session) -> str | None:
    return google.why_not(spec)
