"""What answers at one path: the function of a route, or the server that owns what it is about."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, defect, read_request, wrong_method
from callgate.surfaces.http.owners import answer_or_carry
from callgate.surfaces.http.problems import draining, problem_of, stopping
from callgate.surfaces.http.responses import (
    HttpResponse,
    Streamed,
    json_response,
    problem_response,
    respond,
    stream,
)

_log = logging.getLogger("callgate.http")


class Endpoint:
    """The operations of one path, by method."""

    def __init__(self, context: Context, operations: Iterable[Operation]) -> None:
        self._context = context
        self._by_method: dict[str, Operation] = {each.method: each for each in operations}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._by_method.get(scope["method"])
        try:
            if operation is None:
                raise wrong_method(self._by_method)
            if operation.begins_work and self._context.draining.has_begun:
                raise draining()
            request = await read_request(operation, scope, receive)
            answer = await answer_or_carry(self._context, operation, request)
        except asyncio.CancelledError:  # its work was, or we are: nothing comes after this
            await respond(problem_response(stopping()), scope, receive, send)
            return
        except Exception as error:  # ours become an answer; a defect is logged, not shown
            problem = problem_of(error)
            if problem is None:
                _log.exception("a request met a defect: %s %s", scope["method"], scope["path"])
                problem = defect()
            problem.__traceback__ = problem.__context__ = None  # its frames hold what was sent
            await respond(problem_response(problem), scope, receive, send)
            return
        if isinstance(answer, Streamed):
            await stream(answer, send)
            return
        if not isinstance(answer, HttpResponse):
            answer = json_response(operation.status, answer)
        await respond(answer, scope, receive, send)
