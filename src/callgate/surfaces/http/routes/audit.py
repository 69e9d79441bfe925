"""The record of calls, searched."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from callgate.audit.reading import Filter
from callgate.audit.records import CallRecord
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.routes.calls import Limit
from callgate.surfaces.http.routes.records import find_page
from callgate.surfaces.http.routes.values import Input, Value

Moment = Annotated[float, Meta(ge=0, lt=1e11)]


class AuditQuery(Input, frozen=True, kw_only=True):
    text: str | None = None
    tool: str | None = None
    session: str | None = None
    decision: Literal["allow", "deny"] | None = None
    error: str | None = None
    since: Moment | None = None
    before: str | None = None
    limit: Limit = 100


class RecordList(Value, frozen=True, kw_only=True):
    records: list[CallRecord]
    before: str | None


async def find_records(context: Context, request: Request) -> RecordList:
    query: AuditQuery = request.query
    wanted = Filter(
        text=query.text,
        tool=query.tool,
        session=query.session,
        decision=query.decision,
        error_classes=None if query.error is None else (query.error,),
        since_ms=None if query.since is None else int(query.since * 1000),
    )
    found = await find_page(context, wanted, query.limit, query.before)
    return RecordList(records=found.records, before=found.before)


OPERATIONS = (
    Operation(
        "GET", "/v1/audit", "Find calls on record.", find_records, RecordList, query=AuditQuery
    ),
)
