"""A running command with something added: a subclass says what in `wait`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from callgate.core.commands import GRACE_S, Exit, Running


class WrappedRunning:
    """Same interface as the `Running` inside."""

    def __init__(self, running: Running) -> None:
        self._running = running

    async def __aenter__(self) -> Self:
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._running.__aexit__(kind, error, traceback)

    async def wait(self) -> Exit:
        return await self._running.wait()

    def stop(self, grace: float = GRACE_S) -> bool:
        return self._running.stop(grace)
