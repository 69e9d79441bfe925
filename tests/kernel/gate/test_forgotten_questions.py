"""Once a call has ended, nothing on the disk says what it was asked about with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from callgate import Answer, Gate, Outcome, tool
from callgate.core.ops import FinishCall, PutConfirmation, ResolveConfirmation
from callgate.core.stored import ConfirmationState
from callgate.storage.sqlite import tables
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.contract.stores import answer, ask, event, new_session

SECRET = "xyzzy-plover-4711"


@tool(side_effects="write", requires_workspace=False)
def save(password: str) -> str:
    """Save a text, and do not tell it again."""
    return "saved"


def anywhere(home: Path) -> list[str]:
    """The files of the store in which the secret stands."""
    return [each.name for each in home.glob("callgate.db*") if SECRET.encode() in each.read_bytes()]


async def until_gone(home: Path) -> None:
    """The log is shortened after the answer has left."""
    async with asyncio.timeout(60):
        while anywhere(home):
            await asyncio.sleep(0.01)


@pytest.mark.spec("T43")
@pytest.mark.parametrize(
    "reply",
    [
        True,
        False,
        Answer(decision=Outcome.DENY, reason=f"the password is: {SECRET}"),
        Answer(decision=Outcome.ALLOW, arguments={"password": SECRET + "!"}),
    ],
)
async def test_an_answered_question_leaves_no_arguments_in_the_store(home: Path, tmp_path: Path, reply: Any) -> None:
    asked = []

    async def confirm(question: Any) -> Any:
        asked.append(anywhere(home))
        return reply

    async with Gate(tmp_path, [save], confirm=confirm) as gate:
        await gate.call("save", {"password": SECRET})
        assert asked[0], "the question is on the disk while it waits"
        await until_gone(home)


def question(store: Any, session: str) -> PutConfirmation:
    inner = {"arguments": {"password": SECRET}, "preview": SECRET, "why": SECRET, "tool": "save"}
    made = ask(store, session)
    return PutConfirmation(
        **{name: getattr(made, name) for name in made.__struct_fields__ if name != "question"},
        question={"question": inner, "call": {"caller": "cli"}},
    )


@pytest.mark.parametrize("state", [ConfirmationState.EXPIRED, ConfirmationState.WITHDRAWN])
async def test_a_question_that_nobody_answered_leaves_none_either(home: Path, state: ConfirmationState) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        asked = question(store, session)
        await store.commit(asked)
        closing: ResolveConfirmation = answer(asked, state)
        await store.commit(closing)
        await store.commit(
            FinishCall(
                session=session,
                call=asked.call,
                owner=store.owner,
                event=event(session, "tool.failed", call_id=asked.call),
            )
        )
        await until_gone(home)
        kept = await store.get_confirmation(asked.confirmation)
        assert (kept.state, kept.question["question"]["tool"]) == (state, "save")


async def test_a_question_that_another_replaces_leaves_none(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        asked = question(store, session)
        await store.commit(asked)
        await store.commit(ask(store, session, call=asked.call))
        await until_gone(home)


async def test_an_older_file_is_cleaned_when_it_is_opened(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        ended, open_one = question(store, session), question(store, session)
        await store.commit(ended, open_one)
    db = apsw.Connection(str(home / "callgate.db"))  # as a version before this left it
    db.execute("update calls set state = 'ended' where id = ?", (ended.call,))
    db.execute("update confirmations set state = 'denied' where id = ?", (ended.confirmation,))
    db.pragma("user_version", tables.MIGRATIONS.index(tables.FORGET_ENDED))
    db.close()
    async with await SqliteStore.open(str(home)) as store:
        kept = await store.get_confirmation(ended.confirmation)
        assert kept.question["question"]["arguments"] == {}
        assert SECRET not in str(kept)
        waiting = await store.get_confirmation(open_one.confirmation)
        assert waiting.question["question"]["arguments"] == {"password": SECRET}
