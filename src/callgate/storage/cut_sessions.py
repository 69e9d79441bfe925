"""Sessions whose owner died: their calls without effects are ended once its lines were read.

    Reap, Acquire ---> CutSession ---(the owner's audit lines are read)---> CloseCutCalls

Such a call has no row of its own. That it started is an event; that it ended may stand in the
audit log only, because its line is written before its caller is answered and its events follow.
"""

from __future__ import annotations

from msgspec.structs import replace

from callgate.core.events import CALLED, TERMINAL
from callgate.core.ops import CloseCutCalls
from callgate.core.stored import CutSession, StoredCall, StoredSession
from callgate.storage.endings import event_of, interruption, record_of, started_call
from callgate.storage.views import View


def mark_cut(view: View, session: StoredSession, owner: str) -> None:
    """The owner of a session is gone."""
    if session.last_seq == session.acquired_seq:
        return
    known = view.get(CutSession, session.id)
    cut = CutSession(
        session_id=session.id,
        owners=(owner,) if known is None else (*known.owners, owner),
        after=session.acquired_seq if known is None else known.after,
        upto=session.last_seq,
    )
    view.put(cut)


def close_cut_calls(op: CloseCutCalls, view: View) -> tuple[str, ...]:
    cut = view.get(CutSession, op.session)
    if cut is None:
        return ()
    if op.owners is not None:
        unread = tuple(owner for owner in cut.owners if owner not in op.owners)
        if unread:
            if unread != cut.owners:
                view.put(replace(cut, owners=unread))
            return ()
    closed = []
    for call in _open_calls(view, cut).values():
        event = interruption(call, op.at)
        view.append(op.session, (event,))
        view.put(record_of(call, event, view))
        closed.append(call.id)
    view.remove(cut)
    view.touch(op.session)
    return tuple(closed)


def _open_calls(view: View, cut: CutSession) -> dict[str, StoredCall]:
    """The calls without a row that were started by those who are gone and have no end."""
    found: dict[str, StoredCall] = {}
    ended: set[str] = set()
    """Whichever came first: a disk in trouble may have delayed the start."""
    for seq, text in view.events(cut.session_id, cut.after):
        if '"type":"tool.' not in text:
            continue
        event = event_of(text, cut.session_id, seq)
        if event.type == CALLED and seq <= cut.upto:
            call = started_call(event, cut.owners[-1])
            found[call.id] = call
        elif event.type in TERMINAL:
            ended.add(str(event.payload.get("call_id") or event.payload.get("tool_use_id")))
    return {
        id: call
        for id, call in found.items()
        if id not in ended and view.get(StoredCall, id) is None
    }
