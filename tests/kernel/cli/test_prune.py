"""`callgate prune`: what is old goes, what somebody needs stays, and nothing is half deleted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from callgate.audit.log import AuditLog
from callgate.audit.verify import verify
from callgate.core.budgets import PruneSessions
from callgate.core.events import EVENTS_PRUNED
from callgate.core.ids import ulid
from callgate.core.ops import Append, AppendMessages, NewSession
from callgate.core.stored import StoredMessage
from callgate.core.stores import SessionNotFound, StoreUnwritable
from callgate.sandbox.processes.command_marks import MARK
from callgate.sessions.pruning import Bounds, Pruning, paced
from callgate.storage.sqlite.store import SqliteStore
from callgate.storage.sqlite.tables import FIRST
from tests.kernel.audit.test_log import record
from tests.kernel.cli.running import LIMIT_S, AtTerminal, callgate
from tests.kernel.cli.running import start as start_command
from tests.kernel.cli.stored import acquire, ask, opened
from tests.kernel.contract.stores import append, event, finish, new_session, start
from tests.kernel.storage.disks import Disk

DAY_S = 86_400.0
EVERYTHING = Bounds(sessions=1e12, events=1e12, artifacts=1e12, audit=1e12, fresh=1e12)


async def old_session(store: SqliteStore, *, events: int = 3, days: float = 100.0, text: str = "") -> str:
    """A session that was last used so many days ago."""
    at = time.time() - days * DAY_S
    session = "sess_" + ulid()
    notes = [event(session, "note", text=text) for _ in range(events)]
    notes = [_at(each, at) for each in notes]
    await store.commit(
        NewSession(session=session, workspace="/w", at=at),
        Append(session=session, events=tuple(notes)),
        AppendMessages(session=session, messages=(StoredMessage(id=ulid(), body={}),), at=at),
    )
    return session


def _at(happened: Any, at: float) -> Any:
    return replace(happened, timestamp=at)


def pruned(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    ran = callgate("prune", "--yes", "--json", *words, cwd=cwd, env=env)
    assert ran.code == 0, ran.err
    return {name: count for name, count in ran.answer.items() if count and name != "bytes"}


def put_aside(home: Path, session: str, *, days: float = 0.0) -> Path:
    directory = home / "artifacts" / session
    directory.mkdir(parents=True)
    file = directory / "output.txt"
    file.write_text("x" * 1000)
    for each in (file, directory):
        os.utime(each, (time.time() - days * DAY_S,) * 2)
    return file


async def sessions_of(home: Path) -> set[str]:
    async with opened(home) as store:
        return {each.id for each in (await store.list_sessions(limit=1_000, workers=True)).sessions}


async def test_what_was_not_used_for_ninety_days_goes_with_all_of_its(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        old, new = await old_session(store), await old_session(store, days=80)
    files = put_aside(home, old), put_aside(home, new)
    assert pruned(cwd=ws) == {"sessions": 1, "events": 3, "messages": 1, "artifacts": 1}
    assert await sessions_of(home) == {new}
    assert [each.exists() for each in files] == [False, True]
    assert pruned(cwd=ws) == {}


async def test_a_dry_run_says_what_would_go_and_deletes_nothing(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        old, kept = await old_session(store), await old_session(store, days=0)
        call = start(store, old)
        await store.commit(call, finish(store, old, call.call))
        session = await store.get_session(old)
    put_aside(home, old)
    ran = callgate("prune", "--dry-run", "--json", cwd=ws)
    plan = {name: count for name, count in ran.answer.items() if count and name != "bytes"}
    assert plan == {
        "dry_run": True,
        "sessions": 1,
        "events": session.last_seq,
        "calls": 1,
        "messages": 1,
        "artifacts": 1,
    }
    assert "would delete sessions 1" in callgate("prune", "--dry-run", cwd=ws).err
    assert await sessions_of(home) == {old, kept}
    del plan["dry_run"]
    assert pruned(cwd=ws) == plan


async def test_a_dry_run_counts_old_artifacts_as_they_go(ws: Path, home: Path) -> None:
    """Files that are old go one by one, the rest with its session."""
    async with opened(home) as store:
        sessions = [await old_session(store) for _ in range(2)]
    for session in sessions:
        file = put_aside(home, session, days=100)
        for number in range(3):
            other = file.with_name(f"other{number}")
            other.write_text("y")
            os.utime(other, (1.0, 1.0))
    (file.parent / "fresh").write_text("z")
    ran = callgate("prune", "--dry-run", "--json", cwd=ws)
    plan = {name: count for name, count in ran.answer.items() if count and name not in ("bytes", "dry_run")}
    assert plan["artifacts"] == 9
    assert pruned(cwd=ws) == plan
    assert os.listdir(home / "artifacts") == []


async def test_before_it_deletes_it_says_by_which_bounds(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        await old_session(store)
    since = time.strftime("%Y-%m-%d", time.localtime(time.time() - 90 * DAY_S))
    said = callgate("prune", "--dry-run", cwd=ws).err
    assert f"bounds: sessions not used since {since} " in said
    assert "sessions beyond 2 GiB" in said
    assert f"events before {since} " in said
    assert f"artifacts before {since} " in said
    assert "audit" not in said
    terminal = AtTerminal("prune", cwd=ws)
    assert f"sessions not used since {since}" in terminal.asked()
    terminal.answer("n\n").end()


async def test_with_an_age_nothing_younger_goes_however_much_there_is(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text("[retention]\nstore_bytes = 1\n")
    async with opened(home) as store:
        young = await old_session(store, days=10)
        await old_session(store, days=40)
    assert pruned("--older-than", "30d", cwd=ws)["sessions"] == 1
    assert await sessions_of(home) == {young}


async def test_pruning_asks_first(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        old = await old_session(store)
    ran = callgate("prune", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (3, "no_confirmer")
    assert AtTerminal("prune", cwd=ws).answer("\n").end().code == 3
    assert await sessions_of(home) == {old}
    assert AtTerminal("prune", cwd=ws).answer("y\n").end().code == 0
    assert await sessions_of(home) == set()
    ran = callgate("prune", cwd=ws)  # nothing to ask about
    assert (ran.code, ran.err) == (0, "nothing to prune\n")


def test_a_home_without_a_store_stays_empty(ws: Path, home: Path) -> None:
    assert pruned("--audit", cwd=ws) == {}
    assert pruned(cwd=ws) == {}
    assert os.listdir(home) == []


def test_a_tool_cannot_prune_the_record_of_what_it_did(ws: Path, home: Path) -> None:
    ran = callgate("prune", "--yes", "--json", cwd=ws, env={MARK: "call_1"})
    assert (ran.code, ran.json["error"]["reason"]) == (3, "within_a_call")


@pytest.mark.parametrize("needed", ["owned", "a running call", "a question"])
async def test_what_somebody_needs_stays_whole(needed: str, ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await old_session(store)
        file = put_aside(home, session, days=100)
        if needed == "owned":
            await acquire(store, session)
        elif needed == "a question":
            await ask(store, session)
        else:
            await store.commit(start(store, session))
        before = list(await store.read_events(session))
        assert pruned("--older-than", "1h", cwd=ws) == {}
        assert list(await store.read_events(session)) == before
        assert file.exists()


async def test_a_session_stays_while_one_that_works_for_it_runs_a_call(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await old_session(store)
        worker = await new_session(store, parent=session)
        await store.commit(start(store, worker))
        pruned("--older-than", "1h", cwd=ws)
        assert {each.id for each in (await store.list_sessions(workers=True)).sessions} == {session, worker}


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        ("sessions_days = 0\nevents_days = 0", 0),
        ("sessions_days = 200", 0),
        ("sessions_days = 99.5", 1),
        ("sessions_days = 0\nstore_bytes = 1", 1),
    ],
)
async def test_the_settings_say_how_long_sessions_are_kept(retention: str, expected: int, ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text(f"[retention]\n{retention}\n")
    async with opened(home) as store:
        await old_session(store)
    assert pruned("--sessions", cwd=ws).get("sessions", 0) == expected


@pytest.mark.parametrize("retention", ["sessions_days = -1", "sessions_day = 3", 'store_bytes = "2G"'])
async def test_nothing_goes_by_settings_that_cannot_be_read(retention: str, ws: Path, home: Path) -> None:
    async with opened(home) as store:
        old = await old_session(store)
    (home / "settings.toml").write_text(f"[retention]\n{retention}\n")
    ran = callgate("prune", "--yes", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (2, "settings_invalid")
    assert await sessions_of(home) == {old}


@pytest.mark.parametrize("age", ["30", "d", "-3d", "0d", "3 days", "9999999d"])
def test_an_age_that_is_none_is_refused(age: str, ws: Path) -> None:
    assert callgate("prune", "--yes", f"--older-than={age}", cwd=ws).code == 2


async def test_beyond_the_size_those_go_that_were_not_used_for_the_longest(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        sessions = [await old_session(store, days=60 - n, events=20, text="x" * 2_000) for n in range(40)]
        size = (await store.usage()).bytes
    (home / "settings.toml").write_text(f"[retention]\nstore_bytes = {size // 2}\n")
    assert 10 <= pruned(cwd=ws)["sessions"] <= 30
    left = await sessions_of(home)
    assert left == set(sessions[-len(left) :])
    async with opened(home) as store:
        assert (await store.usage()).bytes <= size // 2


async def test_old_events_of_a_session_that_stays_go_and_readers_are_told(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await old_session(store, events=3)
        cursor = (await store.read_all(limit=1)).cursor
        await store.commit(Append(session=session, events=(_at(event(session, "newer"), time.time()),)))
    assert pruned(cwd=ws) == {"events": 3}
    lines = callgate("events", "--session", session, "--json", cwd=ws).out.splitlines()
    shown = [json.loads(line) for line in lines]
    assert [each["type"] for each in shown] == [EVENTS_PRUNED, "newer"]
    assert shown[0]["payload"] == {"upto": 3}
    ran = callgate("events", "--session", session, "--since", "1", cwd=ws)
    assert "pruned" in ran.out
    assert "were pruned" in callgate("events", "--since", cursor, cwd=ws).err
    assert "pruned" in callgate("sessions", "export", session, cwd=ws).out
    for count, types in (("1", ["newer"]), ("2", [EVENTS_PRUNED, "newer"]), ("9", [EVENTS_PRUNED, "newer"])):
        lines = callgate("events", "--session", session, "--json", "-n", count, cwd=ws).out.splitlines()
        assert [json.loads(line)["type"] for line in lines] == types


async def test_an_event_of_a_program_that_calls_itself_pruned_is_shown_as_it_is(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await new_session(store)
        await append(store, session, EVENTS_PRUNED, EVENTS_PRUNED, "note")
    lines = callgate("events", "--session", session, "--json", cwd=ws).out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == [EVENTS_PRUNED, EVENTS_PRUNED, "note"]


async def test_directories_of_sessions_that_are_gone_are_removed(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        known = await old_session(store, days=0)
    orphan, fresh, used = (
        put_aside(home, "sess_gone", days=100),
        put_aside(home, "sess_new"),
        put_aside(home, known),
    )
    outside = home / "outside"
    outside.mkdir()
    (home / "artifacts" / "sess_link").symlink_to(outside)
    assert pruned(cwd=ws) == {"artifacts": 1}
    assert [each.exists() for each in (orphan, fresh, used, outside)] == [False, True, True, True]


async def test_old_artifacts_of_a_session_that_stays_are_removed(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        session = await old_session(store, days=0)
        file = put_aside(home, session, days=100)
        newer = file.with_name("newer")
        newer.write_text("x")
    assert pruned("--artifacts", cwd=ws) == {"artifacts": 1}
    assert (file.exists(), newer.exists()) == (False, True)


def test_the_audit_log_is_pruned_only_where_that_is_asked_for(ws: Path, home: Path) -> None:
    log = AuditLog(str(home / "audit.jsonl"))
    log.append(record(0))
    log.close()
    assert pruned("--older-than", "1d", cwd=ws) == {}
    assert pruned("--older-than", "1d", "--audit", cwd=ws) == {"audit_files": 1}
    assert verify(log.path).ok
    assert callgate("audit", "verify", cwd=ws).code == 0
    assert callgate("audit", "tail", cwd=ws).out == ""


def test_the_audit_log_has_its_own_setting(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text("[retention]\naudit_days = 30\n")
    log = AuditLog(str(home / "audit.jsonl"))
    log.append(record(0))
    log.close()
    assert pruned(cwd=ws) == {"audit_files": 1}


# Beside others, and when something goes wrong.


async def test_two_at_once_delete_everything_once(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        for _ in range(300):
            await old_session(store)
    both = [start_command("prune", "--yes", "--json", cwd=ws) for _ in range(2)]
    answers = [json.loads(each.communicate(timeout=LIMIT_S)[0]) for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert sum(each["sessions"] for each in answers) == 300
    assert sum(each["events"] for each in answers) == 900
    assert await sessions_of(home) == set()


async def test_between_two_steps_another_process_can_write(home: Path) -> None:
    async with opened(home) as store, opened(home) as other:
        kept = await new_session(other)
        await acquire(other, kept)
        for _ in range(250):
            await old_session(store, events=10)
        pruning = Pruning(store, EVERYTHING, str(home / "artifacts"), AuditLog(str(home / "audit.jsonl")))
        steps = 0
        async for _ in paced(pruning.steps()):
            steps += 1
            await other.commit(Append(session=kept, events=(event(kept),)))
        assert steps > 5
        assert pruning.tally.sessions == 250
        assert (await other.get_session(kept)).last_seq == steps


_KILLED = """
import asyncio, os, signal, sys
from callgate.audit.log import AuditLog
from callgate.sandbox.processes.command_marks import MARK
from callgate.sessions.pruning import Pruning
from callgate.sessions.pruning import Bounds
from callgate.storage.sqlite.store import SqliteStore

