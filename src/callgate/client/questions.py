"""Putting an instance's question to whoever answers in this program."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable

from callgate.dispatch.confirmations import Answer
from callgate.policy.rules import Outcome
from callgate.protocol.socket_v1.frames import Question

Said = Answer | bool | str
Confirm = Callable[[Question], Said | Awaitable[Said]]
"""A coroutine, or a function that may take its time: it runs in a thread of its own."""

_log = logging.getLogger("callgate.client")


async def put(confirm: Confirm, question: Question) -> Answer:
    """The answer. One that fails to give any has said no."""
    try:
        quick = inspect.iscoroutinefunction(confirm)
        said = _call(confirm, question) if quick else await _in_thread(confirm, question)
        return Answer.read(await said if inspect.isawaitable(said) else said)
    except Exception:  # foreign code
        _log.exception("the question about %s could not be put to anyone", question.tool)
        return Answer(decision=Outcome.DENY, reason="The question could not be put to anyone.")


def _call(confirm: Confirm, question: Question) -> Said | Awaitable[Said]:
    return confirm(question)


async def _in_thread(confirm: Confirm, question: Question) -> Said | Awaitable[Said]:
    # A daemon, because nothing can interrupt somebody who reads a line from a terminal: the
    # program must be able to end without the answer.
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Said | Awaitable[Said]] = loop.create_future()

    def settle(said: Said | Awaitable[Said] | None, error: Exception | None) -> None:
        if answered.done():
            return
        if error is not None:
            answered.set_exception(error)
        elif said is not None:
            answered.set_result(said)
        else:
            answered.set_exception(ValueError("no answer was returned"))

    def ask() -> None:
        said, error = None, None
        try:
            said = confirm(question)
        except Exception as raised:  # handed on to `put`
            error = raised
        try:
            loop.call_soon_threadsafe(settle, said, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=ask, name="callgate question", daemon=True).start()
    return await answered
