"""What can be read of a store before something of it is pruned."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callgate.core.stored import StoredSession


class PrunablePage(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Sequence[StoredSession] = ()
    """Those that `PruneSessions` would remove."""
    calls: int = 0
    """On record in these."""
    cursor: str | None = None
    """Where the next page begins; None: this was the last."""


class StoreUsage(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int = 0
    """Of the file, but for its empty pages; 0: there is none."""
    free_bytes: int = 0
    """Of its empty pages."""
    sessions: int = 0
    events: int = 0
    messages: int = 0
    shrinks: bool = True
    """Whether empty pages can be given back; not in a file that an older callgate made."""
