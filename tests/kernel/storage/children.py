"""Processes that the tests of the store start, and kill.

    python -m tests.kernel.storage.children ROLE HOME ARGUMENT...

They speak in lines of JSON on stdout; a line is written when what it says is durable.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

from callgate.core.ids import call_id, session_id
from callgate.core.ops import Acquire, Append, NewSession, PutBlob, Release
from callgate.core.stores import SessionLocked, StoreUnwritable, reap_dead
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.contract.stores import event, finish, start


def say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")  # one write: a kill tears no line


def be_killed_again_and_again(home: str) -> None:
    """For each line on stdin, a fresh process that works until it is killed."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(_work(home, int(line)))
        say(born=child)
        os.waitpid(child, 0)
        say(died=child)


async def _work(home: str, seed: int) -> None:
    dice = random.Random(seed)
    store = await SqliteStore.open(home)
    for reaped in await reap_dead(store, time.time()):
        for call in reaped.interrupted:
            say(interrupted=call.id)
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(_work_in_a_session(store, dice))


async def _work_in_a_session(store: SqliteStore, dice: random.Random) -> None:
    session = session_id()
    await store.commit(NewSession(session=session, workspace="/w", at=time.time()))
    (fence,) = await store.commit(Acquire(session=session, owner=store.owner, at=time.time()))
    while True:
        notes = tuple(event(session) for _ in range(dice.randrange(1, 4)))
        (seqs,) = await store.commit(Append(session=session, fence=fence, events=notes))
        for each, seq in zip(notes, seqs, strict=True):
            say(event=each.id, session=session, seq=seq)
        begun = start(store, session, call_id(), fence=fence)
        (receipt,) = await store.commit(begun)
        say(started=begun.call, applied=receipt.applied, event=begun.event.id)
        end = finish(store, session, begun.call)
        (receipt,) = await store.commit(end)
        say(ended=begun.call, applied=receipt.applied, event=end.event.id)


async def append_many(home: str, session: str, count: str) -> None:
    """Append from several tasks at once, then say how it went."""
    store = await SqliteStore.open(home)
    ids: list[str] = []

    async def write() -> None:
        for _ in range(int(count)):
            one = event(session)
            await store.commit(Append(session=session, events=(one,)))
            ids.append(one.id)

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(write())
    await store.close()
    say(ids=ids)


async def fight(home: str, session: str, rounds: str) -> None:
    """Take the session's lock again and again, and write down under which fence."""
    store = await SqliteStore.open(home)
    fences: list[int] = []
    while len(fences) < int(rounds):
        try:
            (fence,) = await store.commit(Acquire(session=session, owner=store.owner, at=time.time()))
        except SessionLocked:
            continue
        for _ in range(3):
            note = event(session, owner=store.owner, fence=fence)
            await store.commit(Append(session=session, fence=fence, events=(note,)))
        await store.commit(Release(session=session, owner=store.owner, fence=fence))
        fences.append(fence)
    await store.close()
    say(fences=fences)


async def hold(home: str, session: str) -> None:
    """Take the session's lock, start a call, and stay."""
    store = await SqliteStore.open(home)
    (fence,) = await store.commit(Acquire(session=session, owner=store.owner, at=time.time()))
    begun = start(store, session, fence=fence)
    await store.commit(begun)
    say(owner=store.owner, fence=fence, call=begun.call)
    await asyncio.Event().wait()


async def answer_when_told(home: str, session: str) -> None:
    """Append one event for each line on stdin."""
    store = await SqliteStore.open(home)
    say(ready=True)
    for _ in sys.stdin:
        await store.commit(Append(session=session, events=(event(session, "told"),)))
    await store.close()


async def be_unprivileged(home: str, session: str) -> None:
    """As a user to whom the home does not belong: read, and try to write."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    store = await SqliteStore.open(home)
    events = await store.read_events(session)
    try:
        await store.commit(PutBlob(data=b""))
    except StoreUnwritable as error:
        say(events=len(events), reason=error.reason)
    await store.close()


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "killed":
        be_killed_again_and_again(*arguments)
    else:
        roles = {
            "append": append_many,
            "fight": fight,
            "hold": hold,
            "answer": answer_when_told,
            "unprivileged": be_unprivileged,
        }
        asyncio.run(roles[role](*arguments))
