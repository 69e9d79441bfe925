"""What the dead left is recovered once, whatever lies in the home and whoever else is at it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.audit import verify as verification
from callgate.audit.journals import any_dead, dead_journals, living_journals
from callgate.audit.keys import key_path, keyed_hash, make_key, read_key, read_keys
from callgate.audit.log import AuditLog
from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord, encode
from callgate.core.effects import SideEffects
from callgate.core.events import CALLED, COMPLETED, FAILED, TERMINAL, Event
from callgate.core.ops import Acquire, Append, FinishCall, Fork, NewSession, StartCall
from callgate.core.stored import StoredSession
from callgate.core.stores import Store, StoreUnreadable, Trouble
from callgate.events.log import SessionLog
from callgate.sessions import journal_lines, recovery
from callgate.sessions.audit_comparison import compare
from callgate.sessions.recovery import Recovery, needs_recovery, recover
from tests.kernel.sessions.test_journal_lines import killed, line
from tests.memory_store import MemoryStore, Tables

CHAIN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


def log_of(home: Path, **more: Any) -> AuditLog:
    return AuditLog(str(home / "audit.jsonl"), **more)


async def recovered(home: Path, store: MemoryStore) -> bool:
    audit = log_of(home)
    try:
        async with asyncio.timeout(60):
            return await recover(store, audit, str(home / "run"))
    finally:
        audit.close()


async def ends_of(store: MemoryStore, session: str) -> list[str]:
    return [event.id for event in await store.read_events(session) if event.type in TERMINAL]


def lines_of(home: Path) -> Counter[str]:
    return Counter(each.call_id for each, _ in newest_first(str(home / "audit.jsonl")))


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [make_pipe, make_link, make_directory])
async def test_what_is_no_journal_is_neither_waited_for_nor_recovered(home: Path, make: Callable[[Path], None]) -> None:
    make(home / "run" / f"{CHAIN}.journal")
    directory = str(home / "run")
    async with asyncio.timeout(60):
        found = await asyncio.to_thread(lambda: (living_journals(directory), dead_journals(directory)))
    assert found == ([], [])
    assert not any_dead(directory)
    assert not await needs_recovery(MemoryStore(), directory)


DAMAGE = [b"", b"\xff\x00garbage", b"own_dead 1\n", b"own_dead -1 5\n", b"own_dead 1 " + b"9" * 60 + b"\n"]


@pytest.mark.parametrize("content", DAMAGE, ids=["empty", "garbage", "short", "negative", "far"])
async def test_from_a_damaged_journal_all_lines_are_read_and_no_deleted_session_comes_back(
    home: Path, content: bytes
) -> None:
    killed(home, line("kept", 1), line("deleted", 2))
    (journal,) = (home / "run").glob("*.journal")
    journal.write_bytes(content)
    store = MemoryStore()
    await store.commit(NewSession(session="kept", workspace="/w", at=1.0))
    assert await recovered(home, store)
    assert [each.id for each in store.tables.all(StoredSession)] == ["kept"]
    assert await ends_of(store, "kept") == ["e1"]
    assert not await needs_recovery(store, str(home / "run"))


async def test_lines_are_found_though_their_file_is_closed_while_others_are_read(home: Path) -> None:
    killed(home, *(line("s1", n) for n in range(6)), max_bytes=1_000)
    (journal,) = dead_journals(str(home / "run"))
    other = log_of(home)
    with journal:
        reading = journal.lines(str(home / "audit.jsonl"))
        found = [next(reading)]
        other.close_before(2**50)  # the file that was written to is closed under a number
        found += reading
    other.close()
    assert [each.call_id for each in found] == [f"c{n}" for n in range(6)]


def test_a_log_that_goes_on_in_a_new_file_meanwhile_is_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = log_of(home, max_bytes=700)
    for n in range(4):
        writer.append(line("s1", n))
        writer._looked = 0.0
    check = verification._Check.line

    def write_meanwhile(*what: Any) -> None:
        if not written:
            written.append(True)
            writer._rotate()
            writer.append(line("s1", 9))
        check(*what)

    written: list[bool] = []
    monkeypatch.setattr(verification._Check, "line", write_meanwhile)
    found = verification.verify(str(home / "audit.jsonl"))
    writer.close()
    assert written and (found.problems, found.records) == ((), 5)


@pytest.mark.parametrize(
    "hostile",
    [
        {"end": "session.created"},
        {"error_class": "no such class"},
        {"ts": 10**400},
        {"ts": -(10**17)},
        {"side_effects": "write", "end": "tool.called"},
    ],
    ids=["other event", "unknown class", "end of time", "before time", "no end"],
)
async def test_a_line_that_no_process_of_ours_wrote_hides_no_other(home: Path, hostile: dict[str, Any]) -> None:
    killed(home, line("s1", 1), line("s1", 2), line("s1", 3))
    path = home / "audit.jsonl"
    raw = [json.loads(each) for each in path.read_bytes().splitlines()]
    raw[1] |= hostile
    path.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in raw))
    store = MemoryStore()
    assert await recovered(home, store)
    types = {event.id: event.type for event in await store.read_events("s1")}
    assert {"e1", "e3"} <= types.keys()
    assert types.get("e2") in (None, COMPLETED, FAILED)
    assert not await needs_recovery(store, str(home / "run"))


class Unreadable(MemoryStore):
    """A store whose disk reports an error when a session is read."""

    is_broken = True

    async def get_session(self, session: str) -> StoredSession:
        if self.is_broken:
            raise StoreUnreadable("callgate.db", Trouble.IO)
        return await super().get_session(session)


async def test_lines_wait_for_a_store_that_cannot_be_read_now(home: Path) -> None:
    killed(home, line("s1", 1))
    store = Unreadable()
    assert not await recovered(home, store)
    assert await needs_recovery(store, str(home / "run"))
    store.is_broken = False
    assert await recovered(home, store)
    assert await ends_of(store, "s1") == ["e1"]


async def test_a_stopped_process_that_recovers_holds_up_nobody_for_good(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_WAIT_S", 0.0)
    killed(home, line("s1", 1))
    with open(home / "run" / "recovery.lock", "w") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        assert not await recovered(home, MemoryStore())
    assert await recovered(home, MemoryStore())


def record_text(record: CallRecord) -> str:
    return encode(record).decode()


async def test_a_clock_that_was_set_back_makes_no_second_line(home: Path) -> None:
    """The line of a record was written, its process killed, and the clock set back by days."""
    tables = Tables()
    dead, store = MemoryStore(tables), MemoryStore(tables)
    now = time.time_ns() // 1_000_000
    days = 3 * 24 * 3_600_000
    fence = await begin(dead, "s1")
    await end_with_effects(dead, "s1", fence, 1, now + days)
    killed(home, line("s1", 1, ts=now + days), *(line("s1", n, ts=now - 1) for n in range(2, 5)))
    await dead.close()
    assert await recovered(home, store)
    assert lines_of(home)["c1"] == 1
    assert not await store.outbox()


async def begin(store: MemoryStore, session: str) -> int:
    made = NewSession(session=session, workspace="/w", at=1.0)
    _, fence = await store.commit(made, Acquire(session=session, owner=store.owner, at=1.0))
    return int(fence)


def event(session: str, n: int, type: str, id: str, at: float) -> Event:
    payload = {"call_id": f"c{n}", "tool_use_id": f"c{n}", "success": True, "tool_name": "put"}
    return Event(id=id, timestamp=at, session_id=session, type=type, actor="tool", payload=payload)


def start_call(store: MemoryStore, session: str, fence: int, n: int, at: float) -> StartCall:
    return StartCall(
        session=session,
        fence=fence,
        event=event(session, n, CALLED, f"b{n}", at),
        call=f"c{n}",
        owner=store.owner,
        caller="cli",
        tool="put",
        tool_use_id=f"c{n}",
        side_effects=SideEffects.WRITE,
        arguments_sha256="0" * 64,
    )


async def end_with_effects(store: MemoryStore, session: str, fence: int, n: int, ts: int) -> None:
    at = ts / 1000
    start = start_call(store, session, fence, n, at)
    record = record_text(line(session, n, ts=ts, side_effects="write"))
    end = event(session, n, COMPLETED, f"e{n}", at)
    finish = FinishCall(session=session, fence=fence, event=end, call=f"c{n}", owner=store.owner, record=record)
    await store.commit(start, finish)


async def test_lines_signed_with_an_earlier_key_stay_valid_when_the_homes_share_another(home: Path) -> None:
    """A server that gets the key of its store keeps the one that signed its older lines."""
    path, shared = str(home / "audit.jsonl"), bytes(range(32))
    audit = log_of(home, max_bytes=1_000, keep=1)

    def append(numbers: range) -> None:
        for n in numbers:
            audit.append(line("s1", n))
            audit._looked = 0.0

    async def find_key(store: Store) -> bytes:
        return shared

    async def opened() -> Store:
        return store

    append(range(12))
    own = read_key(path)
    store = MemoryStore()
    recovery = Recovery(SessionLog(opened), audit, str(home / "run"), None, find_key)
    await recovery.enter(store)
    append(range(20, 30))
    audit.close()
    assert read_keys(path) == (shared, own)
    assert verification.verify(path).problems == ()
    os.unlink(key_path(path))
    assert verification.verify(path, keys=[bytes(32)]).problems, "the key of a stranger"


async def test_an_owed_line_has_a_keyed_hash(home: Path) -> None:
    """The store does not have the key of the log, so whoever writes the line hashes with it."""
    killed(home, line("s1", 1))
    tables = Tables()
    dead, store = MemoryStore(tables), MemoryStore(tables)
    fence = await begin(dead, "s2")
    await dead.commit(start_call(dead, "s2", fence, 7, 1.0))
    await dead.close()
    (call,) = await store.open_calls()
    assert await recovered(home, store)
    assert lines_of(home)["c7"] == 1
    (written,) = [each for each, _ in newest_first(str(home / "audit.jsonl")) if each.call_id == "c7"]
    assert written.args_hash == keyed_hash(make_key(str(home / "audit.jsonl")), call.arguments_sha256)


@pytest.mark.parametrize("make", [make_pipe, make_link, make_directory])
async def test_a_key_file_that_is_none_is_not_waited_for(home: Path, make: Callable[[Path], None]) -> None:
    path = str(home / "audit.jsonl")
    make(Path(key_path(path)))
    async with asyncio.timeout(60):
        key = await asyncio.to_thread(make_key, path)
    assert keyed_hash(key, "0" * 64).startswith("keyed:")


async def test_whoever_dies_while_lines_are_read_is_recovered_with_its_lines(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a call with effects is in its line only, because the store could not be written."""
    tables = Tables()
    dying, store = MemoryStore(tables), MemoryStore(tables)
    fence = await begin(dying, "s1")
    await dying.commit(start_call(dying, "s1", fence, 1, 1.0))
    log = log_of(home, journals=str(home / "run"), owner=dying.owner)
    log.append(line("s1", 1, side_effects="write", called="b1"))
    read = journal_lines.store_lines

    async def die_meanwhile(*what: Any) -> frozenset[str]:
        unread = await read(*what)
        monkeypatch.setattr(journal_lines, "store_lines", read)
        await dying.close()
        log.close()
        return unread

    monkeypatch.setattr(journal_lines, "store_lines", die_meanwhile)
    assert await recovered(home, store)
    assert await recovered(home, store)
    assert await ends_of(store, "s1") == ["e1"]
    assert lines_of(home) == {"c1": 1}


