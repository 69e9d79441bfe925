"""Turns in a session whose workspace is on remote workers: a server of this home takes them.

    POST a turn ---> server: model, policy, record ---> calls on a worker of the pool
    the store   ---> events as they come: what is said, calls, questions, which are answered here

The server keeps the session: who leaves in between loses nothing, and goes on with `--resume`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from callgate.cli.commands.events import OfOne
from callgate.cli.errors import CliError
from callgate.cli.remote.instance_http import InstanceHttp
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import Tty
from callgate.cli.ui.visible import visible
from callgate.cli.ui.watch_answers import Answers
from callgate.core.errors import ToolErrorClass
from callgate.core.events import CONFIRMATION_REQUESTED, TURN_CANCELLED, TURN_COMPLETED, Event
from callgate.core.stored import ConfirmationState
from callgate.core.stores import ConfirmationNotFound, Store
from callgate.core.task_sets import TaskSet
from callgate.core.usage import Usage
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer
from callgate.policy.rules import Outcome

_NOBODY = "Nobody is there to be asked, so it is refused. Do not try it again in another way."
_OPTION = "--allow"


class PoolTurns:
    """The turns of one session; one at a time."""

    def __init__(
        self,
        server: InstanceHttp,
        store: Store,
        session: str,
        *,
        by: str,
        tty: Tty | None,
        allowed: Collection[str] = (),
    ) -> None:
        """`by`: the command, for the record. `allowed`: tools about which the answer is yes."""
        self.session = session
        self.turn_id: str | None = None
        self._server = server
        self._store = store
        self._by = by
        self._allowed = frozenset(allowed)
        self._answers = None if tty is None else Answers(store, tty, by)
        self._asking = asyncio.Lock()
        """One question at a time."""

    async def take(
        self, prompt: str, model: str | None, show: Callable[[int, Event], None]
    ) -> Event:
        """Have the server take a turn; the event that ended it. `show` gets each event."""
        seen = (await self._store.get_session(self.session)).last_seq
        body = {"prompt": prompt} if model is None else {"prompt": prompt, "model": model}
        path = f"/v1/sessions/{self.session}/turns"
        begun = await asyncio.to_thread(self._server.request, "POST", path, body)
        self.turn_id = str(begun["turn_id"])
        answering = TaskSet()
        try:
            return await self._follow(OfOne(self._store, self.session, seen), show, answering)
        finally:
            self.turn_id = None
            answering.cancel()
            await answering.wait()

    async def _follow(
        self, pages: OfOne, show: Callable[[int, Event], None], answering: TaskSet
    ) -> Event:
        with pages.wake() as hint:
            while True:
                async for page in pages.there():
                    for place, event in page:
                        if event.type == CONFIRMATION_REQUESTED:
                            id = str(event.payload.get("confirmation_request_id"))
                            answering.start(self._answer(id))
                        show(int(place), event)
                        if self._is_end(event):
                            return event
                if not await hint.wait():
                    await self._ensure_under_way()

    def _is_end(self, event: Event) -> bool:
        ends = (TURN_COMPLETED, TURN_CANCELLED)
        return event.type in ends and event.turn_id in (None, self.turn_id)

    async def _ensure_under_way(self) -> None:
        """Raises `CliError` where nobody will end the turn."""
        stored = await self._store.get_session(self.session)
        if stored.owner is None or not await self._store.alive(stored.owner):
            raise CliError(
                "the server that took the turn is gone; what it did is on record",
                hint=f"--resume {self.session} goes on at another one.",
                error_class=ToolErrorClass.EXECUTION_ERROR,
                reason="interrupted",
            )

    def cancel(self) -> None:
        """Have the server stop the turn under way. Blocks."""
        if self.turn_id is not None:
            path = f"/v1/sessions/{self.session}/turns/{self.turn_id}"
            self._server.request("DELETE", path)

    async def _answer(self, id: str) -> None:
        try:
            stored = await self._store.get_confirmation(id)
            question = questions.read_question(stored)
        except (ConfirmationNotFound, msgspec.ValidationError):
            return  # closed, or of another version: whoever can read it answers
        if stored.state is not ConfirmationState.PENDING:
            return
        if question.tool in self._allowed and not question.always_ask:
            answer = Answer(decision=Outcome.ALLOW, by=_OPTION)
            await questions.answer(self._store, id, answer)
        elif self._answers is None:
            name = visible(question.tool)
            say(f"callgate: {name} needs a yes, and nobody can be asked: refused")
            answer = Answer(decision=Outcome.DENY, reason=_NOBODY, by=self._by)
            await questions.answer(self._store, id, answer)
        else:
            async with self._asking:
                await self._answers.ask(id)


def described(session: str, end: Event, text: str, notice: str | None) -> dict[str, Any]:
    """The end of a turn as JSON shows it, as that of a turn of our own runtime."""
    said = end.payload
    usage = Usage(input=said.get("input_tokens", 0), output=said.get("output_tokens", 0))
    return {
        "session": session,
        "stop": stop_of(end),
        "text": text,
        "usage": msgspec.to_builtins(usage),
        "cost_usd": said.get("cost_usd"),
        "cycles": said.get("cycles", 0),
        "calls": said.get("calls", 0),
        "notice": notice,
    }


def stop_of(end: Event) -> str:
    return str(end.payload.get("stop_reason") or "cancelled")
