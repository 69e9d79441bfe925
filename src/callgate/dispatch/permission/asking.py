"""The questions that this process asks: each is closed once, by whoever is first.

    ask ---> pending ---answer---> closed (here or in any process that shares the store)
               |--- timeout, stop -'
               '--- shutdown, in a turn: stays open for whoever resumes the session

Confirmers are attached for one session or for all, and those of a session are asked for its
workers too; each is a coroutine that gets the question
and returns an answer. `answer` is the same door for clients that learned of the question from
the event stream, and the store is watched for answers that were given in other processes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from callgate.core.errors import ToolCancelled, ToolError, ToolPermissionDenied
from callgate.core.sessions import Session
from callgate.core.stored import ConfirmationState
from callgate.core.stores import ConfirmationNotFound, StoreError
from callgate.core.task_sets import TaskSet
from callgate.dispatch.failures import log_failure, unkept
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import (
    Answer,
    Closed,
    Confirmation,
    Confirmer,
    Receipt,
)
from callgate.dispatch.running import RunningCall, Stop
from callgate.events.log import SessionLog

_log = logging.getLogger("callgate.confirmations")

Hash = Callable[[Mapping[str, Any]], str]
"""Of the arguments that an answer puts in place of the question's, as they will run."""
Elsewhere = Callable[[Session], Awaitable[bool]]
"""Whether somebody at another server can be asked about the calls of a session."""


class LeftOpen(Exception):
    """The runtime shuts down while a question of a turn is open: it stays open."""


class _Pending(msgspec.Struct, eq=False):
    question: Confirmation
    session: Session
    hash: Hash
    future: asyncio.Future[Closed]


class Confirmations:
    def __init__(self, log: SessionLog, timeout_s: float = 300.0) -> None:
        self.timeout_s = timeout_s
        self._log = log
        self._pending: dict[str, _Pending] = {}
        self._confirmers: dict[str | None, list[Confirmer | None]] = {}
        self._tasks = TaskSet(_log, "an answer was not heard")
        self.elsewhere: Elsewhere | None = None

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

    async def can_ask(self, session: Session) -> bool:
        """Whether somebody can be asked, here or at another server."""
        if any(self._present(session)):
            return True
        try:
            return self.elsewhere is not None and await self.elsewhere(session)
        except StoreError as error:
            _log.warning("whether somebody is at another server is not known: %s", error)
            return False

    def _present(self, session: Session) -> Iterator[list[Confirmer | None]]:
        """Those who can be asked for a session: its own, those of its parent, those of all."""
        for owner in dict.fromkeys((session.id, session.parent, None)):
            yield self._confirmers.get(owner, [])

    def asked(self) -> set[str]:
        """The calls of this process about which a person is being asked."""
        return {each.question.call_id for each in self._pending.values()}

    async def open(self, session_id: str | None = None) -> list[Confirmation]:
        """The questions that wait for an answer, of every process."""
        store = await self._log.store()
        return list(map(questions.read_question, await store.open_confirmations(session_id)))

    async def answer(self, confirmation_id: str, answer: Answer) -> Receipt:
        """Answer a question; the first answer wins. `KeyError` if there is no such question."""
        pending = self._pending.get(confirmation_id)
        if pending is None:
            return await questions.answer(await self._log.store(), confirmation_id, answer)
        return await self._close(pending, questions.answered_state(answer), answer)

    async def ask(
        self,
        question: Confirmation,
        session: Session,
        running: RunningCall,
        hash: Hash,
        on_close: Callable[[Closed], None],
    ) -> Closed:
        """Wait until a question that was put is closed, and tell of it.

        Raises on a stop, or if every confirmer failed; `LeftOpen` if it outlives this process.
        """
        loop = asyncio.get_running_loop()
        pending = _Pending(question, session, hash, loop.create_future())
        self._pending[question.id] = pending
        left_s = max(0.0, question.expires_at - time.time())
        tasks = [
            *self._start_confirmers(pending),
            self._tasks.start(self._watch(pending)),
            self._tasks.start(self._expire(pending, left_s)),
        ]
        try:
            closed: Closed = await running.until(pending.future)
        except BaseException:
            lasts = question.turn_id is not None and not session.is_worker
            if running.stop is Stop.SHUTDOWN and lasts:
                raise LeftOpen from None  # whoever resumes the session goes on with it
            op = questions.close(question, ConfirmationState.WITHDRAWN)
            self._log.commit(session, op)
            on_close(Closed(op.state, None, op.event))
            raise
        finally:
            del self._pending[question.id]
            for task in tasks:
                task.cancel()
        on_close(closed)
        return closed

    async def _close(
        self, pending: _Pending, state: ConfirmationState, answer: Answer | None = None
    ) -> Receipt:
        amended = None if answer is None or answer.arguments is None else answer.arguments
        op = questions.close(
            pending.question, state, answer, None if amended is None else _hash(pending, amended)
        )
        closed: Closed | None = Closed(state, answer, op.event)
        try:
            resolution = await self._log.commit(pending.session, op)
        except StoreError as error:  # nobody else can have been first where nothing is written
            _log.error("the answer to %s is not kept: %s", pending.question.id, error)
            applied = not pending.future.done()
            if applied and state is ConfirmationState.ALLOWED:
                pending.future.set_exception(unkept(error))
        else:
            applied = resolution.applied
            if not applied:
                closed = questions.closed(resolution.confirmation)
        assert closed is not None
        _settle(pending, closed)
        return Receipt(applied, closed.answer)

    async def _watch(self, pending: _Pending) -> None:
        """Take the answer that another process was given."""
        store = await self._log.store()
        with store.wake(pending.question.session_id) as hint:
            while True:
                try:
                    stored = await store.get_confirmation(pending.question.id)
                except ConfirmationNotFound:
                    if not pending.future.done():
                        pending.future.set_exception(ToolCancelled(reason="session_deleted"))
                    return
                except StoreError as error:  # those who can answer here still can
                    _log.warning("answers of other processes are not seen: %s", error)
                    await hint.wait()
                    continue
                closed = questions.closed(stored)
                if closed is not None:
                    _settle(pending, closed)
                    return
                await hint.wait()

    async def _expire(self, pending: _Pending, left_s: float) -> None:
        await asyncio.sleep(left_s)
        await self._close(pending, ConfirmationState.EXPIRED)

    def _start_confirmers(self, pending: _Pending) -> list[asyncio.Task[None]]:
        present = [each for some in self._present(pending.session) for each in some]
        callables = [each for each in present if each is not None]
        # With a client attached that answers by itself, a failing confirmer is not the last one.
        alone = len(callables) == len(present)
        left = [len(callables)]

        async def put(confirmer: Confirmer) -> None:
            try:
                answer = Answer.read(await confirmer(pending.question))
            except ToolPermissionDenied as refusal:  # it must not be asked at all
                if not pending.future.done():
                    pending.future.set_exception(refusal)
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
                    await self.answer(pending.question.id, answer)

        return [self._tasks.start(put(each)) for each in callables]


def _settle(pending: _Pending, closed: Closed) -> None:
    if not pending.future.done():
        pending.future.set_result(closed)


def _hash(pending: _Pending, arguments: Mapping[str, Any]) -> str:
    try:
        return pending.hash(arguments)
    except ToolError:  # the call will end for it; no hash is allowed to run
        return "unrunnable"
