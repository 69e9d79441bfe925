"""`/v1/hooks/AGENT`: takes the events of an agent's hook over HTTP, with that agent's token.

Answers with 200 and a decision in the agent's form, or with an error: never with an empty 200,
which an agent takes for no decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from callgate.protocol.hooks import dialects
from callgate.surfaces.hooks.listener import is_token
from callgate.surfaces.hooks.service import HookService
from callgate.surfaces.http.guard import HOOKS
from callgate.surfaces.http.problems import Problem, unauthorized
from callgate.surfaces.http.responses import (
    JSON,
    HttpResponse,
    content_length,
    problem_response,
    respond,
)
from callgate.surfaces.http.unauthenticated import CONNECTION

PATH = HOOKS + "{agent}"


class HookEndpoint:
    def __init__(self, service: Callable[[], HookService], home: str) -> None:
        self._service = service
        self._home = home

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        agent = scope["path_params"]["agent"]
        try:
            if scope["method"] != "POST" or not self._is_known(agent, scope):
                raise unauthorized()
            data = await _body(receive)
        except Problem as problem:
            await respond(problem_response(problem), scope, receive, send)
            return
        pending = scope.get("state", {}).get(CONNECTION)
        if pending is not None:
            pending.admit()
        answer = await self._service().submit(agent, data, _disconnected(receive))
        answer = answer or b"{}"
        headers = [(b"content-type", JSON), content_length(answer)]
        await respond(HttpResponse(200, headers, answer), scope, receive, send)

    def _is_known(self, agent: str, scope: Scope) -> bool:
        given = [value for key, value in scope["headers"] if key == b"authorization"]
        if len(given) != 1 or agent not in dialects.DIALECTS:
            return False
        scheme, _, token = given[0].decode("latin-1").partition(" ")
        return scheme.lower() == "bearer" and is_token(self._home, agent, token.strip())


async def _body(receive: Receive) -> bytes:
    """The whole body; of one that is too large enough to be refused in the agent's form."""
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise unauthorized()
        piece = message.get("body", b"")
        size += len(piece)
        if size <= dialects.MAX_EVENT + 65_536:
            pieces.append(piece)
        more = message.get("more_body", False)
    return b"".join(pieces) if size <= dialects.MAX_EVENT else b" " * (dialects.MAX_EVENT + 1)


async def _disconnected(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        await asyncio.sleep(0)
