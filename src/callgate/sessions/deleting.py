"""Deleting sessions: with those that worked for them, and what their calls put aside."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from callgate.core.ops import DeleteSession
from callgate.core.stored import StoredSession
from callgate.core.stores import SessionNotFound, Store

_log = logging.getLogger("callgate.sessions")


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
    await store.commit(DeleteSession(session=id))
    for each in family if artifacts is not None else ():
        _drop(os.path.join(artifacts or "", each.id), each.id)


def _drop(directory: str, id: str) -> None:
    if id in ("", ".", "..") or os.path.basename(id) != id:
        return  # not a name that we gave
    import shutil  # lazy: heavy, and few delete anything  # noqa: PLC0415

    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("%s could not be removed: %s", directory, error)
