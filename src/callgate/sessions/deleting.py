"""Deleting sessions: with those that worked for them, and what their calls put aside."""

from __future__ import annotations

from collections.abc import Sequence

from callgate.core.ops import DeleteSession
from callgate.core.stored import StoredSession
from callgate.core.stores import SessionNotFound, Store


async def all_sessions(store: Store) -> list[StoredSession]:
    """Every session, also those of workers."""
    found: list[StoredSession] = []
    cursor: str | None = None
    while True:
        page = await store.list_sessions(cursor=cursor, limit=1_000, workers=True)
        found += page.sessions
        cursor = page.cursor
        if cursor is None:
            return found


async def family_of(store: Store, id: str) -> list[StoredSession]:
    """A session and those of its workers, and of theirs; none if it is not there."""
    try:
        family = [await store.get_session(id)]
    except SessionNotFound:
        return []
    for member in family:  # grows while it is read
        family += await store.workers_of(member.id)
    return family


async def delete_session(
    store: Store, id: str, family: Sequence[StoredSession], artifacts: str | None
) -> None:
    """Delete a session and its family. `artifacts` is where their calls put things aside.

    `SessionLocked` while a living process has it."""
    from callgate.sessions.artifacts import drop_artifacts  # lazy: few delete anything  # noqa: PLC0415
    from callgate.sessions.shared_artifacts import drop_shared  # lazy: as above  # noqa: PLC0415

    await store.commit(DeleteSession(session=id))
    for each in family:
        if artifacts is not None:
            drop_artifacts(artifacts, each.id)
        await drop_shared(store, each.id)