def comparing(home: Path, store: MemoryStore) -> Any:
    return compare(store, str(home / "audit.jsonl"), str(home / "run"))


async def test_lines_that_nobody_could_put_into_the_store_yet_are_no_contradiction(home: Path) -> None:
    """As in a home that became read-only after its process was killed."""
    killed(home, line("s1", 1))
    store = MemoryStore()
    await begin(store, "s1")
    assert (await comparing(home, store)).problems == ()


async def test_two_ends_of_a_call_in_the_store_are_found(home: Path) -> None:
    store = MemoryStore()
    await begin(store, "s1")
    killed(home, line("s1", 1))
    for id in ("e1", "e2"):
        await store.commit(Append(session="s1", events=(event("s1", 1, COMPLETED, id, 1.0),)))
    problems = [each.what for each in (await comparing(home, store)).problems]
    assert "call c1 has two ends in the store" in problems


async def test_a_fork_made_after_the_clock_was_set_back_ends_no_call_again(home: Path) -> None:
    store = MemoryStore()
    await begin(store, "s1")
    killed(home, line("s1", 1, ts=90_000))
    await store.commit(Append(session="s1", events=(event("s1", 1, COMPLETED, "e1", 90.0),)))
    await store.commit(Fork(session="s1", new="s2", at=50.0))
    assert (await comparing(home, store)).problems == ()


