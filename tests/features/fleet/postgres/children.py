"""Processes with a store on PostgreSQL that the tests start, stop and kill.

    python -m tests.features.fleet.postgres.children ROLE LOCATION ARGUMENT...

They speak in lines of JSON on stdout; a line is written when what it says is durable.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from callgate.core.ids import call_id, session_id
from callgate.core.ops import Acquire, Append, NewSession, Op, PutEntry, UseGrant
from callgate.core.stores import StaleOwner, StoreError, StoreUnreadable, StoreUnwritable, reap_dead
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from tests.kernel.contract.stores import event, finish, start
from tests.kernel.storage.processes import Child, child

MODULE = "tests.features.fleet.postgres.children"


def process(
    role: str, location: PostgresLocation, *arguments: object, prefix: Sequence[str] = ()
) -> AbstractAsyncContextManager[Child]:
    return child(role, msgspec.json.encode(location).decode(), *arguments, module=MODULE, prefix=prefix)


def say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")  # one write: a kill tears no line


async def _lines() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()


async def hold(location: PostgresLocation, session: str) -> None:
    """Take the session's lock and start a call; then, for each line on stdin, say how commits go.

    A line may name one of them.
    """
    async with await PostgresStore.open(location) as store:
        (fence,) = await store.commit(Acquire(session=session, owner=store.owner, at=time.time()))
        begun = start(store, session, fence=fence)
        await store.commit(begun)
        say(owner=store.owner, fence=fence, call=begun.call)
        async for line in _lines():
            attempts: dict[str, Op[Any]] = {
                "fenced": Append(session=session, fence=fence, events=(event(session, "fenced"),)),
                "unfenced": Append(session=session, events=(event(session, "unfenced"),)),
                "finish": finish(store, session, begun.call),
                "start": start(store, session),
                "new": NewSession(session=session_id(), workspace="/late", at=1.0),
                "entry": PutEntry(kind="k", name="late", value="v"),
            }
            wanted = [line] if line in attempts else attempts
            say(**{name: await _try(store, attempts[name]) for name in wanted}, is_dead=store.is_dead)


async def _try(store: PostgresStore, op: Op[Any]) -> str:
    try:
        (result,) = await store.commit(op)
    except StoreUnwritable as error:
        return error.reason
    except StoreError as error:
        return type(error).__name__
    return "done" if getattr(result, "applied", True) else "not applied"


async def probe(location: PostgresLocation, session: str) -> None:
    """For each line on stdin, commit and read; say how it went and how long it took."""
    async with await PostgresStore.open(location) as store:
        await store.commit(Append(session=session, events=(event(session),)))
        await store.read_events(session)
        say(owner=store.owner)

        async def commit() -> None:
            note = event(session)
            begin, unknown = time.monotonic(), None
            try:
                await store.commit(Append(session=session, events=(note,)))
                outcome = "done"
            except StoreUnwritable as error:
                outcome, unknown = error.reason, error.outcome_unknown
            say(commit=outcome, event=note.id, unknown=unknown, took_s=time.monotonic() - begin)

        async def read() -> None:
            begin = time.monotonic()
            try:
                await store.read_events(session)
                outcome = "done"
            except StoreUnreadable as error:
                outcome = error.reason
            say(read=outcome, took_s=time.monotonic() - begin)

        async for _ in _lines():
            await asyncio.gather(commit(), read())


async def append_to_several(location: PostgresLocation, count: str, *sessions: str) -> None:
    """Append to all sessions from several tasks at once."""
    store = await PostgresStore.open(location)
    ids: list[str] = []

    async def write(dice: random.Random) -> None:
        for _ in range(int(count)):
            session = dice.choice(sessions)
            notes = tuple(event(session) for _ in range(dice.randrange(1, 4)))
            await store.commit(Append(session=session, events=notes))
            ids.extend(each.id for each in notes)

    async with asyncio.TaskGroup() as group:
        for n in range(8):
            group.create_task(write(random.Random(n)))
    await store.close()
    for begin in range(0, len(ids), 500):
        say(ids=ids[begin : begin + 500])
    say(done=True)


def be_killed_again_and_again(location: PostgresLocation, shared: str) -> None:
    """For each line on stdin, a fresh process that works until it is killed."""
    for line in sys.stdin:
        worker = os.fork()
        if worker == 0:
            asyncio.run(_work(location, int(line), shared))
        say(born=worker)
        os.waitpid(worker, 0)
        say(died=worker)


async def _work(location: PostgresLocation, seed: int, shared: str) -> None:
    """Append and make calls in some sessions, whatever the database does; never ends.

    `shared` is a session with a grant that all processes use.
    """
    dice = random.Random(seed)
    store = await PostgresStore.open(location)
    async with asyncio.TaskGroup() as group:
        group.create_task(_reap(store))
        group.create_task(_use_grants(store, shared))
        for _ in range(4):
            group.create_task(_work_in_a_session(store, dice))


async def _use_grants(store: PostgresStore, session: str) -> None:
    while True:
        call = call_id()
        if await _insist(store, UseGrant(session=session, grant="limited", call=call, at=1.0)):
            say(granted=call)
        await asyncio.sleep(0.05)


async def _reap(store: PostgresStore) -> None:
    while True:
        try:
            for reaped in await reap_dead(store, time.time()):
                for call in reaped.interrupted:
                    say(interrupted=call.id)
        except StoreError:
            pass
        await asyncio.sleep(0.2)


async def _insist(store: PostgresStore, op: Op[Any]) -> Any:
    """As whoever makes a call does: the same ops again until there is an answer."""
    while True:
        begin = time.monotonic()
        try:
            (result,) = await store.commit(op)
            return result
        except StoreUnwritable as error:
            if store.is_dead:
                say(told_dead=store.owner)
                os._exit(0)
            say(trouble=error.reason, unknown=error.outcome_unknown, after_s=time.monotonic() - begin)
            await asyncio.sleep(0.01)


async def _work_in_a_session(store: PostgresStore, dice: random.Random) -> None:
    session = session_id()
    await _insist(store, NewSession(session=session, workspace="/w", at=time.time()))
    fence = await _insist(store, Acquire(session=session, owner=store.owner, at=time.time()))
    try:
        while True:
            notes = tuple(event(session) for _ in range(dice.randrange(1, 4)))
            seqs = await _insist(store, Append(session=session, fence=fence, events=notes))
            for each, seq in zip(notes, seqs, strict=True):
                say(event=each.id, session=session, seq=seq)
            begun = start(store, session, call_id(), fence=fence)
            receipt = await _insist(store, begun)
            say(started=begun.call, applied=receipt.applied, event=begun.event.id)
            say(effect=begun.call)  # what a tool does
            end = finish(store, session, begun.call)
            receipt = await _insist(store, end)
            say(ended=begun.call, applied=receipt.applied, event=end.event.id)
    except StaleOwner:
        say(stale=session)


if __name__ == "__main__":
    role, where, *arguments = sys.argv[1:]
    place = msgspec.json.decode(where, type=PostgresLocation)
    if role == "killed":
        be_killed_again_and_again(place, *arguments)
    else:
        roles: dict[str, Any] = {"hold": hold, "append": append_to_several, "probe": probe}
        asyncio.run(roles[role](place, *arguments))
