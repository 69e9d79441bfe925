"""The memory tools of a runtime, and what a model is told of the memory without asking."""

from __future__ import annotations

import msgspec

from callgate import Session
from callgate.packs.settings import MemoryTable
from callgate.packs.tools import Pack, PackContext, factories
from callgate_catalogue.memory.catalogue import CATALOGUE


class Notes(msgspec.Struct, frozen=True):
    """What the tools share of the runtime: where they keep things, and their settings."""

    home: str
    table: MemoryTable


def pack(context: PackContext) -> Pack:
    table: MemoryTable = context.settings

    def prompt(session: Session) -> str:
        if not table.told_chars or session.is_worker:
            return ""
        from callgate_catalogue.memory.store import (  # lazy: most settings do not ask for it  # noqa: PLC0415
            Memory,
            prompt_text,
        )

        memory = Memory(
            context.home,
            session.workspace,
            max_entries=table.max_entries,
            max_chars=table.max_chars,
        )
        return prompt_text(memory, table.told_chars)

    notes = Notes(context.home, table)
    return Pack(tools=list(factories(CATALOGUE, notes)), prompt=prompt)