async def main(home, steps):
    store = await SqliteStore.open(home)
    bounds = Bounds(sessions=1e12, events=1e12, artifacts=1e12, fresh=1e12)
    pruning = Pruning(store, bounds, home + "/artifacts", AuditLog(home + "/audit.jsonl"))
    done = 0
    async for _ in pruning.steps():
        done += 1
        if done == steps:
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6])
async def test_killed_in_the_middle_every_session_is_whole_or_gone(steps: int, ws: Path, home: Path) -> None:
    async with opened(home) as store:
        sessions = [await old_session(store, events=30) for _ in range(150)]
        events = {each: list(await store.read_events(each)) for each in sessions}
    ran = subprocess.run([sys.executable, "-c", _KILLED, str(home), str(steps)], timeout=LIMIT_S)
    assert ran.returncode == -signal.SIGKILL
    async with opened(home) as store:
        for session in sessions:
            try:
                found = list(await store.read_events(session))
            except SessionNotFound:
                continue
            assert found == events[session]
        listed = (await store.list_sessions(limit=1_000)).sessions
        assert len((await store.read_all(limit=10_000)).events) == 30 * len(listed)
    assert pruned(cwd=ws).get("sessions", 0) == len(listed)
    db = apsw.Connection(str(home / "callgate.db"))
    tables = ("sessions", "events", "messages", "calls", "dropped_sessions")
    assert [db.execute(f"select count(*) from {each}").fetchall() for each in tables] == [[(0,)]] * len(tables)
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)]


