"""The hook of an agent behind the proxy: the proxy answers it, so that one call has one question.

    hook, then question   the call is checked when the hook tells of it; the agent's question about
                          the same call is answered without asking again
    question, then hook   the answer to the question counts for the hook, unless the policy denies
                          the call that the hook describes

The hook reaches the proxy alone: the socket of the instance is not in the agent's sandbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from callgate.core.errors import ToolError
from callgate.core.task_sets import start_task
from callgate.protocol.hooks import dialects
from callgate.protocol.hooks.agent_tools import translate
from callgate.protocol.hooks.events import BadHookEvent, HookEvent, HookPhase, Verdict
from callgate.surfaces.acp_proxy.sessions import ProxiedSession
from callgate.surfaces.hooks.sandboxed import Tickets

_NO_SESSION = "The hook names no session that is open in the editor."

_log = logging.getLogger("callgate.acp")


class ProxyHooks:
    """`listener.Service` for the agent of one proxy."""

    def __init__(
        self,
        find_session: Callable[[HookEvent], ProxiedSession | None],
        classes: Mapping[str, str],
    ) -> None:
        """`classes` are those of `[hooks.tools]`."""
        self._find_session = find_session
        self._classes = classes
        self.tickets = Tickets()

    async def submit(
        self,
        agent: str,
        data: bytes,
        gone: Awaitable[Any] | None = None,
        phase: str | None = None,
    ) -> bytes:
        """The answer to one event, in the agent's form. Any failure is a refusal."""
        try:
            event = await asyncio.to_thread(dialects.read, agent, data)  # it may be large
            if phase is not None and phase != event.phase:
                raise BadHookEvent(f"A hook for {phase[:20]} was given an event for {event.phase}.")
            session = self._find_session(event)
            if session is None:
                raise BadHookEvent(_NO_SESSION)
            if event.phase is HookPhase.AFTER:
                session.hook_ended(event)
                return dialects.noted(agent)
            call = await asyncio.to_thread(translate, event, self._classes, agent)
            verdict = await _unless_gone(start_task(session.hook_called(event, call)), gone)
            return dialects.write(agent, verdict)
        except (BadHookEvent, ToolError) as error:
            _log.warning("an event of the agent's hook is refused: %s", error)
            return dialects.refusal(agent, str(error))
        except Exception:  # a defect of ours must not let a call run
            _log.exception("the agent's hook met a defect")
            return dialects.refusal(agent, "callgate met a defect; its log says more.")


async def _unless_gone(deciding: asyncio.Task[Verdict], gone: Awaitable[Any] | None) -> Verdict:
    """The verdict; the question is withdrawn if nobody waits for it any more."""
    leaving = None if gone is None else start_task(_until(gone))
    try:
        waiting = {deciding} if leaving is None else {deciding, leaving}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if deciding.done():
            return deciding.result()
        return Verdict(allowed=False, reason="The hook did not wait for the answer.")
    finally:
        deciding.cancel()
        if leaving is not None:
            leaving.cancel()


async def _until(gone: Awaitable[Any]) -> None:
    await gone
