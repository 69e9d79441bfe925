"""`callgate sessions`: what is kept, shown, copied and deleted, beside a process that uses it."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from callgate.cli.stores import settle
from callgate.core.events import CALLED, COMPLETED, FAILED, TURN_COMPLETED, TURN_STARTED
from callgate.core.ids import call_id
from callgate.core.ops import Append, PutGrant
from callgate.core.stored import CallState, ConfirmationState, StoredGrant
from callgate.core.stores import SessionNotFound, StoreUnwritable
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.cli.running import AtTerminal, callgate
from tests.kernel.cli.stored import acquire, ask, opened, say
from tests.kernel.contract.stores import append, event, new_session, start, types
from tests.kernel.storage.disks import Disk


async def two_turns(store: SqliteStore, workspace: str = "/w") -> str:
    session = await new_session(store, workspace, title="two turns")
    for turn in ("turn_a", "turn_b"):
        await store.commit(Append(session=session, events=(event(session, TURN_STARTED, turn=turn),)))
        await say(store, session, turn, "user", f"first line of {turn}\nsecond line")
        await say(store, session, turn, "assistant", "done")
        await store.commit(Append(session=session, events=(event(session, TURN_COMPLETED, turn=turn),)))
    return session


def listed(*words: str, cwd: Path) -> list[str]:
    return [each["id"] for each in callgate("sessions", "list", "--json", *words, cwd=cwd).json["sessions"]]


def test_a_home_without_a_store_is_empty_and_stays_so(ws: Path, home: Path) -> None:
    assert callgate("sessions", "list", "--json", cwd=ws).answer == {"sessions": [], "cursor": None}
    assert callgate("events", cwd=ws)[:2] == (0, "")
    assert callgate("confirmations", "--json", cwd=ws).answer == {"confirmations": []}
    assert callgate("sessions", "show", "sess_none", cwd=ws).code == 1
    assert callgate("sessions", "delete", "sess_none", "--yes", cwd=ws).code == 1
    assert os.listdir(home) == []


async def test_the_sessions_of_a_directory_are_listed_newest_first(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        here = [await new_session(store, str(ws)) for _ in range(3)]
        there = await new_session(store, "/elsewhere")
        worker = await new_session(store, str(ws), parent=here[0])
        await append(store, here[0], "note")
    assert listed(cwd=ws) == [here[0], here[2], here[1]]
    assert listed("--all", cwd=ws) == [here[0], there, here[2], here[1]]
    assert listed("--workspace", "/elsewhere", cwd=ws) == [there]
    assert set(listed("--workers", cwd=ws)) == {*here, worker}
    lines = callgate("sessions", "list", cwd=ws).out.splitlines()
    assert [line.split()[0] for line in lines] == [here[0], here[2], here[1]]


async def test_a_list_goes_on_where_a_page_ended(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        made = [await new_session(store, str(ws)) for _ in range(3)]
    first = callgate("sessions", "list", "-n", "2", "--json", cwd=ws).json
    assert [each["id"] for each in first["sessions"]] == [made[2], made[1]]
    assert listed("-n", "2", "--cursor", first["cursor"], cwd=ws) == [made[0]]
    ran = callgate("sessions", "list", "--cursor", "nonsense", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (2, "bad_cursor")


async def test_an_empty_list_says_how_many_there_are_elsewhere(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        for _ in range(3):
            await new_session(store, "/elsewhere")
    ran = callgate("sessions", "list", cwd=ws)
    assert (ran.code, ran.out) == (0, "")
    assert "3 elsewhere" in ran.err


async def test_the_state_tells_who_is_at_work_and_who_waits(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        idle, owned, called, asked = [await new_session(store, str(ws)) for _ in range(4)]
        await acquire(store, owned)
        await store.commit(start(store, called))
        await ask(store, asked)
        shown = callgate("sessions", "list", "--json", cwd=ws).json["sessions"]
        assert {each["id"]: each["state"] for each in shown} == {
            idle: "idle",
            owned: "running",
            called: "running",
            asked: "waiting",
        }
        rows = [line.split() for line in callgate("sessions", "list", cwd=ws).out.splitlines()]
        assert {row[0]: row[4] for row in rows} == {each["id"]: each["state"] for each in shown}
        page = callgate("sessions", "show", owned, cwd=ws).out
        assert f"owned by process {os.getpid()}\n" in page


async def test_a_dead_process_s_call_shows_as_interrupted(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store, str(ws))
        await acquire(store, session)
        await store.commit(start(store, session))
        question = await ask(store, session)
    shown = callgate("sessions", "show", session, "--json", cwd=ws).json
    assert (shown["state"], shown["calls"], shown["owner_alive"]) == ("idle", [], False)
    async with opened(home) as store:
        events = await store.read_events(session)
        assert sorted(each.payload["reason"] for each in events if "reason" in each.payload) == ["interrupted"]
        assert (await store.get_confirmation(question.id)).state is ConfirmationState.WITHDRAWN


async def test_a_question_whose_time_is_over_is_closed_by_whoever_looks(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store, str(ws))
        question = await ask(store, session, turn_id="turn_a", expires_at=time.time() - 1)
        assert callgate("confirmations", "--json", cwd=ws).answer == {"confirmations": []}
        assert (await store.get_confirmation(question.id)).state is ConfirmationState.EXPIRED


async def test_a_disk_that_cannot_be_written_does_not_keep_anyone_from_reading(home: Path) -> None:
    disk = Disk()
    async with opened(home) as store:
        session = await new_session(store)
        call = start(store, session)
        await store.commit(call)
    async with await SqliteStore.open(str(home), vfs=disk.name) as store:
        disk.fail("ENOSPC", 1, times=10**9)
        with pytest.raises(StoreUnwritable):
            await append(store, session, "note")
        await settle(store)
        assert [each.id for each in await store.open_calls()] == [call.call]
        disk.heal()
        await settle(store)
        assert await store.open_calls() == []


async def test_a_page_says_what_is_known_of_a_session(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await two_turns(store, str(ws))
        grant = StoredGrant(id="g", session_id=session, tool="shell", decision="allow", uses=3)
        await store.commit(PutGrant(session=session, grant=grant))
        question = await ask(store, session, turn_id="turn_b")
        shown = callgate("sessions", "show", session, "--json", cwd=ws).json
        page = callgate("sessions", "show", session, cwd=ws).out
    assert shown["turns"] == [
        {"id": turn, "prompt": f"first line of {turn}\nsecond line"} for turn in ("turn_a", "turn_b")
    ]
    assert [each["id"] for each in shown["confirmations"]] == [question.id]
    assert [(each["id"], each["state"]) for each in shown["calls"]] == [(question.call_id, CallState.WAITING)]
    assert [each["id"] for each in shown["grants"]] == ["g"]
    for text in (
        "two turns",
        "1  turn_a  first line of turn_a\n",
        question.id,
        question.call_id,
        "allow  shell  used 0 of 3 times",
        "turns 2",
    ):
        assert text in page


@pytest.mark.spec("T16")
async def test_a_title_cannot_act_on_a_terminal(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store, str(ws), title="\x1b[2J\u202egone\nsess_FORGED  just now")
    for words in (["list"], ["show", session], ["list", "--all"]):
        out = callgate("sessions", *words, cwd=ws).out
        assert all(line.isprintable() for line in out.split("\n"))
        assert "\nsess_FORGED" not in out


async def test_a_part_of_an_id_is_enough_where_it_is_unique(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        one, two = [await new_session(store, str(ws)) for _ in range(2)]
    for part in (one, one[-6:], one[-12:].lower()):
        assert callgate("sessions", "show", part, "--json", cwd=ws).json["id"] == one
    ran = callgate("sessions", "show", one[:9], "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (2, "ambiguous")
    assert {one, two} == {word.strip(",") for word in ran.err.split() if word.startswith("sess_")}
    for part in ("", one[-2:], "sess_nothing"):
        assert callgate("sessions", "show", part, cwd=ws).code == 1
    assert callgate("sessions", "show", cwd=ws).code == 2
    assert callgate("sessions", "show", one, two, cwd=ws).code == 2


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


async def test_an_export_as_lines_holds_everything_in_order(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await two_turns(store)
    exported = lines(callgate("sessions", "export", session, "--json", cwd=ws).out)
    assert (exported[0]["kind"], exported[0]["id"]) == ("session", session)
    assert [(each["kind"], each.get("seq") or each.get("number")) for each in exported[1:]] == [
        ("event", 1),
        ("message", 1),
        ("message", 2),
        ("event", 2),
        ("event", 3),
        ("message", 3),
        ("message", 4),
        ("event", 4),
    ]
    assert lines(callgate("sessions", "export", session, "--format", "json", cwd=ws).out) == exported


async def test_an_export_into_a_file_is_readable_by_its_owner_only(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await two_turns(store)
    ran = callgate("sessions", "export", session, "-o", "out.md", cwd=ws)
    assert (ran.code, ran.out) == (0, "")
    page = ws / "out.md"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert page.read_text() == callgate("sessions", "export", session, cwd=ws).out
    assert page.read_text().count("\n## Turn ") == 2
    callgate("sessions", "export", session, "--json", "-o", "out.jsonl", cwd=ws)
    assert (ws / "out.jsonl").read_text() == callgate("sessions", "export", session, "--json", cwd=ws).out
    assert callgate("sessions", "export", session, "-o", "no/such/place", cwd=ws).code == 1


async def test_a_fork_copies_up_to_a_turn_by_number_or_id(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await two_turns(store)
        await acquire(store, session)
        forks = [
            callgate("sessions", "fork", session, "--title", "other", *words, "--json", cwd=ws).json
            for words in (["--turn", "1"], ["--turn", "turn_a"], [])
        ]
        assert [(each["forked_from"], each["title"], each["last_seq"], each["messages"]) for each in forks] == [
            (session, "other", 2, 2),
            (session, "other", 2, 2),
            (session, "other", 4, 4),
        ]
        for turn in ("3", "0", "turn_x", "٣"):
            ran = callgate("sessions", "fork", session, f"--turn={turn}", cwd=ws)
            assert (ran.code, ran.err.count("\n")) == (1, 1)
        plain = callgate("sessions", "fork", session, cwd=ws).out.strip()
        assert (await store.get_session(plain)).title == "two turns"


async def test_a_session_is_renamed_while_another_process_owns_it(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await acquire(store, session)
        assert callgate("sessions", "rename", session, "a new name", cwd=ws).code == 0
        assert (await store.get_session(session)).title == "a new name"
        assert callgate("sessions", "rename", session, "", cwd=ws).code == 0
        assert (await store.get_session(session)).title is None


async def test_deleting_takes_workers_and_artifacts_along(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        gone = await new_session(store)
        worker = await new_session(store, parent=gone)
        stays = await new_session(store)
        for each in (gone, worker, stays):
            (home / "artifacts" / each).mkdir(parents=True)
            (home / "artifacts" / each / "out.txt").write_text("x")
        ran = callgate("sessions", "delete", gone, gone, "--yes", "--json", cwd=ws)
        assert (ran.code, ran.answer) == (0, {"deleted": [gone]})
        for each in (gone, worker):
            with pytest.raises(SessionNotFound):
                await store.get_session(each)
        assert os.listdir(home / "artifacts") == [stays]
        assert (await store.get_session(stays)).id == stays


@pytest.mark.parametrize("held", ["the session", "a worker", "a call"])
async def test_nothing_is_deleted_under_a_living_process(held: str, ws: Path, home: Path) -> None:
    async with opened(home) as store:
        free, used = [await new_session(store) for _ in range(2)]
        worker = await new_session(store, parent=used)
        if held == "a call":
            await store.commit(start(store, used))
        else:
            await acquire(store, used if held == "the session" else worker)
        ran = callgate("sessions", "delete", free, used, "--yes", "--json", cwd=ws)
        assert (ran.code, ran.json["error"]["reason"]) == (3, "session_locked")
        assert f"process {os.getpid()}" in ran.err
        assert {each.id for each in (await store.list_sessions()).sessions} == {free, used}
    assert callgate("sessions", "delete", used, "--yes", cwd=ws).code == 0


async def test_deleting_asks_first(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
    ran = callgate("sessions", "delete", session, "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (3, "no_confirmer")
    assert AtTerminal("sessions", "delete", session, cwd=ws).answer("\n").end().code == 3
    assert listed("--all", cwd=ws) == [session]
    assert AtTerminal("sessions", "delete", session, cwd=ws).answer("y\n").end().code == 0
    assert listed("--all", cwd=ws) == []


@pytest.mark.parametrize("words", [["delete", "x", "--yes"], ["fork", "x"], ["rename", "x", "y"]], ids=lambda w: w[0])
def test_a_tool_s_process_changes_no_session(words: list[str], ws: Path) -> None:
    ran = callgate("sessions", *words, "--json", cwd=ws, env={"CALLGATE_CALL": "tu_1"})
    assert (ran.code, ran.json["error"]["reason"]) == (3, "within_a_call")


async def test_a_store_that_cannot_be_used_is_one_clear_error(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        await new_session(store)
    db = apsw.Connection(str(home / "callgate.db"))
    db.pragma("user_version", 1_000)  # written by a newer callgate
    db.close()
    for words in (["sessions", "list"], ["events"], ["confirmations"]):
        ran = callgate(*words, "--json", cwd=ws)
        assert (ran.code, ran.json["error"]["reason"]) == (1, "store_unusable")
        assert ran.err.count("\n") == 1


async def test_a_transcript_of_a_direct_call_names_its_end(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session, call = await new_session(store), call_id()
        await store.commit(
            Append(
                session=session,
                events=(
                    event(session, CALLED, call_id=call, tool_use_id=call, tool_name="shell"),
                    event(session, COMPLETED, call_id=call, tool_use_id=call, latency_ms=12.0),
                ),
            )
        )
        assert await types(store, session) == [CALLED, COMPLETED]
    page = callgate("sessions", "export", session, cwd=ws).out
    assert f"**Call** of `shell` (`{call}`):\n\n- completed after 12 ms\n" in page
    assert FAILED not in page