async def test_interrupted_it_stops_after_a_step(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        for _ in range(300):
            await old_session(store)
    running = start_command("prune", "--yes", cwd=ws)
    # A signal before the interpreter has started ends it with 1, so wait for the first step.
    async with asyncio.timeout(LIMIT_S):
        while running.poll() is None and len(await sessions_of(home)) == 300:
            pass
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=LIMIT_S)
    assert running.returncode in (0, 130)
    pruned(cwd=ws)
    assert await sessions_of(home) == set()


async def test_a_step_that_has_begun_is_counted_when_it_is_interrupted(home: Path) -> None:
    async with opened(home) as store:
        sessions = [await old_session(store) for _ in range(10)]
        files = [put_aside(home, session) for session in sessions]
        begun, proceed = asyncio.Event(), asyncio.Event()

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def commit(self, *ops: Any) -> Any:
                result = await store.commit(*ops)
                if isinstance(ops[0], PruneSessions):
                    begun.set()
                    await proceed.wait()
                return result

        slow: Any = Slow()
        bounds = Bounds(sessions=1e12, fresh=1e12)
        pruning = Pruning(slow, bounds, str(home / "artifacts"), AuditLog(str(home / "audit.jsonl")))

        async def prune() -> None:
            async for _ in paced(pruning.steps()):
                pass

        task = asyncio.create_task(prune())
        async with asyncio.timeout(LIMIT_S):
            await begun.wait()
            task.cancel()
            await asyncio.sleep(0)
            proceed.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert pruning.tally.sessions == 10
        assert not any(file.exists() for file in files)


