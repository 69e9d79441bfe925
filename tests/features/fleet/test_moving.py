"""Moving a store to another engine: nothing is lost, and whatever happens, no target is half full."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from callgate.core.ops import NewSession, PutEntry
from callgate.core.stores import StoreDamaged, StoreUnwritable
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.administration import PostgresContents, PostgresMovable
from callgate.features.fleet.postgres.connections import Connection
from callgate.features.fleet.postgres.store import PostgresStore
from callgate.storage.moving import (
    TABLES,
    MoveInterrupted,
    MoveMismatch,
    MoveStep,
    NotMovable,
    StoreInUse,
    StoreNotEmpty,
    move,
)
from callgate.storage.sqlite.files import Location
from callgate.storage.sqlite.moving import SqliteMovable
from callgate.storage.sqlite.store import SqliteStore
from tests import postgres
from tests.features.fleet.moves import fill, many_events, movable, reap, seen
from tests.kernel.contract.stores import append, new_session
from tests.kernel.storage.disks import Disk
from tests.needs import needs

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.running() as cluster:
        yield cluster


@pytest.fixture
def location(cluster: postgres.Cluster) -> PostgresLocation:
    return cluster.location()


async def filled_home(home: Path) -> dict[str, Any]:
    dead = await SqliteStore.open(str(home))
    async with await SqliteStore.open(str(home)) as store:
        known = await fill(store, dead)
        await dead.close()
        await reap(store, known["dead"])
    return known


async def seen_in_home(home: Path, known: dict[str, Any]) -> dict[str, Any]:
    async with await SqliteStore.open(str(home)) as store:
        return await seen(store, known)


async def seen_in_database(location: PostgresLocation, known: dict[str, Any]) -> dict[str, Any]:
    async with await PostgresStore.open(location) as store:
        return await seen(store, known)


def sqlite(home: Path, vfs: str | None = None) -> SqliteMovable:
    return SqliteMovable(Location(home=str(home), vfs=vfs))


async def test_everything_is_the_same_in_the_database_and_back_in_a_file(
    tmp_path: Path, location: PostgresLocation
) -> None:
    known = await filled_home(tmp_path / "a")
    before = await seen_in_home(tmp_path / "a", known)
    moved = move(sqlite(tmp_path / "a"), PostgresMovable(location))
    # None of these may be empty, or nothing is said about it.
    assert {table for table in TABLES if not moved.tables[table].rows} == set()
    assert await seen_in_database(location, known) == before
    back = move(PostgresMovable(location), sqlite(tmp_path / "b"))
    assert back.tables == moved.tables
    assert await seen_in_home(tmp_path / "b", known) == before
    assert await seen_in_home(tmp_path / "a", known) == before


@pytest.mark.parametrize("major", [*postgres.installations()][1:])
async def test_every_version_of_the_database_holds_the_same(tmp_path: Path, major: int) -> None:
    known = await filled_home(tmp_path / "a")
    with postgres.running(major) as newer:
        location = newer.location()
        moved = move(sqlite(tmp_path / "a"), PostgresMovable(location))
        assert await seen_in_database(location, known) == await seen_in_home(tmp_path / "a", known)
        elsewhere = newer.location()
        assert move(PostgresMovable(location), PostgresMovable(elsewhere)).tables == moved.tables
        assert await seen_in_database(elsewhere, known) == await seen_in_home(tmp_path / "a", known)


async def test_what_is_new_in_the_target_comes_after_every_cursor_of_the_source(
    tmp_path: Path, location: PostgresLocation
) -> None:
    async with await SqliteStore.open(str(tmp_path / "a")) as store:
        session = await new_session(store)
        old = await append(store, session, "one", "two")
        cursor = (await store.read_all()).cursor
    move(sqlite(tmp_path / "a"), PostgresMovable(location))
    async with await PostgresStore.open(location) as store:
        [three] = await append(store, session, "three")
        page = await store.read_all(cursor)
        assert (page.events, page.seqs) == ([three], [3])
        assert (await store.behind(None)).most == 3
        assert (await store.behind(cursor)).most == 1
        other = await new_session(store)
        [four] = await append(store, other, "four")
        later = (await store.read_all()).cursor
    move(PostgresMovable(location), sqlite(tmp_path / "b"))
    async with await SqliteStore.open(str(tmp_path / "b")) as store:
        assert (await store.read_all(cursor)).events == [three, four]
        [five] = await append(store, session, "five")
        assert (await store.read_all(later)).events == [five]
        assert (await store.read_events(session)) == [*old, three, five]
        third = await new_session(store)
        listed = (await store.list_sessions()).sessions
        assert [each.id for each in listed] == [third, session, other]


async def test_a_target_that_holds_something_else_is_refused_and_left_alone(
    tmp_path: Path, location: PostgresLocation
) -> None:
    known = await filled_home(tmp_path / "a")
    async with await PostgresStore.open(location) as store:
        session = await new_session(store)
    with pytest.raises(StoreNotEmpty) as refused:
        move(sqlite(tmp_path / "a"), PostgresMovable(location))
    assert refused.value.counts == {"sessions": 1}
    async with await PostgresStore.open(location) as store:
        assert [each.id for each in (await store.list_sessions()).sessions] == [session]
    with pytest.raises(StoreNotEmpty):
        move(PostgresMovable(location), sqlite(tmp_path / "a"))
    assert (await seen_in_home(tmp_path / "a", known))["pruned"]


async def test_a_move_that_is_done_already_is_recognised(tmp_path: Path, location: PostgresLocation) -> None:
    await filled_home(tmp_path / "a")
    first = move(sqlite(tmp_path / "a"), PostgresMovable(location))
    again = move(sqlite(tmp_path / "a"), PostgresMovable(location))
    assert (first.was_there, again.was_there) == (False, True)
    assert again.tables == first.tables


async def test_nobody_can_write_to_the_source_while_it_is_moved(tmp_path: Path, location: PostgresLocation) -> None:
    await filled_home(tmp_path / "a")
    late = NewSession(session="sess_late", workspace="/w", at=1.0)
    async with await SqliteStore.open(str(tmp_path / "a"), wait_s=0.1) as store:
        with sqlite(tmp_path / "a").reading():
            with pytest.raises(StoreUnwritable):
                await store.commit(late)
    move(sqlite(tmp_path / "a"), PostgresMovable(location))
    impatient = PostgresLocation(url=location.url, schema=location.schema, answer_s=0.4)
    async with await PostgresStore.open(impatient) as store:
        with PostgresMovable(location).reading():
            with pytest.raises(StoreUnwritable):
                await store.commit(late)


async def test_whoever_comes_while_it_is_moved_stops_the_move(tmp_path: Path, location: PostgresLocation) -> None:
    await filled_home(tmp_path / "a")
    source = sqlite(tmp_path / "a")

    def ensure_unused() -> None:
        if living := source.living():
            raise StoreInUse(source.label, living)

    late: list[Any] = []
    loop = asyncio.get_running_loop()
    async with await SqliteStore.open(str(tmp_path / "a")) as store:

        def tell(step: MoveStep) -> None:
            if not late:
                commit = NewSession(session="sess_late", workspace="/w", at=1.0)
                late.append(asyncio.run_coroutine_threadsafe(_committed(store, commit), loop))
            if step.doing == "verifying" and step.table == "pruned_events":
                until = time.monotonic() + 30
                while not source.living():
                    assert time.monotonic() < until

        with pytest.raises(StoreInUse):
            await asyncio.to_thread(move, source, PostgresMovable(location), tell, ensure_unused)
        await asyncio.wrap_future(late[0])  # it waited, and is in the source
        assert (await store.get_session("sess_late")).workspace == "/w"
    assert PostgresMovable(location).row_counts() == {}


async def _committed(store: SqliteStore, op: NewSession) -> None:
    await store.commit(op)


def _steps() -> list[tuple[str, str, int]]:
    return [
        ("copying", "sessions", 0),
        ("copying", "events", 1_000),
        ("copying", "pruned_events", 0),
        ("verifying", "sessions", 0),
        ("verifying", "events", 2_000),
        ("verifying", "pruned_events", 1),
    ]


@pytest.mark.parametrize("there", ["to the database", "to the file"])
@pytest.mark.parametrize(("doing", "table", "rows"), _steps())
async def test_killed_at_any_step_the_target_is_empty_and_the_source_as_it_was(
    tmp_path: Path, cluster: postgres.Cluster, there: str, doing: str, table: str, rows: int
) -> None:
    location = cluster.location()
    home, target = tmp_path / "home", tmp_path / "target"
    known = await filled_home(home)
    async with await SqliteStore.open(str(home)) as store:
        await many_events(store, 5, 500)
    names = [f"sqlite:{home}", f"{location.schema}@{location.url}"]
    if there == "to the file":
        move(movable(names[0]), movable(names[1]))
        names = [names[1], f"sqlite:{target}"]
    before = await seen_in_home(home, known)
    died = subprocess.run(
        [sys.executable, "-m", "tests.features.fleet.moves", *names, doing, table, str(rows)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    _wait_until_free(names[1], location)
    assert movable(names[1]).row_counts() == {}
    assert await seen_in_home(home, known) == before
    done = move(movable(names[0]), movable(names[1]))
    assert not done.was_there
    assert done.tables["events"].rows > 2_500


def _wait_until_free(target: str, location: PostgresLocation) -> None:
    """The database notices a moment later that its client is gone."""
    if not target.startswith("sqlite:"):
        with PostgresMovable(location).reading():  # waits for the lock
            pass


async def test_killed_after_the_commit_everything_is_there(tmp_path: Path, location: PostgresLocation) -> None:
    known = await filled_home(tmp_path / "a")
    names = [f"sqlite:{tmp_path / 'a'}", f"{location.schema}@{location.url}"]
    died = subprocess.run(
        [sys.executable, "-m", "tests.features.fleet.moves", *names, "committed", "", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    assert await seen_in_database(location, known) == await seen_in_home(tmp_path / "a", known)
    assert move(movable(names[0]), movable(names[1])).was_there


@pytest.mark.parametrize("doing", ["copying", "verifying"])
async def test_a_database_that_goes_away_leaves_the_target_empty(tmp_path: Path, doing: str) -> None:
    with postgres.running() as cluster:
        location = cluster.location()
        known = await filled_home(tmp_path / "a")
        before = await seen_in_home(tmp_path / "a", known)

        def tell(step: MoveStep) -> None:
            if (step.doing, step.table, step.rows) == (doing, "events", 0):
                cluster.kill()

        with pytest.raises(MoveInterrupted, match="source is as it was, and the target is empty"):
            move(sqlite(tmp_path / "a"), PostgresMovable(location), tell)
        with pytest.raises(MoveInterrupted, match="cannot be reached"):
            PostgresMovable(location).row_counts()
        cluster.start()
        assert PostgresMovable(location).row_counts() == {}
        assert await seen_in_home(tmp_path / "a", known) == before
        move(sqlite(tmp_path / "a"), PostgresMovable(location))
        assert await seen_in_database(location, known) == before


async def test_a_commit_whose_answer_is_lost_is_found_by_the_next_move(
    tmp_path: Path, location: PostgresLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled_home(tmp_path / "a")
    run = Connection.run

    def lost(self: Connection, statement: str, *values: Any) -> int:
        done = run(self, statement, *values)
        if statement == "commit" and PostgresMovable(location).row_counts():
            raise psycopg.OperationalError("the connection is lost")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "run", lost)
        with pytest.raises(MoveInterrupted, match="is not known: move again, which tells"):
            move(sqlite(tmp_path / "a"), PostgresMovable(location))
    assert move(sqlite(tmp_path / "a"), PostgresMovable(location)).was_there


@needs("root")
async def test_a_full_disk_of_the_database_leaves_it_empty(tmp_path: Path) -> None:
    await filled_home(tmp_path / "a")
    async with await SqliteStore.open(str(tmp_path / "a")) as store:
        await many_events(store, 20, 1_000)
    with postgres.running() as cluster, small_disk(cluster) as place:
        with psycopg.connect(cluster.url, autocommit=True) as db:
            db.execute(f"create tablespace small location '{place}'")
            db.execute("alter role callgate set default_tablespace = small")
        location = cluster.location()
        with pytest.raises(MoveInterrupted, match="disk is full"):
            move(sqlite(tmp_path / "a"), PostgresMovable(location))
        assert PostgresMovable(location).row_counts() == {}
        with psycopg.connect(cluster.url, autocommit=True) as db:
            db.execute(f'drop schema "{location.schema}" cascade')


@contextmanager
def small_disk(cluster: postgres.Cluster) -> Iterator[Path]:
    place = cluster.directory / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs to mount")
    try:
        owner = cluster.directory.stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        yield place
    finally:
        cluster.stop(signal.SIGINT)
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("nth", [1, 10, 60, 200])
async def test_a_full_disk_leaves_the_file_empty(tmp_path: Path, location: PostgresLocation, nth: int) -> None:
    known = await filled_home(tmp_path / "a")
    async with await SqliteStore.open(str(tmp_path / "a")) as store:
        await many_events(store, 5, 500)
    move(sqlite(tmp_path / "a"), PostgresMovable(location))
    disk = Disk()
    disk.fail("ENOSPC", nth, times=1_000_000)
    with pytest.raises(MoveInterrupted, match="disk is full"):
        move(PostgresMovable(location), sqlite(tmp_path / "b", disk.name))
    assert disk.failed
    disk.heal()
    assert sqlite(tmp_path / "b").row_counts() == {}
    move(PostgresMovable(location), sqlite(tmp_path / "b"))
    assert await seen_in_home(tmp_path / "b", known) == await seen_in_home(tmp_path / "a", known)


async def test_a_damaged_file_is_refused_with_what_could_be_saved_of_it(
    tmp_path: Path, location: PostgresLocation
) -> None:
    await filled_home(tmp_path / "a")
    async with await SqliteStore.open(str(tmp_path / "a")) as store:
        await many_events(store, 1, 500)
    path = tmp_path / "a" / "callgate.db"
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xee" * 4096
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match=r"The readable part is in .*callgate\.db\.saved-"):
        move(sqlite(tmp_path / "a"), PostgresMovable(location))
    assert path.read_bytes() == data
    assert PostgresMovable(location).row_counts() == {}


async def test_a_name_that_postgresql_cannot_hold_is_said(tmp_path: Path, location: PostgresLocation) -> None:
    async with await SqliteStore.open(str(tmp_path / "a")) as store:
        await store.commit(PutEntry(kind="k", name="a\0b", value="x"))
    with pytest.raises(NotMovable, match="NUL"):
        move(sqlite(tmp_path / "a"), PostgresMovable(location))
    assert PostgresMovable(location).row_counts() == {}


async def test_a_target_that_gives_back_something_else_is_not_committed(
    tmp_path: Path, location: PostgresLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled_home(tmp_path / "a")
    write = PostgresContents.write
    monkeypatch.setattr(
        PostgresContents,
        "write",
        lambda self, table, rows: (
            write(self, table, (row[:-1] + (row[-1] + " ",) for row in rows))
            if table == "messages"
            else write(self, table, rows)
        ),
    )
    with pytest.raises(MoveMismatch):
        move(sqlite(tmp_path / "a"), PostgresMovable(location))
    assert PostgresMovable(location).row_counts() == {}


async def test_a_source_that_is_not_there_is_refused(tmp_path: Path, location: PostgresLocation) -> None:
    with pytest.raises(NotMovable):
        move(sqlite(tmp_path / "a"), PostgresMovable(location))
    with pytest.raises(NotMovable):
        move(PostgresMovable(location), sqlite(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


async def test_those_who_live_are_known(tmp_path: Path, location: PostgresLocation) -> None:
    async with await SqliteStore.open(str(tmp_path / "a")) as store:
        await new_session(store)
        assert sqlite(tmp_path / "a").living() == [store.owner]
    assert sqlite(tmp_path / "a").living() == []
    assert PostgresMovable(location).living() == []
    async with await PostgresStore.open(location) as other:
        await new_session(other)
        assert PostgresMovable(location).living() == [other.owner]
    assert PostgresMovable(location).living() == []


def _many(home: Path, sessions: int, each: int) -> None:
    """Rows as a store writes them, faster than it would."""
    db = apsw.Connection(str(home / "callgate.db"))
    db.execute("begin")
    series = "with recursive {0}(value) as (select 1 union all select value + 1 from {0} where value < {1})"
    db.execute(
        series.format("s", sessions)
        + " insert into sessions (ord, id, workspace, fence, last_seq, messages, updated_at, touch, body)"
        " select value + 1000, 'sess_' || value, '/w', 0, ?, 0, 1.0, value + 1000, '{\"id\":\"sess_' || value ||"
        ' \'","workspace":"/w","created_at":1.0,"updated_at":1.0}\' from s',
        (each,),
    )
    db.execute(
        f"{series.format('s', sessions)}, {series.format('e', each).removeprefix('with recursive ')}"
        " insert into events select (s.value - 1) * ?1 + e.value + 1000, (s.value + 1000) << 32 | e.value,"
        " 'ev_' || s.value || '_' || e.value, '{\"type\":\"note\",\"text\":\"' || hex(zeroblob(150)) || '\"}'"
        " from s, e",
        (each,),
    )
    db.execute("commit")
    db.close()


async def _bounded(home: Path, location: PostgresLocation, sessions: int, each: int) -> None:
    async with await SqliteStore.open(str(home)) as store:
        await new_session(store)
    _many(home, sessions, each)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    moved = move(sqlite(home), PostgresMovable(location))
    back = move(PostgresMovable(location), sqlite(home.with_name("back")))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert moved.tables == back.tables
    assert moved.tables["events"].rows == sessions * each
    assert grown < 64 * 1024, f"{grown} KiB more"  # ru_maxrss is in KiB


async def test_fifty_thousand_events_need_little_memory(tmp_path: Path, location: PostgresLocation) -> None:
    await _bounded(tmp_path / "a", location, 50, 1_000)


@pytest.mark.soak
async def test_a_million_events_need_no_more_memory(tmp_path: Path, location: PostgresLocation) -> None:
    await _bounded(tmp_path / "a", location, 1_000, 1_000)
