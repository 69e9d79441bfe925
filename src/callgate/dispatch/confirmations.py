"""Questions to a person, and their answers: asked once, answered once, by whoever is first.

    ask ---> pending ---answer---> resolved (kept a while, so that a late answer is told)
               |--- timeout, cancel

A question is built from the arguments that will run and carries their hash; an answer covers
exactly those bytes. Confirmers are attached for one session or for all; each is a coroutine
that gets the question and returns an answer, and `answer` is the same door for clients that
learned of the question from the event stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import msgspec

from callgate.core.effects import SideEffects
from callgate.core.errors import ConfirmationTimeout, ToolPermissionDenied
from callgate.dispatch.failures import log_failure
from callgate.dispatch.running import RunningCall
from callgate.policy.rules import Outcome

KEPT_S = 600.0
"""How long a resolved id still says that it was resolved."""

_log = logging.getLogger("callgate.confirmations")


class Scope(StrEnum):
    ONCE = "once"
    SESSION = "session"
    """The same tool, for the rest of the session."""
    ALWAYS = "always"
    """A saved rule, bound to a pattern of arguments."""


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The question."""

    id: str
    call_id: str
    tool_use_id: str
    session_id: str
    turn_id: str | None
    tool: str
    side_effects: SideEffects
    destructive: bool
    arguments: Mapping[str, Any]
    arguments_sha256: str
    workspace: str
    why: str
    """Why it is asked, in a sentence."""
    input_summary: str
    """Redacted and bounded."""
    preview: str | None = None
    """What will happen: a diff, or the command. Untrusted text: show it escaped."""
    projected_modifications: tuple[str, ...] = ()
    command_summary: str | None = None
    expires_at: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    decision: Outcome
    """`allow` or `deny`."""
    scope: Scope = Scope.ONCE
    arguments: Mapping[str, Any] | None = None
    """What to run instead; it goes through every check again."""
    pattern: str | None = None
    """With scope always: the pattern to save, as the person edited it."""
    reason: str | None = None
    """Told to the agent with a no."""
    by: str = "user"
    """Who answered, through which client."""

    @classmethod
    def read(cls, said: Answer | bool | str, by: str = "user") -> Answer:
        """Take an answer in any of the words people use for it."""
        if isinstance(said, Answer):
            return said
        if said is True or said == "allow":
            return cls(decision=Outcome.ALLOW, by=by)
        if said == "always-allow-this-tool":
            return cls(decision=Outcome.ALLOW, scope=Scope.SESSION, by=by)
        if said is False or said == "deny":
            return cls(decision=Outcome.DENY, by=by)
        raise ValueError(f"not an answer: {said!r}")


class Receipt(msgspec.Struct, frozen=True):
    applied: bool
    """False: someone else was first, and `answer` is theirs."""
    answer: Answer | None
    """None where the question ran out of time or was withdrawn."""


Confirmer = Callable[[Confirmation], Awaitable[Answer | bool | str]]


class _Pending(msgspec.Struct):
    question: Confirmation
    future: asyncio.Future[Answer]


class Confirmations:
    def __init__(self, timeout_s: float = 300.0) -> None:
        self.timeout_s = timeout_s
        self._pending: dict[str, _Pending] = {}
        self._resolved: dict[str, tuple[float, Answer | None]] = {}
        self._confirmers: dict[str | None, list[Confirmer | None]] = {}

    @contextmanager
    def attach(self, confirmer: Confirmer | None, session_id: str | None = None) -> Iterator[None]:
        """Someone can answer: a coroutine, or (None) a client that calls `answer`."""
        present = self._confirmers.setdefault(session_id, [])
        present.append(confirmer)
        try:
            yield
        finally:
            present.remove(confirmer)
            if not present:
                self._confirmers.pop(session_id, None)

    def can_ask(self, session_id: str) -> bool:
        return bool(self._confirmers.get(session_id) or self._confirmers.get(None))

    def open(self, session_id: str | None = None) -> list[Confirmation]:
        """The questions that wait for an answer."""
        return [
            pending.question
            for pending in self._pending.values()
            if session_id in (None, pending.question.session_id)
        ]

    def answer(self, confirmation_id: str, answer: Answer) -> Receipt:
        """Answer a question; the first answer wins. `KeyError` if there is no such question."""
        pending = self._pending.get(confirmation_id)
        if pending is None or pending.future.done():
            if pending is None and confirmation_id not in self._resolved:
                raise KeyError(confirmation_id)
            standing = self._resolved.get(confirmation_id)
            return Receipt(False, standing[1] if standing else None)
        self._settle(confirmation_id, answer)
        pending.future.set_result(answer)
        return Receipt(True, answer)

    async def ask(self, question: Confirmation, running: RunningCall) -> Answer:
        """Wait for the answer. Raises on timeout, on a stop, or if every confirmer failed."""
        loop = asyncio.get_running_loop()
        pending = _Pending(question, loop.create_future())
        self._pending[question.id] = pending
        timer = loop.call_later(max(0.0, question.expires_at - time.time()), self._expire, pending)
        tasks = self._start_confirmers(pending)
        try:
            return await running.until(pending.future)  # type: ignore[no-any-return]
        finally:
            timer.cancel()
            del self._pending[question.id]
            if question.id not in self._resolved:
                self._settle(question.id, None)
            for task in tasks:
                task.cancel()

    def _start_confirmers(self, pending: _Pending) -> list[asyncio.Task[None]]:
        session_id = pending.question.session_id
        present = [*self._confirmers.get(session_id, ()), *self._confirmers.get(None, ())]
        callables = [each for each in present if each is not None]
        # With a client attached that answers by itself, a failing confirmer is not the last one.
        alone = len(callables) == len(present)
        left = [len(callables)]

        async def put(confirmer: Confirmer) -> None:
            try:
                answer = Answer.read(await confirmer(pending.question))
            except (Exception, asyncio.CancelledError) as error:  # foreign code: no answer
                if isinstance(error, asyncio.CancelledError) and pending.future.done():
                    return  # another was quicker
                log_failure(_log, error, "a confirmer failed on %s", pending.question.tool)
                left[0] -= 1
                if alone and not left[0] and not pending.future.done():
                    pending.future.set_exception(
                        ToolPermissionDenied(
                            "The question could not be put to anyone.", reason="confirmer_failed"
                        )
                    )
            else:
                if pending.question.id in self._pending:
                    self.answer(pending.question.id, answer)

        loop = asyncio.get_running_loop()
        return [loop.create_task(put(each)) for each in callables]

    def _expire(self, pending: _Pending) -> None:
        if not pending.future.done():
            pending.future.set_exception(
                ConfirmationTimeout(
                    f"Nobody answered within {self.timeout_s:g} s.", reason="confirmation_timeout"
                )
            )

    def _settle(self, confirmation_id: str, answer: Answer | None) -> None:
        now = time.monotonic()
        for old in list(self._resolved):  # in order of time: the old ones are at the front
            if self._resolved[old][0] > now - KEPT_S:
                break
            del self._resolved[old]
        self._resolved[confirmation_id] = (now, answer)
