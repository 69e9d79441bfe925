"""The file itself: made private, migrated, refused when too new, saved when damaged."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import apsw
import pytest

from callgate.core.budgets import PruneEvents, PruneSessions
from callgate.core.events import EVENTS_PRUNED
from callgate.core.ids import ulid
from callgate.core.ops import Append, AppendMessages, Fork, PutBlob, PutEntry
from callgate.core.stored import StoredMessage
from callgate.core.stores import (
    SessionNotFound,
    Store,
    StoreDamaged,
    StoreTooNew,
    StoreUnwritable,
    Trouble,
)
from callgate.storage.sqlite import files, tables
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.contract.stores import append, ask, event, new_session, start, types
from tests.kernel.storage.processes import child
from tests.needs import needs


def _version(home: Path) -> int:
    db = apsw.Connection(str(home / "callgate.db"))
    try:
        return int(db.pragma("user_version"))
    finally:
        db.close()


async def _filled(home: Path, sessions: int = 3, events: int = 200) -> list[str]:
    async with await SqliteStore.open(str(home)) as store:
        made = [await new_session(store, title=f"session {n}") for n in range(sessions)]
        for session in made:
            notes = tuple(event(session, text="x" * 300) for _ in range(events))
            message = StoredMessage(id=ulid(), body={"text": "hello"})
            await store.commit(
                Append(session=session, events=notes),
                AppendMessages(session=session, messages=(message,), at=1.0),
                start(store, session),
                ask(store, session),
            )
        await store.commit(PutEntry(kind="s", name="t", value="1"), PutBlob(data=b"blob"))
    return made


async def test_a_read_makes_no_file_and_a_commit_makes_a_private_one(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        assert list((await store.list_sessions()).sessions) == []
        with pytest.raises(SessionNotFound):
            await store.get_session("sess_x")
        assert os.listdir(home) == []
        session = await new_session(store)
        assert await types(store, session) == []
        made = [home / name for name in ("callgate.db", "callgate.db-wal", "callgate.db-shm")]
        made += (home / "run").iterdir()
        assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
        assert stat.S_IMODE((home / "run").stat().st_mode) == 0o700
    assert sorted(os.listdir(home)) == ["callgate.db", "run"]
    assert os.listdir(home / "run") == []


async def test_a_file_that_others_could_read_is_closed_to_them(home: Path) -> None:
    await _filled(home, events=1)
    (home / "callgate.db").chmod(0o644)
    async with await SqliteStore.open(str(home)) as store:
        await new_session(store)
        assert stat.S_IMODE((home / "callgate.db").stat().st_mode) == 0o600


async def test_an_older_file_is_migrated_and_keeps_what_it_holds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [session] = await _filled(home, sessions=1, events=5)
    assert _version(home) == len(tables.MIGRATIONS)
    more = (*tables.MIGRATIONS, "alter table sessions add column colour text default 'blue'")
    monkeypatch.setattr(files, "MIGRATIONS", more)
    monkeypatch.setattr(files, "migrate", lambda db, path: tables.migrate(db, path, more))
    monkeypatch.setattr(files, "version_of", lambda db, path: tables.version_of(db, path, len(more)))
    async with await SqliteStore.open(str(home)) as store:
        assert _version(home) == len(more)
        assert len(await store.read_events(session)) == 7


async def test_a_migration_that_fails_changes_nothing(home: Path) -> None:
    await _filled(home, events=1)
    path = str(home / "callgate.db")
    db = apsw.Connection(path)
    broken = (*tables.MIGRATIONS, "create table made (x); create table made (x)")
    with pytest.raises(apsw.SQLError):
        tables.migrate(db, path, broken)
    assert not db.table_exists("main", "made")
    assert int(db.pragma("user_version")) == len(tables.MIGRATIONS)
    db.close()


async def test_processes_that_make_the_file_at_once_make_one(home: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(str(home)) for _ in range(6)))
    sessions = await asyncio.gather(*(new_session(store) for store in stores))
    listed = (await stores[0].list_sessions()).sessions
    assert {each.id for each in listed} == set(sessions)
    for store in stores:
        await store.close()


async def test_opening_a_file_to_write_writes_nothing(home: Path) -> None:
    await _filled(home, events=1)
    path = home / "callgate.db"
    before = path.read_bytes()
    db = files.open_writer(files.Location(home=str(home)))
    assert int(db.pragma("auto_vacuum")) == tables.INCREMENTAL
    assert (path.read_bytes(), (home / "callgate.db-wal").stat().st_size) == (before, 0)
    db.close()


async def test_a_newer_file_is_refused_and_left_alone(home: Path) -> None:
    await _filled(home, events=1)
    path = home / "callgate.db"
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew) as refused:
        await SqliteStore.open(str(home))
    assert (refused.value.found, refused.value.known) == (99, len(tables.MIGRATIONS))
    assert path.read_bytes() == before


async def test_a_file_that_becomes_newer_while_it_is_open_is_not_written(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        db = apsw.Connection(str(home / "callgate.db"))
        db.pragma("user_version", 99)
        db.close()
        with pytest.raises(StoreTooNew):
            await append(store, session, "not written")


async def test_a_file_that_is_being_made_reads_as_empty(home: Path) -> None:
    (home / "callgate.db").touch()
    async with await SqliteStore.open(str(home)) as store:
        assert list((await store.list_sessions()).sessions) == []
        session = await new_session(store)
        assert await types(store, session) == []


async def test_a_file_whose_tables_changed_under_a_reader_is_too_new(home: Path) -> None:
    [session] = await _filled(home, sessions=1, events=1)
    async with await SqliteStore.open(str(home)) as store:
        await store.read_events(session)
        db = apsw.Connection(str(home / "callgate.db"))
        db.execute("alter table events rename to occurrences; pragma user_version = 99")
        db.close()
        with pytest.raises(StoreTooNew):
            await store.read_events(session)


async def test_an_older_file_that_cannot_be_migrated_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _filled(home, sessions=1, events=1)
    monkeypatch.setattr(files, "MIGRATIONS", (*tables.MIGRATIONS, "select 1"))

    def refuse(db: apsw.Connection, path: str) -> None:
        raise apsw.ReadOnlyError

    monkeypatch.setattr(files, "migrate", refuse)
    with pytest.raises(StoreUnwritable):
        await SqliteStore.open(str(home))


async def test_a_database_of_someone_else_is_refused_and_left_alone(home: Path) -> None:
    path = home / "callgate.db"
    db = apsw.Connection(str(path))
    db.execute("create table theirs (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreDamaged):
        await SqliteStore.open(str(home))
    assert path.read_bytes() == before


def _smash_header(data: bytearray) -> None:
    data[:100] = os.urandom(100)


def _smash_first_page(data: bytearray) -> None:
    data[:4096] = bytes(4096)


def _cut_off(data: bytearray) -> None:
    del data[len(data) // 2 :]


def _zero_the_middle(data: bytearray) -> None:
    half = len(data) // 2 // 4096 * 4096
    data[half : half + 3 * 4096] = bytes(3 * 4096)


@pytest.mark.spec("T46")
@pytest.mark.parametrize("damage", [_smash_header, _smash_first_page, _cut_off])
async def test_a_damaged_file_is_reported_saved_and_left_alone(home: Path, damage: object) -> None:
    sessions = await _filled(home)
    path = home / "callgate.db"
    data = bytearray(path.read_bytes())
    damage(data)  # type: ignore[operator]
    path.write_bytes(data)
    with pytest.raises(StoreDamaged) as reported:
        await SqliteStore.open(str(home))
    assert path.read_bytes() == data
    salvage = reported.value.salvage
    assert salvage is not None
    assert salvage.rows["events"] >= 100
    assert salvage.rows["events"] + salvage.lost_events >= 600
    assert stat.S_IMODE(os.stat(salvage.path).st_mode) == 0o600
    if damage is not _cut_off:
        assert salvage.lost_events == 0
        assert salvage.rows == {
            "sessions": 3,
            "events": 606,
            "messages": 3,
            "calls": 6,
            "confirmations": 3,
            "blobs": 1,
            "entries": 1,
        }
    # What was saved is a sound store, and the same one if it is met again.
    with pytest.raises(StoreDamaged) as again:
        await SqliteStore.open(str(home))
    assert again.value.salvage == salvage
    shutil.rmtree(home / "run")
    path.unlink()
    os.rename(salvage.path, path)
    async with await SqliteStore.open(str(home)) as store:
        listed = (await store.list_sessions()).sessions
        assert {each.id for each in listed} <= set(sessions)
        assert sum(each.last_seq for each in listed) >= salvage.rows["events"]
        await append(store, listed[0].id, "goes on")


@pytest.mark.spec("T46")
async def test_damage_in_the_middle_is_met_reported_and_stepped_over(home: Path) -> None:
    sessions = await _filled(home)
    path = home / "callgate.db"
    data = bytearray(path.read_bytes())
    _zero_the_middle(data)
    path.write_bytes(data)
    async with await SqliteStore.open(str(home)) as store:  # it has not been met yet
        with pytest.raises(StoreDamaged):
            for session in sessions:
                await store.read_events(session)
    with pytest.raises(StoreDamaged) as reported:  # now the whole file is looked at
        await SqliteStore.open(str(home))
    salvage = reported.value.salvage
    assert salvage is not None
    assert 0 < salvage.lost_events <= 60
    assert salvage.rows["events"] + salvage.lost_events == 606
    saved = home / "saved"
    saved.mkdir()
    shutil.copyfile(salvage.path, saved / "callgate.db")
    async with await SqliteStore.open(str(saved)) as store:
        missed = 0
        for session in sessions:
            events = await store.read_events(session)
            assert len(events) == (await store.get_session(session)).last_seq
            missed += sum(e.payload["missed"] for e in events if e.type == "store.events_lost")
        assert missed == salvage.lost_events


@pytest.mark.spec("T46")
async def test_an_event_whose_text_is_damaged_does_not_hide_the_others(home: Path) -> None:
    [session] = await _filled(home, sessions=1, events=5)
    path = home / "callgate.db"
    data = path.read_bytes()
    at = data.index(b'"type":"note"')
    path.write_bytes(data[:at] + bytes(13) + data[at + 13 :])
    async with await SqliteStore.open(str(home)) as store:
        seen = await types(store, session)
        assert sorted(seen) == sorted(
            ["note"] * 4 + ["store.events_lost", "tool.called", "tool.confirmation_requested"]
        )
        everything = (await store.read_all()).events
        assert sorted(each.type for each in everything) == sorted(seen)
        (fork,) = await store.commit(Fork(session=session, new="sess_fork", at=1.0))
        assert fork.last_seq == len(seen) + 1  # its call was under way


async def test_a_store_that_met_damage_writes_no_more(home: Path) -> None:
    sessions = await _filled(home)
    path = home / "callgate.db"
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096] = 0xEE  # no page of any kind begins like this
    path.write_bytes(data)
    with pytest.raises(StoreDamaged):
        async with await SqliteStore.open(str(home)) as store:
            await append(store, sessions[0], "not written")
    assert path.read_bytes() == data


@needs("root")
async def test_a_home_that_cannot_be_written_is_read_and_refuses_commits(tmp_path: Path) -> None:
    home = tmp_path / "home"
    [session] = await _filled(home, sessions=1, events=5)
    for path, mode in ((home / "callgate.db", 0o444), (home, 0o555), (tmp_path, 0o755)):
        path.chmod(mode)
    for parent in list(tmp_path.parents)[:-2]:
        parent.chmod(parent.stat().st_mode | 0o711)
    async with child("unprivileged", home, session) as other:
        assert await other.hear() == {"events": 7, "reason": Trouble.READ_ONLY}


@needs("no root")
async def test_a_home_that_is_read_only_is_read_and_refuses_commits(home: Path) -> None:
    [session] = await _filled(home, sessions=1, events=5)
    os.chmod(home / "callgate.db", 0o444)
    os.chmod(home, 0o555)
    async with await SqliteStore.open(str(home)) as store:
        await _reads_but_does_not_write(store, session)
        os.chmod(home, 0o755)
        os.chmod(home / "callgate.db", 0o600)
        await append(store, session, "now it can")


async def _reads_but_does_not_write(store: Store, session: str) -> None:
    assert len(await store.read_events(session)) == 7
    with pytest.raises(StoreUnwritable) as refused:
        await append(store, session, "not written")
    assert refused.value.reason is Trouble.READ_ONLY


@needs("root", "mount")
async def test_a_disk_that_is_really_full_is_read_and_recovers(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(place)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("needs mount: it is not allowed here")
    try:
        await _fill(place)
    finally:
        subprocess.run(["umount", str(place)], check=True)


async def _fill(place: Path) -> None:
    home, rest = str(place / "home"), place / "rest"
    async with await SqliteStore.open(home) as store:
        session, written = await new_session(store), 0
        with pytest.raises(StoreUnwritable) as refused:
            while True:
                large = event(session, text="x" * 20_000)
                await store.commit(Append(session=session, events=(large,)))
                written += 1
        assert refused.value.reason is Trouble.FULL
        assert len(await store.read_events(session)) == written
    with contextlib.suppress(OSError), rest.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    async with await SqliteStore.open(home) as store:  # as a process that starts now
        assert len(await store.read_events(session)) == written
        with pytest.raises(StoreUnwritable):
            await new_session(store)
        subprocess.run(["mount", "-o", "remount,size=9000k", str(place)], check=True)
        await append(store, session, "there is room again")
        assert (await store.get_session(session)).last_seq == written + 1


async def test_a_home_that_does_not_exist_and_cannot_be_made_refuses_commits(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    async with await SqliteStore.open(str(tmp_path / "file" / "home")) as store:
        assert list((await store.list_sessions()).sessions) == []
        with pytest.raises(StoreUnwritable) as refused:
            await new_session(store)
        assert refused.value.reason is Trouble.NO_ACCESS
        (tmp_path / "file").unlink()
        await new_session(store)


async def test_what_was_pruned_is_neither_lost_nor_brought_back_by_damage(home: Path) -> None:
    async with await SqliteStore.open(str(home)) as store:
        gone, kept = await new_session(store), await new_session(store)
        await append(store, gone, "a")
        events = await append(store, kept, "b", "c", "d")
        await store.commit(PruneSessions(before=events[0].timestamp))
        assert (await store.commit(PruneEvents(before=events[1].timestamp)))[0].events == 1
    path = home / "callgate.db"
    data = bytearray(path.read_bytes())
    data += bytes(4096)
    data[28:32] = (len(data) // 4096).to_bytes(4, "big")
    path.write_bytes(data)
    (home / "callgate.db-damaged").touch()
    with pytest.raises(StoreDamaged) as reported:
        await SqliteStore.open(str(home))
    salvage = reported.value.salvage
    assert salvage is not None
    assert (salvage.rows["sessions"], salvage.rows["events"], salvage.lost_events) == (1, 2, 0)
    os.rename(salvage.path, path)
    async with await SqliteStore.open(str(home)) as store:
        assert await types(store, kept) == [EVENTS_PRUNED, "c", "d"]
        with pytest.raises(SessionNotFound):
            await store.get_session(gone)
