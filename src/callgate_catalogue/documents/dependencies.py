"""What the document tools need of the runtime: its home, their settings, and the embedder."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callgate.packs.settings import DocumentsTable
from callgate.packs.tools import Embedder


class Documents(msgspec.Struct, frozen=True):
    home: str
    table: DocumentsTable
    open_embedder: Callable[[], Embedder] | None = None
    """None where the settings name none. It may run a program that prints the key."""
