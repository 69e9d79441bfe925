"""A home with as many calls as wanted, written by the store's and the audit log's own writers.

Of N calls a tenth is in one session and the rest in sessions of ten calls each, in fifty
workspaces. Every home has twenty calls of a rare tool.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callgate.audit.log import AuditLog
from callgate.audit.records import CallRecord
from callgate.config.home import Home
from callgate.core.effects import SideEffects
from callgate.core.events import CALLED, COMPLETED, Event
from callgate.core.ids import call_id, session_id, ulid
from callgate.core.ops import Append, AppendMessages, FinishCall, NewSession, Op, StartCall
from callgate.core.stored import StoredMessage
from callgate.storage.sqlite.store import SqliteStore

FORMAT = 2
"""To be raised when a home is made differently."""
BATCH = 500
"""Calls in a commit."""
WORKSPACES = 50
RARE = 20
TURN = 100
"""Calls in a turn of the large session."""


class GrownHome(msgspec.Struct, kw_only=True):
    path: str
    calls: int
    workspace: str
    """Where one in fifty sessions works."""
    large: str
    """The session with a tenth of all calls."""
    small: str
    """One of those with ten."""


def add_session(home: GrownHome, calls: int) -> str:
    """One more session, to be deleted; its calls are not in the audit log."""
    return asyncio.run(_add_session(home, calls))


async def _add_session(home: GrownHome, calls: int) -> str:
    session = session_id()
    async with await SqliteStore.open(home.path) as store:
        await store.commit(NewSession(session=session, workspace=home.workspace, at=time.time()))
        for _ in range(0, calls, BATCH):
            await store.commit(
                *(
                    op
                    for _ in range(min(BATCH, calls))
                    for op in _call(store.owner, session, "read_file", None, with_effects=True)[1]
                )
            )
    return session


def grown_home(directory: str, calls: int) -> GrownHome:
    """The home of that many calls; made once, and again when it would be made differently."""
    path = os.path.join(directory, f"home-{calls}")
    facts = os.path.join(path, f"grown-{FORMAT}.json")
    if not os.path.exists(facts):
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path, mode=0o700)
        made = asyncio.run(_grow(path, calls))
        with open(facts, "wb") as file:
            file.write(msgspec.json.encode(made))
    with open(facts, "rb") as file:
        return msgspec.json.decode(file.read(), type=GrownHome)


async def _grow(path: str, calls: int) -> GrownHome:
    large = session_id()
    small = session_id()
    sizes = {large: calls // 10, small: 10}
    for _ in range((calls - sum(sizes.values())) // 10):
        sizes[session_id()] = 10
    audit = AuditLog(Home(path).audit)
    async with await SqliteStore.open(path) as store:
        batch: list[Op[Any]] = []
        for number, op in enumerate(_ops(store.owner, audit, sizes, large)):
            batch.append(op)
            if number % (2 * BATCH) == 0:
                await store.commit(*batch)
                batch = []
        await store.commit(*batch)
    audit.close()
    return GrownHome(
        path=path,
        calls=calls,
        workspace=_workspace(1),
        large=large,
        small=small,
    )


def _ops(owner: str, audit: AuditLog, sizes: dict[str, int], large: str) -> Iterator[Op[Any]]:
    every = max(sum(sizes.values()) // RARE, 1)
    done = 0
    for place, (session, size) in enumerate(sizes.items()):
        workspace = _workspace(place)
        yield NewSession(session=session, workspace=workspace, title="A title", at=time.time())
        for number in range(size):
            turn = None
            if session == large:
                turn = f"turn_{number // TURN:06d}"
                if number % TURN == 0:
                    yield _prompt(session, turn)
            done += 1
            tool = "rare_tool" if done % every == 0 else "read_file"
            ended, ops = _call(owner, session, tool, turn, with_effects=number % 4 == 0)
            yield from ops
            audit.append(_record(ended, tool, workspace))


def _workspace(place: int) -> str:
    return f"/workspaces/{place % WORKSPACES}"


def _prompt(session: str, turn: str) -> Op[Any]:
    body = {"role": "user", "content": f"Do the next thing, number {turn}, and say how it went."}
    message = StoredMessage(id=ulid(), turn_id=turn, body=body)
    return AppendMessages(session=session, messages=(message,), at=time.time())


def _call(
    owner: str, session: str, tool: str, turn: str | None, *, with_effects: bool
) -> tuple[Event, Sequence[Op[Any]]]:
    """The event with which a call ends, and all that is stored of it."""
    id = call_id()
    began, ended = (_event(session, type, id, tool, turn) for type in (CALLED, COMPLETED))
    if not with_effects:
        return ended, [Append(session=session, events=(began, ended))]
    return ended, [
        StartCall(
            session=session,
            call=id,
            owner=owner,
            tool=tool,
            tool_use_id=id,
            turn_id=turn,
            side_effects=SideEffects.WRITE,
            arguments_sha256="a" * 64,
            event=began,
        ),
        FinishCall(session=session, call=id, owner=owner, event=ended),
    ]


def _event(session: str, type: str, call: str, tool: str, turn: str | None) -> Event:
    return Event(
        id=ulid(),
        timestamp=time.time(),
        session_id=session,
        turn_id=turn,
        type=type,
        actor="agent",
        payload={
            "tool_name": tool,
            "input_hash": "a" * 64,
            "input_size_bytes": 222,
            "side_effects": "write",
            "tool_use_id": call,
            "call_id": call,
        },
    )


def _record(ended: Event, tool: str, workspace: str) -> CallRecord:
    return CallRecord(
        id=f"audit_{ended.id}",
        ts=int(ended.timestamp * 1000),
        caller="socket",
        principal="local",
        tool=tool,
        decision="allow",
        call_id=ended.payload["call_id"],
        session=ended.session_id,
        cwd=workspace,
        args='{"path":"src/package/module.py"}',
        args_hash="a" * 64,
        result="the beginning of a file",
        ms=1.25,
        side_effects="none",
        source="builtin",
    )
