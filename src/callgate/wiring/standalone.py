"""A dispatcher by itself, on the embedded defaults: `ToolDispatcher()`.

For programs that bring their own sessions and speak in an agent's blocks. It has the policy, the
store and the audit log of the home, as a `Gate` has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

from callgate.config.home import Home
from callgate.core.tools import ToolFactory
from callgate.dispatch import dispatcher
from callgate.dispatch.permission.confirmations import Confirmer
from callgate.events.bus import Listener, Subscription
from callgate.wiring.runtime import Wired


class ToolDispatcher(dispatcher.ToolDispatcher):
    """Close it when it is no longer used, or use it in an `async with`."""

    def __init__(
        self, *, home: str | os.PathLike[str] | None = None, confirm: Confirmer | None = None
    ) -> None:
        """`home` None means `CALLGATE_HOME`. Without `confirm`, what must be asked is refused."""
        resolved_home = Home.from_environment() if home is None else Home(os.path.abspath(home))
        self._closed = False
        self._attached = ExitStack()
        self._wired = Wired(resolved_home, dispatcher=self._initialise)
        if confirm is not None:
            self._attached.enter_context(self.authority.confirmations.attach(confirm))

    def _initialise(self, **dependencies: Any) -> ToolDispatcher:
        super().__init__(**dependencies)
        return self

    def register(self, tool_factory: ToolFactory) -> None:
        """Register a tool; raise `ToolRegistrationError` where its definition is wrong."""
        super().register(self._wired.isolated(tool_factory))

    def subscribe(self, listener: Listener, session_id: str | None = None) -> Callable[[], None]:
        """Call a function at each event, or at each event of one session; return a function that
        ends the subscription. An exception of the listener is logged and harms no call."""
        return self._wired.bus.listen(listener, session_id)

    def events(
        self, *, session_id: str | None = None, types: Collection[str] | None = None
    ) -> Subscription:
        """Read events: `async for event in dispatcher.events()`. A reader that falls behind gets a
        `Gap` in place of the events that it missed."""
        return self._wired.bus.subscribe(session_id=session_id, types=types)

    async def close(self) -> None:
        """Stop the calls under way and close the store and the audit log. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._attached.close()
        await super().close()
        await self._wired.close()

    async def __aenter__(self) -> ToolDispatcher:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
