"""What models behind a server have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from callgate.core.models import Piece
from callgate.core.usage import Price
from callgate.models.http import Server
from callgate.models.replies import Reader
from callgate.models.tables import ModelTable


class ServedModel:
    def __init__(
        self, name: str, table: ModelTable, server: Server, *, context_tokens: int
    ) -> None:
        """`context_tokens` is the window where the settings do not name it."""
        self.name = name
        self.images = table.images is not False
        self.native_tools = table.tools == "native"
        self.constrained = bool(table.constrain)
        self.small = bool(table.small)
        self.catalogue_names = table.names == "catalogue"
        self.context_tokens = table.context_tokens or context_tokens
        self.price: Price | None = table.price
        self._table = table
        self._server = server

    async def close(self) -> None:
        await self._server.close()

    async def _ask(
        self, request: dict[str, Any], reader: Callable[[], Reader]
    ) -> AsyncGenerator[Piece, None]:
        """Ask the server; a new reader reads each attempt."""
        async with aclosing(self._server.ask(request, reader)) as pieces:
            async for piece in pieces:
                yield piece
