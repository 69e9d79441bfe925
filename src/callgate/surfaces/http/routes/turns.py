"""Turns: begun with a prompt, cancelled. What happens in one is told by the stream."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from callgate.surfaces.http import owners
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import not_found
from callgate.surfaces.http.routes.values import Input, Value


class Prompt(Input, frozen=True, kw_only=True):
    prompt: Annotated[str, Meta(min_length=1)]
    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class Begun(Value, frozen=True, kw_only=True):
    turn_id: str


class Cancelling(Value, frozen=True, kw_only=True):
    turn_id: str
    cancelled: bool
    """False: it was over."""


async def begin_turn(context: Context, request: Request) -> Begun:
    body: Prompt = request.body
    turn = await context.sessions.begin_turn(request.path["id"], body.prompt, body.model)
    return Begun(turn_id=turn)


async def cancel_turn(context: Context, request: Request) -> Cancelling:
    id, turn = request.path["id"], request.path["turn"]
    await (await context.runtime.store()).get_session(id)  # 404 for one that never was
    if not await context.sessions.knows_turn(id, turn):
        raise not_found("turn")
    return Cancelling(turn_id=turn, cancelled=context.sessions.cancel_turn(id, turn))


_TURNS = "/v1/sessions/{id}/turns"
OPERATIONS = (
    Operation(
        "POST",
        _TURNS,
        "Begin a turn.",
        begin_turn,
        Begun,
        body=Prompt,
        status=202,
        errors=(403, 404, 409, 503),
        short=True,
        owner=owners.of_session_in_path,
    ),
    Operation(
        "DELETE",
        f"{_TURNS}/{{turn}}",
        "Cancel a turn.",
        cancel_turn,
        Cancelling,
        status=202,
        errors=(404, 503),
        short=True,
        owner=owners.of_session_in_path,
    ),
)
