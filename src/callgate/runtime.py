"""What a surface may ask of us. Surfaces turn a wire into these calls and decide nothing."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import Any

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolError
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.core.tools import ToolFactory
from callgate.dispatch.authorize import Subject
from callgate.dispatch.confirmations import Answer, Confirmation, Confirmer, Receipt
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.registry import Registered
from callgate.events.bus import Bus, Subscription
from callgate.policy.decide import Decision


class Runtime:
    def __init__(self, dispatcher: ToolDispatcher, bus: Bus) -> None:
        self.dispatcher = dispatcher
        self._bus = bus
        self._confirmations = dispatcher.authority.confirmations

    def register(self, factory: ToolFactory) -> None:
        self.dispatcher.register(factory)

    def tools(self, session: Session) -> list[Registered]:
        """The tools that a session may see."""
        return self.dispatcher.registry.listed(session)

    def all_tools(self, session: Session) -> list[tuple[Registered, str | None]]:
        """Every registered tool, and why the session does not see it."""
        registry = self.dispatcher.registry
        return [(tool, registry.hidden_because(tool, session)) for tool in registry]

    def call(self, call: ToolCall) -> Coroutine[Any, Any, ToolResult]:
        return self.dispatcher.run(call)

    async def call_all(self, calls: Iterable[ToolCall]) -> list[ToolResult]:
        """Side by side; the results in the order of the calls."""
        return await self.dispatcher.run_all(calls)

    def refuse(self, call: ToolCall, error: ToolError) -> ToolResult:
        """Answer and record a call whose wire was so wrong that it cannot be run."""
        return self.dispatcher.refuse(call, error)

    async def cancel(self, call_id: str) -> bool:
        return await self.dispatcher.cancel(call_id)

    async def cancel_session(self, session_id: str) -> None:
        await self.dispatcher.cancel_session_tools(session_id)

    async def close_session(self, session_id: str) -> None:
        await self.dispatcher.close_session(session_id)

    def explain(self, call: ToolCall) -> tuple[Subject, Decision]:
        """What would be decided about a call. Raises the `ToolError` it would end in."""
        return self.dispatcher.examine(call)

    def attach(
        self, confirmer: Confirmer | None, session_id: str | None = None
    ) -> AbstractContextManager[None]:
        """Someone is there to answer questions, of one session or of all."""
        return self._confirmations.attach(confirmer, session_id)

    def open_confirmations(self, session_id: str | None = None) -> list[Confirmation]:
        return self._confirmations.open(session_id)

    def answer(self, confirmation_id: str, answer: Answer) -> Receipt:
        """The first answer wins. `KeyError` if there is no such question."""
        return self._confirmations.answer(confirmation_id, answer)

    def events(
        self, *, session_id: str | None = None, types: Collection[str] | None = None
    ) -> Subscription:
        return self._bus.subscribe(session_id=session_id, types=types)

    async def close(self) -> None:
        await self.dispatcher.close()
