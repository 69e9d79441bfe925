"""The pending questions of this process. The first answer closes a question.

    ask ---> pending ---answer---> closed (here or in any process that shares the store)
               |--- timeout, stop -'
               '--- shutdown, in a turn: stays open until the session is resumed

A confirmer is a coroutine that gets the question and returns an answer. It is attached for one
session and its workers, or for all sessions. Clients that read the question from the event stream
call `answer` instead. A watch on the store finds answers that other processes received.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from callgate.core.errors import ToolCancelled, ToolError, ToolPermissionDenied
from callgate.core.sessions import Session
from callgate.core.stored import ConfirmationState
from callgate.core.stores import ConfirmationNotFound, StoreError
from callgate.core.tasks import TaskSet
from callgate.dispatch.foreign_code import log_failure, unkept
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
"""Returns the hash of an answer's changed arguments, in the form that will run."""
Elsewhere = Callable[[Session], Awaitable[bool]]
"""Whether another server has an approver for the calls of a session."""


class LeftOpen(Exception):
    """Raised when the runtime shuts down during a question of a turn, which stays open."""


class _Pending(msgspec.Struct, eq=False):
    question: Confirmation
    session: Session
    hash: Hash
    future: asyncio.Future[Closed]


class Confirmations:
    def __init__(self, log: SessionLog, timeout_s: float = 300.0, most: int = 20) -> None:
        self.timeout_s = timeout_s
        self.most = most
        """Maximum pending questions of a session and its sub-agents."""
        self.open_store = log.store
        self._log = log
        self._waiting: Counter[str] = Counter()
        """By root session: questions that are being put or wait for an answer."""
        self._pending: dict[str, _Pending] = {}
        self._confirmers: dict[str | None, list[Confirmer | None]] = {}
        self._tasks = TaskSet(_log, "a confirmation task failed")
        self.elsewhere: Elsewhere | None = None

    @contextmanager
    def attach(self, confirmer: Confirmer | None, session_id: str | None = None) -> Iterator[None]:
        """Register an approver: a coroutine, or (None) a client that calls `answer`."""
        present = self._confirmers.setdefault(session_id, [])
        present.append(confirmer)
        try:
            yield
        finally:
            present.remove(confirmer)
            if not present:
                self._confirmers.pop(session_id, None)

    async def can_ask(self, session: Session) -> bool:
        """Whether an approver is available, here or at another server."""
        if any(self._present(session)):
            return True
        try:
            return self.elsewhere is not None and await self.elsewhere(session)
        except StoreError as error:
            _log.warning("cannot find out whether another server has an approver: %s", error)
            return False

    def _present(self, session: Session) -> Iterator[list[Confirmer | None]]:
        """Yield the confirmers for a session: its own, its parent's, and the global ones."""
        for owner in dict.fromkeys((session.id, session.parent, None)):
            yield self._confirmers.get(owner, [])

    @contextmanager
    def room(self, session: Session) -> Iterator[None]:
        """Count a question of a session. Raises `ToolPermissionDenied` if too many are pending."""
        root = session.parent or session.id
        if self._waiting[root] >= self.most:
            raise ToolPermissionDenied(
                f"{self.most} questions of this session already wait for an answer. Wait for the"
                " answers before you request more.",
                reason="too_many_questions",
            )
        self._waiting[root] += 1
        try:
            yield
        finally:
            self._waiting[root] -= 1
            if not self._waiting[root]:
                del self._waiting[root]

    def asked(self) -> set[str]:
        """Return the ids of this process's calls with a pending question."""
        return {each.question.call_id for each in self._pending.values()}

    async def open(self, session_id: str | None = None) -> list[Confirmation]:
        """Return the pending questions of all processes."""
        store = await self._log.store()
        return list(map(questions.read_question, await store.open_confirmations(session_id)))

    async def answer(self, confirmation_id: str, answer: Answer) -> Receipt:
        """Answer a question; the first answer wins. Raises `KeyError` if it does not exist."""
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
        """Wait until a stored question is closed, and report the end to `on_close`.

        Raises if the call is stopped or every confirmer failed, and `LeftOpen` at a shutdown.
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
                raise LeftOpen from None  # the question continues when the session is resumed
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

    async def withdraw(
        self, question: Confirmation, session: Session, on_close: Callable[[Closed], None]
    ) -> None:
        """Close a question of an earlier process whose call can no longer run."""
        op = questions.close(question, ConfirmationState.WITHDRAWN)
        resolution = await self._log.commit(session, op)
        closed = None if resolution.applied else questions.closed(resolution.confirmation)
        on_close(closed or Closed(op.state, None, op.event))

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
        except StoreError as error:  # without the store, no other process can have been first
            _log.error("the answer to %s is not stored: %s", pending.question.id, error)
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
        """Wait for an answer that another process received."""
        store = await self._log.store()
        with store.wake(pending.question.session_id) as hint:
            while True:
                try:
                    stored = await store.get_confirmation(pending.question.id)
                except ConfirmationNotFound:
                    if not pending.future.done():
                        pending.future.set_exception(ToolCancelled(reason="session_deleted"))
                    return
                except StoreError as error:  # confirmers of this process can still answer
                    _log.warning("answers in other processes are not visible: %s", error)
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
        # The question fails with the last confirmer, unless a client may still call `answer`.
        alone = len(callables) == len(present)
        left = [len(callables)]

        async def put(confirmer: Confirmer) -> None:
            try:
                answer = Answer.read(await confirmer(pending.question))
            except ToolPermissionDenied as refusal:  # this question must not be put
                if not pending.future.done():
                    pending.future.set_exception(refusal)
            except (Exception, asyncio.CancelledError) as error:  # foreign code: no answer
                if isinstance(error, asyncio.CancelledError) and pending.future.done():
                    return  # another confirmer answered first
                log_failure(_log, error, "a confirmer failed on %s", pending.question.tool)
                left[0] -= 1
                if alone and not left[0] and not pending.future.done():
                    pending.future.set_exception(
                        ToolPermissionDenied(
                            "No approver could receive the question.", reason="confirmer_failed"
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
    except ToolError:  # the call will fail on these arguments; this hash allows nothing to run
        return "unrunnable"
