"""A gate used oddly: it says so, loses nothing, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Gate, Message, Outcome, ToolContext, ToolUseBlock, tool
from callgate.audit.reading import newest_first
from callgate.core.errors import ToolErrorClass
from callgate.core.ops import PutGrant
from callgate.core.stored import StoredGrant
from callgate.core.stores import SessionLocked, SessionNotFound, StoreClosed


@tool(side_effects="write")
async def put(n: int) -> str:
    """Have an effect."""
    return f"put {n}"


@tool(side_effects="none")
async def chat(what: str, context: ToolContext) -> str:
    """Say odd things while it works."""
    context.progress(ValueError("no data") if what == "odd" else {"token": "AKIAIOSFODNN7EXAMPLE"})  # type: ignore[arg-type]
    return "said"


@pytest.fixture
def where(tmp_path: Path) -> dict[str, Any]:
    return {"home": tmp_path / "home", "tools": [put, chat]}


async def events_of(gate: Gate) -> list[Any]:
    await gate._wired.log.flush()
    return list(await (await gate._wired.log.store()).read_events(gate.session.id))


async def test_an_id_of_another_session_that_a_model_names_ends_nothing(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, mode="write", **where) as one, Gate(tmp_path, mode="write", **where) as two:
        first = await one.call("put", {"n": 1})
        uses = [ToolUseBlock(first.call_id, "put", {"n": 2}), ToolUseBlock("toolu_1", "put", {"n": 3})]
        results = await two.call_all(uses)
        assert [result.value for result in results] == ["put 2", "put 3"]
        assert first.call_id not in [result.call_id for result in results]
        again = await one.call_all([ToolUseBlock(first.call_id, "put", {"n": 4})])
        assert [result.value for result in again] == ["put 4"]


@pytest.mark.parametrize("what", ["odd", "secret"])
async def test_what_a_tool_says_is_data_without_secrets_or_it_is_not_kept(
    tmp_path: Path, where: Any, what: str
) -> None:
    async with Gate(tmp_path, mode="write", **where) as gate:
        assert (await gate.call("chat", {"what": what})).ok
        async with asyncio.timeout(60):
            assert (await gate.call("put", {"n": 1})).ok
        kept = await events_of(gate)
        ended = [event.payload["call_id"] for event in kept if event.type == "tool.completed"]
        assert len(ended) == 2
        assert "AKIAIOSFODNN7EXAMPLE" not in str(kept)


async def test_after_its_end_a_gate_refuses_and_nobody_waits(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, mode="write", **where) as gate:
        assert (await gate.call("put", {"n": 1})).ok
    async with asyncio.timeout(60):
        refused = await gate.call("put", {"n": 2})
        assert refused.error is not None
        assert refused.error.error_class is ToolErrorClass.SHUTTING_DOWN
        with pytest.raises(StoreClosed):
            await gate.say("late")
        with pytest.raises(StoreClosed):
            async with gate.turn("late"):
                pass
        await gate.__aexit__()


async def test_a_turn_that_could_not_begin_is_not_under_way(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, **where) as gate:
        begin = asyncio.create_task(
            gate.runtime.sessions.conversations.begin_turn(gate.session, Message.text("user", "one"))
        )
        await asyncio.sleep(0)
        begin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begin
        assert gate.session.turn_id is None
        async with gate.turn("two"):
            pass


async def test_a_grant_that_is_used_up_stays_used_up(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, **where) as gate:
        id = gate.session.id
        await gate.runtime.sessions.conversations.rename(gate.session, "x")
        grant = StoredGrant(id="g", session_id=id, tool="put", decision="allow", uses=1, used_by=("tu_1",))
        await gate._wired.log.commit(gate.session, PutGrant(session=id, grant=grant))
    async with Gate(session=id, **where) as again:
        refused = await again.call("put", {"n": 1})
        assert refused.error is not None and refused.error.reason == "no_confirmer"


async def test_a_session_is_not_resumed_twice_in_one_process(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, mode="write", **where) as gate:
        await gate.call("put", {"n": 1})
        with pytest.raises(SessionLocked):
            await gate.runtime.sessions.resume(gate.session.id)
        for odd in ("\udc80", "sess_\x00", ""):
            with pytest.raises(SessionNotFound):
                await gate.runtime.sessions.resume(odd)


async def test_a_root_that_was_taken_back_is_not_resumed(tmp_path: Path, where: Any) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    settings = tmp_path / "home" / "settings.toml"
    settings.parent.mkdir(mode=0o700)
    settings.write_text(f'[[workspace.extra_roots]]\npath = "{outside}"\naccess = "read"\n')
    (tmp_path / "ws").mkdir()
    async with Gate(tmp_path / "ws", **where) as gate:
        assert [root.path for root in gate.session.extra_roots] == [str(outside)]
        await gate.runtime.sessions.conversations.rename(gate.session, "x")
    settings.write_text("")
    async with Gate(session=gate.session.id, **where) as again:
        assert again.session.extra_roots == ()


async def test_a_store_that_was_removed_is_noticed(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, mode="write", **where) as gate:
        assert (await gate.call("put", {"n": 1})).ok
        os.unlink(tmp_path / "home" / "callgate.db")
        for n in (2, 3):
            refused = await gate.call("put", {"n": n})
            assert refused.error is not None and refused.error.reason == "store_unwritable"


@pytest.mark.parametrize("what", ["fifo", "directory", "device"])
async def test_what_is_no_file_is_not_waited_for(tmp_path: Path, where: Any, what: str) -> None:
    path = tmp_path / "home" / "callgate.db"
    path.parent.mkdir(mode=0o700)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    mode = os.stat("/dev/null").st_mode
    async with asyncio.timeout(60), Gate(tmp_path, mode="write", **where) as gate:
        assert (await gate.call("chat", {"what": "secret"})).ok
        refused = await gate.call("put", {"n": 1})
        assert refused.error is not None and refused.error.reason == "store_unwritable"
    assert os.stat("/dev/null").st_mode == mode


async def test_an_answer_after_the_time_is_over_runs_nothing(tmp_path: Path, where: Any) -> None:
    settings = tmp_path / "home" / "settings.toml"
    settings.parent.mkdir(mode=0o700)
    settings.write_text("[limits]\nconfirmation_timeout_s = 0.2\n")
    async with Gate(tmp_path, **where) as gate:
        async with gate.turn("ask"):
            result = await gate.call("put", {"n": 1})
            assert result.error is not None
            assert result.error.error_class is ToolErrorClass.CONFIRMATION_TIMEOUT
        record = [e for e in await events_of(gate) if e.type == "tool.confirmation_requested"]
        id = record[0].payload["confirmation_request_id"]
        late = await gate.runtime.permission.answer(id, Answer(decision=Outcome.ALLOW))
        assert not late.applied


@tool(side_effects="read")
async def sneak(context: ToolContext) -> str:
    """Write although it declares to read."""
    context.workspace_files.write("x.txt", "gotcha")
    return "read"


async def test_a_tool_that_writes_though_it_declares_to_read_is_stopped_and_told_of(
    tmp_path: Path,
) -> None:
    (tmp_path / "ws").mkdir()
    async with Gate(tmp_path / "ws", [sneak], home=tmp_path / "home") as gate:
        result = await gate.call("sneak")
        assert result.error is not None
        assert (result.error.error_class, result.error.reason) == (
            ToolErrorClass.PERMISSION_DENIED,
            "effect_undeclared",
        )
        told = [e.payload for e in await events_of(gate) if e.type == "tool.effect_mismatch"]
        assert [(p["declared"], p["tried"], p["path"]) for p in told] == [("read", "write", "x.txt")]
    assert list((tmp_path / "ws").iterdir()) == []
    (record,) = [record for record, _ in newest_first(str(tmp_path / "home" / "audit.jsonl"))]
    assert record.reason == "effect_undeclared"


async def test_a_workspace_that_is_gone_is_said_at_once(tmp_path: Path, where: Any) -> None:
    with pytest.raises(NotADirectoryError):
        Gate(tmp_path / "none", **where)
    (tmp_path / "ws").mkdir()
    async with Gate(tmp_path / "ws", **where) as gate:
        await gate.runtime.sessions.conversations.rename(gate.session, "x")
    (tmp_path / "ws").rmdir()
    with pytest.raises(NotADirectoryError):
        async with Gate(session=gate.session.id, **where):
            pass
