"""A call as one row, whatever is known of it: its record, the store's word, or that it runs."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET
from msgspec.structs import replace

from callgate.audit.records import CallRecord
from callgate.core.errors import DENIALS, ToolErrorClass
from callgate.core.stored import CallState as Stage
from callgate.core.stored import StoredCall
from callgate.redaction.summaries import summarize
from callgate.runtime import RunningCall
from callgate.surfaces.http.routes.values import CallRow, CallState

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_STATES: dict[str | None, CallState] = {
    None: "ok",
    ToolErrorClass.CANCELLED: "cancelled",
    ToolErrorClass.SHUTTING_DOWN: "cancelled",
    ToolErrorClass.VALIDATION_ERROR: "invalid",
    ToolErrorClass.PROTOCOL_ERROR: "invalid",
    ToolErrorClass.PARSE_ERROR: "invalid",
    **dict.fromkeys(DENIALS, "denied"),
}


def state_of(error_class: str | None) -> CallState:
    return _STATES.get(error_class, "failed")


def classes_of(state: CallState) -> frozenset[str] | None:
    """The classes of the errors with which calls end in a state; None: they may end without."""
    if state == "ok":
        return None
    return frozenset(each for each in ToolErrorClass if state_of(each) == state)


def row_of_record(line: CallRecord) -> CallRow:
    return CallRow(
        id=line.call_id,
        session_id=line.session,
        turn_id=line.turn_id,
        tool=line.tool,
        caller=line.caller,
        state=state_of(line.error_class),
        side_effects=line.side_effects,
        summary=line.args,
        at=line.ts / 1000,
        client=line.client,
        duration_ms=line.ms,
        waited_ms=line.waited_ms,
        error_class=line.error_class or UNSET,
        policy=line.policy or UNSET,
    )


def open_rows(
    stored: Iterable[StoredCall],
    running: Iterable[RunningCall],
    session: str | None = None,
    elsewhere: Iterable[CallRow] = (),
) -> list[CallRow]:
    """The calls that have not ended, newest first: those of this process say most. `elsewhere`
    are those that other servers run."""
    rows = {each.id: each for each in elsewhere} | {
        each.call.id: row_of_running(each)
        for each in running
        if session in (None, each.call.session.id)
    }
    for call in stored:
        ours = rows.get(call.id)
        row = row_of_stored(call)
        rows[call.id] = (
            row if ours is None else replace(row, summary=ours.summary, client=ours.client)
        )
    return sorted(rows.values(), key=lambda row: row.id, reverse=True)


def row_of_stored(call: StoredCall) -> CallRow:
    return CallRow(
        id=call.id,
        session_id=call.session_id,
        turn_id=call.turn_id,
        tool=call.tool,
        caller=call.caller,
        state="asked" if call.state is Stage.WAITING else "running",
        side_effects=call.side_effects,
        summary=call.summary,
        at=_made_at(call.id),
    )


def row_of_running(running: RunningCall) -> CallRow:
    call = running.call
    client = call.client or call.session.client
    return CallRow(
        id=call.id,
        session_id=call.session.id,
        turn_id=call.turn_id,
        tool=call.tool,
        caller=call.caller,
        state="running",
        side_effects=None,
        summary=summarize(call.arguments),
        at=_made_at(call.id),
        client=None if client is None else client.label,
    )


def _made_at(id: str) -> float:
    """When a call was made, which its id tells."""
    number = 0
    for letter in id.removeprefix("tu_")[:10]:
        number = number * 32 + max(0, _ALPHABET.find(letter))
    return number / 1000
