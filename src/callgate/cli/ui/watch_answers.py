"""Asks the person who watches, one question after the other, and can be left without an answer.

Nobody waits for this terminal alone: an empty line leaves the question to others, and one that
was answered elsewhere is taken back, together with what was typed for it.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from callgate.cli.ui.dialog import Dialog
from callgate.cli.ui.question import QuestionDocument
from callgate.cli.ui.terminal import Paint, wants_colour
from callgate.cli.ui.tty import Tty
from callgate.core.stored import ConfirmationState, StoredConfirmation
from callgate.core.stores import ConfirmationNotFound, Store
from callgate.core.task_sets import start_task
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.policy.rules import Outcome

BY = "callgate watch"
_CHOICES = {
    "y": "[y]es",
    "t": "[t]his tool there",
    "a": "[a]lways in this session",
    "n": "[n]o",
    "v": "ne[v]er",
    "": "[Enter] later",
}
_ANSWERS = {
    "y": Answer(decision=Outcome.ALLOW),
    "t": Answer(decision=Outcome.ALLOW, scope=Scope.DESTINATION),
    "a": Answer(decision=Outcome.ALLOW, scope=Scope.SESSION),
    "n": Answer(decision=Outcome.DENY),
    "v": Answer(decision=Outcome.DENY, scope=Scope.SESSION),
}
_ALLOWING = frozenset("yta")
_REMEMBERED = frozenset("tav")


class Answers:
    def __init__(self, store: Store, tty: Tty, by: str = BY) -> None:
        """`by`: the command, for the record."""
        self._store = store
        self._by = by
        self._tty = tty
        self._paint = Paint(wants_colour(True, os.environ))

    async def ask(self, id: str) -> None:
        """Ask until there is an answer, here or elsewhere, or the person lets it be."""
        stored = await self._open(id)
        if stored is None:
            return
        try:
            question = questions.read_question(stored)
        except msgspec.ValidationError:  # of another version: nobody can know what they allow
            return
        answer = await self._unless_closed(stored, question)
        if answer is None:
            return
        receipt = await questions.answer(self._store, id, answer)
        if not receipt.applied:
            self._tty.write("callgate: someone else was quicker\n")

    async def _unless_closed(
        self, stored: StoredConfirmation, question: Confirmation
    ) -> Answer | None:
        closed = start_task(self._until_closed(stored.id, stored.session_id))
        asking = start_task(self._answer(question))
        try:
            await asyncio.wait({asking, closed}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:
            closed.cancel()
            asking.cancel()
            await asyncio.wait({asking})  # the terminal is as it was
        self._tty.write("callgate: answered elsewhere\n")
        return None

    async def _answer(self, question: Confirmation) -> Answer | None:
        left_out = _REMEMBERED if question.always_ask else frozenset()
        if not question.destinations:
            left_out |= {"t"}
        choices = {key: label for key, label in _CHOICES.items() if key not in left_out}
        async with self._tty.asking():
            dialog = Dialog(self._tty, QuestionDocument(question, self._paint))
            while True:
                letter = await dialog.choose(choices, _ALLOWING)
                if not letter:
                    return None
                if letter in choices:
                    return msgspec.structs.replace(_ANSWERS[letter], by=self._by)

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
