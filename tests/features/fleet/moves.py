"""What the tests of moving share: a store with something of every kind, and what can be seen of one."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from callgate.core.budgets import PruneEvents, PruneSessions
from callgate.core.events import COMPLETED
from callgate.core.ids import ulid
from callgate.core.ops import (
    Acquire,
    Append,
    AppendMessages,
    PutBlob,
    PutEntry,
    PutGrant,
    Reap,
)
from callgate.core.stored import ConfirmationState, StoredGrant, StoredMessage
from callgate.core.stores import Store
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.administration import PostgresMovable
from callgate.storage.moving import MovableStore, MoveStep, move
from callgate.storage.sqlite.files import Location
from callgate.storage.sqlite.moving import SqliteMovable
from tests.kernel.contract.stores import answer, append, ask, event, finish, new_session, start

NOW = 1e12


async def fill(store: Store, dead: Store) -> dict[str, Any]:
    """Something of every kind, and rows of a session that is gone; the ids that are looked for later.

    `dead` is the store of a process that is to be closed before `reap`.
    """
    gone = await new_session(store, "/gone")
    await append(store, gone, "a", "b")
    await store.commit(PruneSessions(before=NOW))
    pruned = await new_session(store, "/pruned")
    await append(store, pruned, "old", "older")
    await store.commit(PruneEvents(before=NOW))
    await append(store, pruned, "new", "Ω\u2028\U0001f600")
    full = await new_session(store, "/wörk space")
    call = start(store, full)
    await store.commit(call)
    await store.commit(finish(store, full, call.call, record='{"a": 1}'))
    grant = StoredGrant(id=ulid(), session_id=full, tool=None, decision="allow")
    await store.commit(PutGrant(session=full, grant=grant))
    said = (StoredMessage(id=ulid(), body={"text": "a\0b"}), StoredMessage(id=ulid(), body={}))
    await store.commit(AppendMessages(session=full, messages=said, at=1.0))
    answered = ask(store, full)
    await store.commit(answered)
    await store.commit(answer(answered, ConfirmationState.DENIED))
    await store.commit(finish(store, full, answered.call))
    waiting = ask(store, full, expires_at=NOW)
    await store.commit(waiting)
    (blob,) = await store.commit(PutBlob(data=bytes(range(256)) * 1_000))
    await store.commit(PutEntry(kind="rules", name="one", value="1"))
    await store.commit(PutEntry(kind="rules", name="one", value="2"))
    cut = await new_session(dead, "/cut")
    await dead.commit(Acquire(session=cut, owner=dead.owner, at=1.0))
    await append(dead, cut, "by the dead")
    worker = await new_session(store, "/wörk space", parent=full)
    return {
        "sessions": [pruned, full, cut, worker],
        "gone": gone,
        "call": call.call,
        "waiting": waiting.confirmation,
        "blob": blob,
        "dead": dead.owner,
    }


async def reap(store: Store, dead: str) -> None:
    await store.commit(Reap(owner=dead, at=2.0))


async def seen(store: Store, known: dict[str, Any]) -> dict[str, Any]:
    """What a client can see, cursors included."""
    found: dict[str, Any] = {}
    pages = []
    after = None
    while True:
        page = await store.read_all(after, 3)
        pages.append(page)
        if not page.events:
            break
        after = page.cursor
    found["all"] = [(page.events, list(page.cursors), list(page.seqs)) for page in pages]
    found["last"] = [each.id for each in (await store.read_last(None, None, 4)).events]
    found["pruned"] = (await store.behind(None)).pruned
    listed = await store.list_sessions(limit=2, workers=True)
    found["listed"] = listed.sessions
    found["further"] = (await store.list_sessions(cursor=listed.cursor, workers=True)).sessions
    found["list cursor"] = listed.cursor
    for session in known["sessions"]:
        found[session] = await store.get_session(session)
        found["events", session] = await store.read_events(session)
        found["messages", session] = await store.read_messages(session)
        found["snapshot", session] = await store.snapshot(session)
    found["call"] = await store.get_call(known["call"])
    found["waiting"] = await store.get_confirmation(known["waiting"])
    found["blob"] = await store.get_blob(known["blob"])
    found["outbox"] = await store.outbox()
    found["cut"] = await store.cut_sessions()
    found["entries"] = await store.entries("rules")
    found["audited"] = await store.audited_from() or "ZTA"  # from the beginning
    return found


async def many_events(store: Store, sessions: int, each: int) -> None:
    for _ in range(sessions):
        session = await new_session(store)
        for begin in range(0, each, 500):
            events = [event(session, COMPLETED, text="x" * 200) for _ in range(begin, min(each, begin + 500))]
            await store.commit(Append(session=session, events=tuple(events)))


def movable(words: str) -> MovableStore:
    """`sqlite:HOME` or `SCHEMA@URL`."""
    if words.startswith("sqlite:"):
        return SqliteMovable(Location(home=words.removeprefix("sqlite:")))
    schema, _, url = words.partition("@")
    return PostgresMovable(PostgresLocation(url=url, schema=schema))


def main(source: str, target: str, doing: str, table: str, rows: str) -> None:
    """Move, and die once so much is done."""

    def tell(step: MoveStep) -> None:
        if (step.doing, step.table) == (doing, table) and step.rows >= int(rows):
            os.kill(os.getpid(), signal.SIGKILL)

    move(movable(source), movable(target), tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
