"""How much one turn may do."""

from __future__ import annotations

import msgspec


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    cycles: int = 20
    """Requests to the model."""
    calls_per_cycle: int = 20
    calls_per_turn: int = 50
    unreadable_replies: int = 3
    """In a row."""
    result_chars: int = 8_000
    """Of one result that the model is shown."""
    tokens: int | None = None
    """Of all requests together, in and out."""
    time_s: float | None = None
