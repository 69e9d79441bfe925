"""What the tools of a family share of the runtime: where they keep things, and their settings."""

from __future__ import annotations

import msgspec

from callgate.tools.tables import DocumentsTable, MemoryTable


class Notes(msgspec.Struct, frozen=True):
    """For the memory."""

    home: str
    table: MemoryTable


class Documents(msgspec.Struct, frozen=True):
    """For documents, their index, and who reads them."""

    home: str
    table: DocumentsTable
