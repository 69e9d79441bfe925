"""What would be decided about a call: nothing runs, nobody is asked, nothing is recorded."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, structs

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.core.results import ErrorInfo
from callgate.core.sessions import Mode, Session
from callgate.policy.rules import Outcome
from callgate.surfaces.http.calls import ensure_same
from callgate.surfaces.http.doors import Door
from callgate.surfaces.http.operations import Asked, Operation
from callgate.surfaces.http.values import Directory, Input, Value


class Supposed(Input, frozen=True, kw_only=True):
    tool: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: dict[str, Any] = {}
    session: str | None = None
    workspace: Directory | None = None
    mode: Mode | None = None
    caller: CallerKind = CallerKind.HTTP


class Place(Value, frozen=True, kw_only=True):
    file: str
    line: int | None


class Explained(Value, frozen=True, kw_only=True):
    outcome: Outcome | None
    """None: the call would end before anything is decided."""
    reason: str | None = None
    sentence: str | None = None
    origin: Place | None = None
    sandbox: str | None = None
    paths: list[str] = []
    ends_before: ErrorInfo | None = None


async def explained(door: Door, asked: Asked) -> Explained:
    body: Supposed = asked.body
    session = await _session(door, body)
    if body.mode is not None:
        session = structs.replace(session, mode=body.mode)
    call = ToolCall(
        tool=body.tool, arguments=body.arguments, session=session, caller=body.caller
    )
    try:
        subject, decision = door.runtime.explain(call)
    except ToolError as error:
        return Explained(outcome=None, ends_before=ErrorInfo.of(error))
    origin = decision.origin
    return Explained(
        outcome=decision.outcome,
        reason=decision.reason,
        sentence=decision.sentence,
        origin=None if origin is None else Place(file=origin.file, line=origin.line),
        sandbox=None if subject.enclosure is None else str(subject.enclosure),
        paths=[place.real for place in subject.places],
    )


async def _session(door: Door, body: Supposed) -> Session:
    if body.session is None:
        return door.sessions.fresh(body.workspace)
    held = door.sessions.find(body.session)
    if held is None:
        stored = await (await door.runtime.store()).get_session(body.session)
        held = door.sessions.fresh(stored.workspace, stored.mode)
    ensure_same(body.workspace, held.workspace)
    return held


OPERATIONS = (
    Operation(
        "POST", "/v1/policy/explain", "Say what would be decided about a call.", explained,
        Explained, body=Supposed, errors=(403, 404, 409),
    ),
)  # fmt: skip
