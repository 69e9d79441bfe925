"""What the tools of a family share of the runtime: where they keep things, and their settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from callgate.tools.tables import DocumentsTable, MemoryTable


class Notes(msgspec.Struct, frozen=True):
    """For the memory."""

    home: str
    table: MemoryTable


class Embedder(Protocol):
    """Makes vectors of texts. `models.embeddings` implements it; failures are `ModelError`s."""

    name: str
    """Vectors of one name can be compared, and no others."""
    host: str

    async def embed(
        self, texts: Sequence[str], retries: int | None = None
    ) -> list[list[float]]: ...

    async def close(self) -> None: ...


class Documents(msgspec.Struct, frozen=True):
    """For documents, their index, and who reads them."""

    home: str
    table: DocumentsTable
    open_embedder: Callable[[], Embedder] | None = None
    """None where the settings name none. It may run a program that prints the key."""
