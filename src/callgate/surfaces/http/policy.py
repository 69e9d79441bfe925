"""What would be decided about a call, and what other settings would have decided about those on
record: nothing runs, nobody is asked, nothing is recorded."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, structs

from callgate.config.backtests import backtest
from callgate.config.load import SettingsError
from callgate.config.places import Home
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.core.results import ErrorInfo
from callgate.core.sessions import Mode, Session
from callgate.core.stores import Store
from callgate.policy.rules import Outcome
from callgate.surfaces.http.audit import Moment
from callgate.surfaces.http.calls import ensure_same
from callgate.surfaces.http.doors import Door
from callgate.surfaces.http.operations import Asked, Operation
from callgate.surfaces.http.problems import invalid
from callgate.surfaces.http.values import Directory, Input, Value

_WEEK_S = 7 * 86_400.0
_PAGE = 500


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


class OtherSettings(Input, frozen=True, kw_only=True):
    settings: Annotated[str, Meta(max_length=1_000_000)]
    """TOML, as `settings.toml` has it."""
    since: Moment | None = None
    """None: a week ago."""
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000


class Tested(Value, frozen=True, kw_only=True):
    since: float
    judged: int
    same: int
    loosened: int
    steps: dict[str, int]
    """How many calls went from which decision to which, such as `ask->allow`."""
    changed: list[dict[str, Any]]
    undecidable: dict[str, Any]
    unjudged: int


async def tested(door: Door, asked: Asked) -> Tested:
    body: OtherSettings = asked.body
    since = time.time() - _WEEK_S if body.since is None else body.since
    work = partial(
        backtest,
        Home(door.served.home),
        body.settings.encode(),
        "settings",
        since_ms=int(since * 1000),
        limit=body.limit,
        tools=door.runtime.dispatcher.registry.find,
        modes=await _modes(await door.runtime.store()),
    )
    try:
        found = await asyncio.to_thread(work)
    except SettingsError as error:
        raise invalid(str(error), "settings_invalid") from None
    return Tested(**found.described())


async def _modes(store: Store) -> dict[str, Mode]:
    """The modes of the sessions that are kept."""
    modes: dict[str, Mode] = {}
    cursor = None
    while True:
        page = await store.list_sessions(cursor=cursor, limit=_PAGE, workers=True)
        modes |= {each.id: each.mode for each in page.sessions}
        cursor = page.cursor
        if cursor is None:
            return modes


OPERATIONS = (
    Operation(
        "POST", "/v1/policy/test", "Say which calls on record other settings decide otherwise.",
        tested, Tested, body=OtherSettings,
    ),
    Operation(
        "POST", "/v1/policy/explain", "Say what would be decided about a call.", explained,
        Explained, body=Supposed, errors=(403, 404, 409),
    ),
)  # fmt: skip