async def test_a_line_written_long_after_its_call_does_not_tell_which_lines_were_dropped(home: Path) -> None:
    """The first line that is kept was owed for a day; calls of that day had lines in dropped files."""
    store = MemoryStore()
    await begin(store, "s1")
    now = time.time()
    for n, at in ((1, now - 86_400), (2, now - 3_600)):
        await store.commit(Append(session="s1", events=(event("s1", n, COMPLETED, f"e{n}", at),)))
    dropping = log_of(home)
    dropping.append(line("s1", 2, ts=int((now - 3_600) * 1000)))
    dropping.close_before(2**50)
    dropping.close()
    killed(home, line("s1", 1, ts=int((now - 86_400) * 1000)))
    (home / "audit.000001.jsonl").write_bytes(b"")  # what is left of the newest that was dropped
    assert (await comparing(home, store)).problems == ()


def test_a_journal_that_could_not_be_made_is_made_with_a_later_line(home: Path) -> None:
    (home / "run").rmdir()
    (home / "run").write_text("no directory")
    log = log_of(home, journals=str(home / "run"), owner="own_1")
    log.append(line("s1", 1))
    (home / "run").unlink()
    log.append(line("s1", 2))
    log.close()
    (journal,) = dead_journals(str(home / "run"))
    with journal:
        assert [each.call_id for each in journal.lines(str(home / "audit.jsonl"))] == ["c1", "c2"]


def test_a_journal_that_somebody_removed_is_made_again(home: Path) -> None:
    log = log_of(home, journals=str(home / "run"), owner="own_1")
    log.append(line("s1", 1))
    for each in (home / "run").iterdir():
        each.unlink()
    log.stored(log.position)
    log.append(line("s1", 2))
    assert [each.owner for each in living_journals(str(home / "run"))] == ["own_1"]
    log.close()
    (journal,) = dead_journals(str(home / "run"))
    with journal:
        assert [each.call_id for each in journal.lines(str(home / "audit.jsonl"))] == ["c2"]


async def test_a_call_whose_start_reached_the_store_after_its_end_is_not_ended_again(home: Path) -> None:
    tables = Tables()
    dead, store = MemoryStore(tables), MemoryStore(tables)
    fence = await begin(dead, "s1")
    late = (event("s1", 1, COMPLETED, "e1", 1.0), event("s1", 1, CALLED, "b1", 1.0))
    await dead.commit(Append(session="s1", fence=fence, events=late))
    killed(home, line("s1", 1, called="b1"))
    await dead.close()
    assert await recovered(home, store)
    assert await ends_of(store, "s1") == ["e1"]
    assert lines_of(home) == {"c1": 1}