async def test_on_a_full_disk_files_make_room_for_the_store(home: Path) -> None:
    async with opened(home) as store:
        kept = await old_session(store, days=0)
    file = put_aside(home, kept, days=100)
    disk = Disk()
    async with await SqliteStore.open(str(home), vfs=disk.name) as store:
        await new_session(store)
        disk.fail("ENOSPC", 1, 1_000_000)
        pruning = Pruning(store, EVERYTHING, str(home / "artifacts"), AuditLog(str(home / "audit.jsonl")))
        with pytest.raises(StoreUnwritable):
            async for _ in pruning.steps():
                pass
        disk.heal()
    assert not file.exists()


async def test_a_full_disk_deletes_nothing_by_half(home: Path) -> None:
    async with opened(home) as store:
        sessions = [await old_session(store, events=20) for _ in range(20)]
    disk = Disk()
    async with await SqliteStore.open(str(home), vfs=disk.name) as store:
        audit = AuditLog(str(home / "audit.jsonl"))
        await new_session(store)
        disk.fail("ENOSPC", 1, 1_000_000)
        with pytest.raises(StoreUnwritable):
            async for _ in Pruning(store, EVERYTHING, str(home / "artifacts"), audit).steps():
                pass
        disk.heal()
        for session in sessions:
            assert len(await store.read_events(session)) == 20
        pruning = Pruning(store, EVERYTHING, str(home / "artifacts"), audit)
        async for _ in pruning.steps():
            pass
        assert pruning.tally.sessions == 21


