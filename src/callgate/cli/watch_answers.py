"""Asks the person who watches, one question after the other, and can be left without an answer.

Nobody waits for this terminal alone: an empty line leaves the question to others, and one that
was answered elsewhere is taken back.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from callgate.cli.question import question_text
from callgate.cli.terminal import Paint, wants_colour
from callgate.cli.tty import Tty
from callgate.core.stored import ConfirmationState, StoredConfirmation
from callgate.core.stores import ConfirmationNotFound, Store
from callgate.dispatch import questions
from callgate.dispatch.confirmations import Answer, Scope
from callgate.policy.rules import Outcome

BY = "callgate watch"
_PROMPT = "Allow? [y]es  [a]lways in this session  [n]o  ne[v]er  [Enter] later > "
_ANSWERS = {
    "y": Answer(decision=Outcome.ALLOW, by=BY),
    "a": Answer(decision=Outcome.ALLOW, scope=Scope.SESSION, by=BY),
    "n": Answer(decision=Outcome.DENY, by=BY),
    "v": Answer(decision=Outcome.DENY, scope=Scope.SESSION, by=BY),
}
_LETTERS = {"yes": "y", "always": "a", "no": "n", "never": "v"}
_ROWS_LEFT = 3
"""Of the screen, below a question."""


class Answers:
    def __init__(self, store: Store, tty: Tty) -> None:
        self._store = store
        self._tty = tty
        self._paint = Paint(wants_colour(True, os.environ))
        self._line: asyncio.Task[str | None] | None = None
        """A read of the terminal, which nothing can interrupt: the next question takes it over."""

    async def ask(self, id: str) -> None:
        """Ask until there is an answer, here or elsewhere, or the person lets it be."""
        stored = await self._open(id)
        if stored is None:
            return
        try:
            question = questions.read_question(stored)
        except msgspec.ValidationError:  # of another version: nobody can know what they allow
            return
        width, height = self._tty.size()
        text = question_text(question, width, height - _ROWS_LEFT, self._paint).text
        closed = asyncio.create_task(self._until_closed(id, stored.session_id))
        try:
            with self._tty.asking():
                self._tty.write(text)
                answer = await self._answer(closed)
        finally:
            closed.cancel()
        if answer is None:
            return
        receipt = await questions.answer(self._store, id, answer)
        if not receipt.applied:
            self._tty.write("callgate: someone else was quicker\n")

    async def _answer(self, closed: asyncio.Task[None]) -> Answer | None:
        while True:
            line = self._reading()
            await asyncio.wait({line, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                self._tty.write("\ncallgate: answered elsewhere\n")
                return None
            said = (line.result() or "").strip().lower()
            if not said:
                return None
            letter = _LETTERS.get(said, said)
            if letter in _ANSWERS:
                return _ANSWERS[letter]

    def _reading(self) -> asyncio.Task[str | None]:
        if self._line is None or self._line.done():
            self._line = asyncio.create_task(self._tty.ask(_PROMPT))
        else:
            self._tty.write(_PROMPT)
        return self._line

    async def _open(self, id: str) -> StoredConfirmation | None:
        try:
            stored = await self._store.get_confirmation(id)
        except ConfirmationNotFound:
            return None
        return stored if stored.state is ConfirmationState.PENDING else None

    async def _until_closed(self, id: str, session: str) -> None:
        with self._store.wake(session) as hint:
            while await self._open(id) is not None:
                await hint.wait()
