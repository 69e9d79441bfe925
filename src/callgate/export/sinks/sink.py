"""The port of a sink, and the two ways in which one fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from callgate.export.formats import Row


class SinkUnavailable(Exception):
    """It may take the same rows later."""

    def __init__(self, problem: str, wait_s: float | None = None) -> None:
        """`wait_s`: when it wants to be asked again."""
        super().__init__(problem)
        self.wait_s = wait_s


class SinkRefused(Exception):
    """It will not take these rows, however often it is asked."""


class TooLarge(SinkRefused):
    """It would perhaps take fewer at once, or a shorter one."""

    def __init__(self, problem: str, accepted: int = 0) -> None:
        """`accepted`: of the rows, before the one that was too large."""
        super().__init__(problem)
        self.accepted = accepted


class Sink(Protocol):
    async def send(self, rows: Sequence[Row]) -> None:
        """Returns once all were accepted, as far as the sink tells. `SinkUnavailable`,
        `SinkRefused`: none of them counts as accepted, though some may have arrived."""
        ...

    async def close(self) -> None: ...
