"""What the memory tools share of the runtime: where they keep things, and their settings."""

from __future__ import annotations

import msgspec

from callgate.packs.settings import MemoryTable


class Notes(msgspec.Struct, frozen=True):
    home: str
    table: MemoryTable
