"""Commands about sessions read what they show, however much else there is."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from callgate.cli.commands import sessions as command
from callgate.cli.commands.session_records import delete_sessions, lines, write_export
from callgate.cli.stores import find_session
from callgate.core.stores import PAGE
from tests.kernel.cli.counting import CountingStore
from tests.kernel.cli.stored import say
from tests.kernel.contract.stores import append, new_session
from tests.memory_store import MemoryStore


@pytest.fixture
async def many() -> MemoryStore:
    store = MemoryStore()
    for _ in range(300):
        await append(store, await new_session(store), "a", "b")
    return store


async def test_a_session_is_found_by_a_part_of_its_id_without_reading_the_others(many: MemoryStore) -> None:
    session = await new_session(many)
    counting = CountingStore(many)
    assert (await find_session(counting, session[-12:])).id == session
    assert counting.rows.total() < 5


async def test_deleting_reads_the_session_and_its_workers_alone(
    many: MemoryStore, monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path))
    session = await new_session(many)
    worker = await new_session(many, parent=session)
    await new_session(many, parent=worker)
    counting = CountingStore(many)
    assert await delete_sessions(counting, [session], ask=False) == [session]
    assert counting.rows.total() < 15
    assert len((await many.list_sessions(limit=1_000, workers=True)).sessions) == 300


async def test_an_export_as_lines_holds_a_page_at_a_time() -> None:
    store = MemoryStore()
    session = await new_session(store)
    await append(store, session, *["a"] * (3 * PAGE))
    counting = CountingStore(store)
    exported = [each async for each in lines(counting, await store.get_session(session))]
    assert [each.get("seq") for each in exported[1:]] == [*range(1, 3 * PAGE + 1)]
    assert counting.largest == PAGE


async def test_an_export_as_a_page_holds_a_page_at_a_time(tmp_path: Path) -> None:
    store = MemoryStore()
    session = await new_session(store)
    await append(store, session, *["tool.called"] * (3 * PAGE))
    counting: Any = CountingStore(store)
    await write_export(counting, await store.get_session(session), str(tmp_path / "page"), as_json=False)
    assert counting.largest == PAGE


async def test_a_page_about_a_session_keeps_the_first_lines_of_prompts_alone(capsys: Any, monkeypatch: Any) -> None:
    store = MemoryStore()
    session = await new_session(store)
    prompts = ["  \n first \n" + "x" * 10_000, "y" * 5_000, "   ", ""]
    for number, prompt in enumerate(prompts):
        await say(store, session, f"t{number}", "user", prompt)
    kept: dict[str, str] = {}
    monkeypatch.setattr(command, "print_page", lambda snapshot, states, turns, now: kept.update(turns))
    await command._show(store, session, False)
    assert kept == {"t0": "first ", "t1": "y" * 1_000, "t2": " ", "t3": ""}
    await command._show(store, session, True)
    assert [each["prompt"] for each in json.loads(capsys.readouterr().out)["turns"]] == prompts


async def test_a_list_reads_one_page(many: MemoryStore, capsys: Any) -> None:
    counting = CountingStore(many)
    options = Namespace(cursor=None, n=20, workers=False, json=True)
    await command._list(counting, "/w", options)
    assert len(json.loads(capsys.readouterr().out)["sessions"]) == 20
    assert counting.rows.total() <= 21