# The size of the file.


async def test_the_room_goes_back_to_the_disk(ws: Path, home: Path) -> None:
    async with opened(home) as store:
        for _ in range(50):
            await old_session(store, events=20, text="x" * 5_000)
    path = home / "callgate.db"
    before = path.stat().st_size
    assert pruned(cwd=ws)["sessions"] == 50
    assert path.stat().st_size < before // 4


def _made_by_an_older_callgate(home: Path) -> None:
    home.mkdir(exist_ok=True)
    db = apsw.Connection(str(home / "callgate.db"))
    db.pragma("journal_mode", "wal")
    db.execute(f"begin; {FIRST}; pragma application_id = {0x63676174}; pragma user_version = 1; commit")
    db.close()


async def test_an_older_file_shrinks_once_it_was_written_anew(ws: Path, home: Path) -> None:
    _made_by_an_older_callgate(home)
    path = home / "callgate.db"
    async with opened(home) as store:
        for _ in range(50):
            await old_session(store, events=20, text="x" * 5_000)
    before = path.stat().st_size
    ran = callgate("prune", "--yes", cwd=ws)
    assert "--vacuum" in ran.err
    assert path.stat().st_size >= before
    async with opened(home) as store:
        await new_session(store)
        ran = callgate("prune", "--yes", "--vacuum", "--json", cwd=ws)
        assert (ran.code, ran.json["error"]["reason"]) == (1, "store_unusable")  # another has it open
    assert callgate("prune", "--yes", "--vacuum", cwd=ws).code == 0
    assert path.stat().st_size < before // 4
    ran = callgate("prune", "--yes", cwd=ws)
    assert "--vacuum" not in ran.err
