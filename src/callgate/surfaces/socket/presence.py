"""Whether a peer is still there, where nobody tells us: what it sends is not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_EVERY_S = 0.1


class PresenceCheck:
    def __init__(self, look: Callable[[], bool]) -> None:
        """`look` says whether to look again."""
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and then now and again. Idempotent."""
        if self._timer is None:
            self._run()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        self._timer = None
        if self._look():
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._run)
