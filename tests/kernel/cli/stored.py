"""A home with sessions in it, filled as a runtime fills it, for the commands that show them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.effects import SideEffects
from callgate.core.events import CONFIRMATION_REQUESTED
from callgate.core.ids import ulid
from callgate.core.ops import Acquire, AppendMessages
from callgate.core.sessions import Session
from callgate.core.stored import StoredMessage
from callgate.core.stores import Store
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.contract.stores import event


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[SqliteStore]:
    """The store of this process; it lives until the end of the block."""
    async with await SqliteStore.open(str(home)) as store:
        yield store


async def acquire(store: Store, session: str) -> int:
    (fence,) = await store.commit(Acquire(session=session, owner=store.owner, at=time.time()))
    return fence


async def say(store: Store, session: str, turn: str | None, role: str, *blocks: Any) -> None:
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    message = StoredMessage(id=ulid(), turn_id=turn, body={"role": role, "content": content})
    await store.commit(AppendMessages(session=session, messages=(message,), at=time.time()))


async def ask(store: Store, session: str, **more: Any) -> Confirmation:
    """Put a question of this process about a call of `shell`."""
    given: dict[str, Any] = {
        "tool": "shell",
        "side_effects": SideEffects.EXECUTE,
        "destructive": False,
        "arguments": {"command": "make test"},
        "arguments_sha256": "a" * 64,
        "workspace": "/w",
        "why": "Calls with effect execute need approval by default.",
        "input_summary": "",
        "expires_at": time.time() + 300,
        "turn_id": None,
    }
    given |= more
    call = ToolCall(
        tool=given["tool"],
        arguments=given["arguments"],
        session=Session(id=session, workspace="/w"),
        caller=CallerKind.AGENT,
        turn_id=given["turn_id"],
    )
    asked = event(session, CONFIRMATION_REQUESTED, call_id=call.id, turn=given["turn_id"])
    question = Confirmation(
        id=ulid(),
        call_id=call.id,
        tool_use_id=call.id,
        session_id=session,
        event_id=asked.id,
        **given,
    )
    await store.commit(questions.put(call, question, asked, store.owner))
    return question
