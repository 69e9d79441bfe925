"""The meaning of each op, defined once for every engine: reads and writes rows through a view.

`apply` is the only entry point. A function raises before it changes anything that it cannot
complete, or the engine discards the view; a failed commit leaves no changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from callgate.core.events import OUTPUT_DELTA
from callgate.core.ops import (
    Acquire,
    Append,
    AppendMessages,
    ClaimOutbox,
    ClearOutbox,
    CloseCutCalls,
    DeleteSession,
    DropBlob,
    DropEntry,
    DropOutput,
    EntryReceipt,
    ExpireConfirmations,
    FinishCall,
    Fork,
    NewSession,
    Op,
    PutBlob,
    PutConfirmation,
    PutEntry,
    PutGrant,
    Reap,
    Release,
    ResolveConfirmation,
    RevokeGrants,
    SessionOp,
    StartCall,
    UpdateSession,
    UseGrant,
)
from callgate.core.stored import (
    OutboxRecord,
    SharedEntry,
    StoredGrant,
    StoredSession,
)
from callgate.core.stores import SessionLocked, StaleOwner
from callgate.storage import calls
from callgate.storage.encoding import encode
from callgate.storage.session_changes import append_messages, close_cut_calls, event_of, fork
from callgate.storage.views import Blob, EmptiedEvent, View

_CHANGEABLE = ("workspace", "mode", "title", "extra_roots", "tags", "turn_id", "meta", "labels")


def apply(op: Op[Any], view: View) -> Any:
    """Apply one op, and return its result."""
    if isinstance(op, SessionOp) and op.fence is not None:
        _check_fence(op, view)
    meaning = _MEANINGS.get(type(op))
    if meaning is None:
        meaning = _rare_meaning(type(op))
    return meaning(op, view)


def _rare_meaning(kind: type[Op[Any]]) -> Callable[[Any, View], Any]:
    from callgate.storage.pruning import MEANINGS  # lazy: few prune or have budgets  # noqa: PLC0415

    return MEANINGS[kind]


def _check_fence(op: SessionOp[Any], view: View) -> None:
    session = view.session(op.session)
    stale = session.owner is None or session.fence != op.fence
    if stale and not isinstance(op, Release):  # which says itself that there is nothing to do
        raise StaleOwner(op.session)


def _new_session(op: NewSession, view: View) -> StoredSession:
    known = view.get(StoredSession, op.session)
    if known is not None:
        return known
    if op.session in view.deleted:
        raise ValueError("the id of a deleted session is not used again")
    if op.parent is not None:
        view.session(op.parent)
    session = StoredSession(
        id=op.session,
        workspace=op.workspace,
        mode=op.mode,
        title=op.title,
        parent=op.parent,
        parent_call=op.parent_call,
        extra_roots=op.extra_roots,
        tags=op.tags,
        meta=op.meta,
        principal=op.principal,
        created_at=op.at,
        updated_at=op.at,
    )
    view.describe(session)
    return session


def _update_session(op: UpdateSession, view: View) -> StoredSession:
    session = view.session(op.session)
    given = {name: getattr(op, name) for name in _CHANGEABLE}
    changes = {name: value for name, value in given.items() if value is not UNSET}
    changed = replace(session, updated_at=max(session.updated_at, op.at), **changes)
    view.describe(changed)
    return changed


def _delete_session(op: DeleteSession, view: View) -> bool:
    session = view.get(StoredSession, op.session)
    if session is None:
        return False
    _delete(view, session, session.owner if op.fence is not None else None)
    return True


def _delete(view: View, session: StoredSession, by: str | None) -> None:
    if session.owner not in (None, by) and view.alive(session.owner):
        raise SessionLocked(session.id, session.owner)
    for worker in view.find(StoredSession, "parent", session.id):
        _delete(view, worker, by)
    from callgate.storage.pruning import forget_ledger  # lazy: few sessions are deleted  # noqa: PLC0415

    forget_ledger(view, session.id)
    view.delete(session)


def _acquire(op: Acquire, view: View) -> int:
    session = view.session(op.session)
    if session.owner == op.owner:
        return session.fence
    if session.owner is not None:
        if view.alive(session.owner):
            raise SessionLocked(op.session, session.owner)
        view.take_for_dead(session.owner)
        calls.reap_session(view, session.id, session.owner, op.at)
        session = view.session(op.session)
    fence = session.fence + 1
    acquired = replace(session, owner=op.owner, fence=fence, acquired_seq=session.last_seq)
    view.describe(acquired)
    return fence


def _release(op: Release, view: View) -> bool:
    session = view.session(op.session)
    if session.owner != op.owner or op.fence not in (None, session.fence):
        return False
    view.put(replace(session, owner=None))
    return True


def _append(op: Append, view: View) -> tuple[int, ...]:
    return view.append(op.session, op.events)


def _drop_output(op: DropOutput, view: View) -> int:
    view.session(op.session)
    count = 0
    for seq, text in view.events(op.session, op.after):
        if seq > op.upto:
            break
        event = event_of(text, op.session, seq)
        if event.type != OUTPUT_DELTA or event.payload.get("dropped"):
            continue
        ids = {k: v for k, v in event.payload.items() if k in ("call_id", "tool_use_id")}
        emptied = replace(event, payload={**ids, "dropped": True})
        view.put(EmptiedEvent(op.session, seq, encode(emptied)))
        count += 1
    return count


def _put_grant(op: PutGrant, view: View) -> None:
    view.session(op.session)
    if op.grant.session_id != op.session:
        raise ValueError("a grant belongs to the session of its op")
    if view.get(StoredGrant, op.grant.id) is None:
        view.put(op.grant)
        view.touch(op.session)


def _use_grant(op: UseGrant, view: View) -> bool:
    grant = view.get(StoredGrant, op.grant)
    if grant is None or grant.session_id != op.session:
        return False
    if op.call in grant.used_by:
        return True
    if grant.expires_at is not None and op.at >= grant.expires_at:
        return False
    if grant.uses is None:
        return True
    if len(grant.used_by) >= grant.uses:
        return False
    view.put(replace(grant, used_by=(*grant.used_by, op.call)))
    view.touch(op.session)
    return True


def _revoke_grants(op: RevokeGrants, view: View) -> int:
    view.session(op.session)
    grants = [
        grant
        for grant in view.find(StoredGrant, "session_id", op.session)
        if op.grant in (None, grant.id)
    ]
    for grant in grants:
        view.remove(grant)
        view.touch(op.session)
    return len(grants)


def _put_blob(op: PutBlob, view: View) -> str:
    sha256 = hashlib.sha256(op.data).hexdigest()
    view.put(Blob(sha256, op.data))
    return sha256


def _drop_blob(op: DropBlob, view: View) -> bool:
    blob = view.get(Blob, op.sha256)
    if blob is None:
        return False
    view.remove(blob)
    return True


def _clear_outbox(op: ClearOutbox, view: View) -> int:
    records = [record for call in op.calls if (record := view.get(OutboxRecord, call)) is not None]
    for record in records:
        view.remove(record)
    return len(records)


def _claim_outbox(op: ClaimOutbox, view: View) -> tuple[str, ...]:
    claimed = []
    for call in op.calls:
        record = view.get(OutboxRecord, call)
        if record is None:
            continue
        if record.owner != op.owner:
            is_free = (
                not view.alive(record.owner) if op.expected is None else record.owner == op.expected
            )
            if not is_free:
                continue
            view.put(replace(record, owner=op.owner))
        claimed.append(call)
    return tuple(claimed)


def _put_entry(op: PutEntry, view: View) -> EntryReceipt:
    known = view.get(SharedEntry, (op.kind, op.name))
    version = known.version if known is not None else 0
    if known is not None and known.put_by == op.id:  # repeated, because its response was lost
        return EntryReceipt(True, known)
    if op.expected not in (None, version):
        return EntryReceipt(False, known)
    if known is not None and known.value == op.value:
        return EntryReceipt(True, known)
    entry = SharedEntry(
        kind=op.kind,
        name=op.name,
        value=op.value,
        version=version + 1,
        put_by="" if op.expected is None else op.id,
    )
    view.put(entry)
    view.touch_entries(op.kind)
    return EntryReceipt(True, entry)


def _drop_entry(op: DropEntry, view: View) -> EntryReceipt:
    known = view.get(SharedEntry, (op.kind, op.name))
    if known is None or op.expected not in (None, known.version):
        return EntryReceipt(known is None, known)
    view.remove(known)
    view.touch_entries(op.kind)
    return EntryReceipt(True, None)


_MEANINGS: dict[type[Op[Any]], Callable[[Any, View], Any]] = {
    NewSession: _new_session,
    UpdateSession: _update_session,
    Fork: fork,
    DeleteSession: _delete_session,
    Acquire: _acquire,
    Release: _release,
    Append: _append,
    AppendMessages: append_messages,
    DropOutput: _drop_output,
    StartCall: calls.start_call,
    FinishCall: calls.finish_call,
    ClearOutbox: _clear_outbox,
    ClaimOutbox: _claim_outbox,
    CloseCutCalls: close_cut_calls,
    PutConfirmation: calls.put_confirmation,
    ResolveConfirmation: calls.resolve_confirmation,
    ExpireConfirmations: calls.expire_confirmations,
    PutGrant: _put_grant,
    UseGrant: _use_grant,
    RevokeGrants: _revoke_grants,
    PutEntry: _put_entry,
    DropEntry: _drop_entry,
    PutBlob: _put_blob,
    DropBlob: _drop_blob,
    Reap: calls.reap,
}
