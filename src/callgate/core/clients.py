"""Which client stands behind a call: facts that a surface found out, and the client's own name."""

from __future__ import annotations

import msgspec


class Client(msgspec.Struct, frozen=True, kw_only=True):
    process: int | None = None
    """Its id, as the system says."""
    program: str | None = None
    """The file that it runs, as the system says."""
    directory: str | None = None
    """Where it works, as the system says."""
    address: str | None = None
    """Where it connects from, if it is no process of this machine that we know."""
    name: str | None = None
    """What it calls itself, without secrets. Nobody checked that."""

    @property
    def label(self) -> str | None:
        """A short name to list it under: what it calls itself, else the file that it runs."""
        if self.name:
            return self.name
        return None if self.program is None else self.program.rpartition("/")[2]
