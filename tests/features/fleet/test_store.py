"""`callgate store status` and `move`, run as a user would, against a real PostgreSQL."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.administration import PostgresMovable
from callgate.features.fleet.postgres.schema import FORMAT
from callgate.features.fleet.postgres.store import PostgresStore
from callgate.sandbox.processes.command_marks import MARK
from callgate.storage.sqlite.store import SqliteStore
from tests import postgres
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import AtTerminal, callgate, start
from tests.kernel.contract.stores import append, new_session
from tests.shared_stores import SECRETS


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.running() as cluster:
        yield cluster


@pytest.fixture
def location(cluster: postgres.Cluster) -> PostgresLocation:
    return cluster.location()


def moves(location: PostgresLocation, *more: str) -> list[str]:
    return ["store", "move", "--to", location.url, "--schema", location.schema, *more]


async def with_session(home: Path) -> str:
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        await append(store, session, "one", "two")
    return session


async def test_after_a_move_the_commands_show_the_same_sessions(
    home: Path, tmp_path: Path, location: PostgresLocation
) -> None:
    (home / "settings.toml").write_text(SECRETS)
    made = callgate("call", "list_dir", "path=.", cwd=tmp_path)
    assert made.code == 0
    listed = callgate("sessions", "list", "--all", "--json", cwd=tmp_path).answer
    events = callgate("events", "--json", cwd=tmp_path).out
    ran = callgate(*moves(location, "--yes", "--write-settings"), cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "a shared store needs [secrets]" in ran.err
    assert "both stores have the same content" in ran.err and "callgate.db.moved" in ran.err
    named = tomllib.loads((home / "settings.toml").read_text())
    assert named["store"] == {"url": location.url, "schema": location.schema}
    (home / "callgate.db").rename(home / "callgate.db.moved")
    assert callgate("sessions", "list", "--all", "--json", cwd=tmp_path).answer == listed
    assert callgate("events", "--json", cwd=tmp_path).out == events
    assert callgate("audit", "verify", cwd=tmp_path).code == 0
    assert callgate("call", "list_dir", "path=.", cwd=tmp_path).code == 0
    back = callgate("store", "move", "--to", "sqlite", "--yes", "--write-settings", "--json", cwd=tmp_path)
    assert back.code == 0, back.err
    assert back.json["rows"]["sessions"] == 2
    assert "store" not in tomllib.loads((home / "settings.toml").read_text())
    assert len(callgate("sessions", "list", "--all", "--json", cwd=tmp_path).json["sessions"]) == 2
    assert callgate("audit", "verify", cwd=tmp_path).code == 0


async def test_without_write_settings_it_says_what_to_write(
    home: Path, tmp_path: Path, location: PostgresLocation
) -> None:
    await with_session(home)
    ran = callgate(*moves(location, "--yes"), cwd=tmp_path)
    assert ran.code == 0
    lines = [line.strip() for line in ran.err.splitlines()]
    assert lines[lines.index("[store]") + 1 :][:2] == [
        f'url = "{location.url}"',
        f'schema = "{location.schema}"',
    ]
    assert not (home / "settings.toml").exists()


async def test_a_password_is_not_written_into_the_settings(
    home: Path, tmp_path: Path, cluster: postgres.Cluster
) -> None:
    await with_session(home)
    location = cluster.location()
    (home / "settings.toml").write_text("# mine\n[store]\nreaders = 3 # three\n\n# about tools\n[tools]\n")
    url = location.url.replace("callgate@", "callgate:hush-hush@")
    words = ["store", "move", "--to", url, "--schema", location.schema, "--yes", "--write-settings"]
    ran = callgate(*words, cwd=tmp_path)
    assert ran.code == 0, ran.err
    written = (home / "settings.toml").read_text()
    assert "hush" not in written + ran.err and "# about tools" in written and "# mine" in written
    assert "CALLGATE_STORE_URL" in ran.err
    assert callgate("sessions", "list", cwd=tmp_path).code != 0
    env = {"CALLGATE_STORE_URL": url}
    assert callgate("sessions", "list", "--all", cwd=tmp_path, env=env).code == 0


async def test_a_dry_run_shows_what_there_is_and_makes_nothing(
    home: Path, tmp_path: Path, location: PostgresLocation
) -> None:
    await with_session(home)
    ran = callgate(*moves(location, "--dry-run", "--json"), cwd=tmp_path)
    assert (ran.json["rows"]["sessions"], ran.json["rows"]["events"], ran.json["held"]) == (1, 2, {})
    with postgres_connection(location) as db:
        [(there,)] = db.execute("select to_regnamespace(%s) is not null", [location.schema]).fetchall()
    assert not there


def postgres_connection(location: PostgresLocation):  # type: ignore[no-untyped-def]
    import psycopg

    return psycopg.connect(location.url, autocommit=True)


async def test_a_store_in_use_is_not_moved(home: Path, tmp_path: Path, location: PostgresLocation) -> None:
    async with await SqliteStore.open(str(home)) as store:
        await new_session(store)
        ran = callgate(*moves(location, "--yes", "--json"), cwd=tmp_path)
        assert (ran.code, ran.json["error"]["reason"]) == (3, "store_in_use")
        assert f"process {os.getpid()}" in ran.json["error"]["message"]
    async with await PostgresStore.open(location) as store:
        await new_session(store)
        ran = callgate(*moves(location, "--yes", "--json"), cwd=tmp_path)
        assert (ran.code, ran.json["error"]["reason"]) == (3, "store_in_use")
        assert store.owner in ran.json["error"]["message"]


async def test_no_move_while_an_instance_runs_in_the_home(tmp_path: Path, location: PostgresLocation) -> None:
    with short_directory() as home:
        env = {"CALLGATE_HOME": str(home)}
        await with_session(home)
        instance = start("serve", "--no-http", cwd=tmp_path, env=env)
        try:
            assert instance.stdout is not None
            assert instance.stdout.readline().startswith(b"callgate: listening on ")
            ran = callgate(*moves(location, "--yes", "--json"), cwd=tmp_path, env=env)
            assert (ran.code, ran.json["error"]["reason"]) == (3, "store_in_use")
            assert str(instance.pid) in ran.json["error"]["message"]
        finally:
            instance.terminate()
            instance.communicate(timeout=60)
        assert callgate(*moves(location, "--yes"), cwd=tmp_path, env=env).code == 0


async def test_what_dead_processes_left_is_settled_first(
    home: Path, tmp_path: Path, location: PostgresLocation
) -> None:
    """The owner of a session died: its session is free in the target."""
    from callgate.core.ops import Acquire

    store = await SqliteStore.open(str(home))
    session = await new_session(store)
    await store.commit(Acquire(session=session, owner=store.owner, at=1.0))
    await append(store, session, "one")
    await store.close()
    assert callgate(*moves(location, "--yes"), cwd=tmp_path).code == 0
    async with await PostgresStore.open(location) as target:
        assert (await target.get_session(session)).owner is None
        assert await target.dead_owners() == []


async def test_a_target_with_something_in_it_is_refused(home: Path, tmp_path: Path, location: PostgresLocation) -> None:
    await with_session(home)
    async with await PostgresStore.open(location) as store:
        await new_session(store)
    ran = callgate(*moves(location, "--yes", "--json"), cwd=tmp_path)
    assert (ran.code, ran.json["error"]["reason"]) == (1, "store_unusable")
    assert PostgresMovable(location).row_counts() == {"sessions": 1}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "mysql://x"), "neither sqlite nor"),
        (("--to", "sqlite"), "the source store"),
        (("--to", "postgresql://h/db", "--schema", "A;drop"), "not a valid schema name"),
        (("more", "--to", "sqlite"), "unexpected argument 'more'"),
        ((), "--to"),
    ],
)
def test_what_cannot_be_meant_is_said(home: Path, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    ran = callgate("store", "move", *words, cwd=tmp_path)
    assert ran.code == 2 and says in ran.err


def test_a_store_is_not_moved_onto_itself(home: Path, tmp_path: Path, location: PostgresLocation) -> None:
    store = f'url = "{location.url}"\nschema = "{location.schema}"\nreaders = 4'
    (home / "settings.toml").write_text(f"[store]\n{store}\n")
    ran = callgate(*moves(location, "--yes"), cwd=tmp_path)
    assert ran.code == 2 and "the source store" in ran.err


def test_a_tool_cannot_move_the_store(home: Path, tmp_path: Path, location: PostgresLocation) -> None:
    ran = callgate(*moves(location, "--yes"), cwd=tmp_path, env={MARK: "1"})
    assert ran.code == 3


async def test_a_person_is_asked(home: Path, tmp_path: Path, location: PostgresLocation) -> None:
    await with_session(home)
    assert callgate(*moves(location), cwd=tmp_path).code == 3
    asked = AtTerminal(*moves(location), cwd=tmp_path)
    assert "Move all of it?" in asked.asked(mark="Move all of it?")
    assert asked.answer("n\r").end().code == 3
    assert PostgresMovable(location).row_counts() == {}


async def test_status_tells_of_the_file(home: Path, tmp_path: Path) -> None:
    assert callgate("store", "status", "--json", cwd=tmp_path).json["rows"] == {}
    await with_session(home)
    found = callgate("store", "status", "--json", cwd=tmp_path).json
    assert (found["engine"], found["reachable"]) == ("SQLite", True)
    assert found["rows"]["events"] == 2
    assert "2 events" in callgate("store", "status", cwd=tmp_path).out


async def test_status_tells_of_the_database(home: Path, tmp_path: Path, location: PostgresLocation) -> None:
    (home / "settings.toml").write_text(f'[store]\nurl = "{location.url}"\nschema = "{location.schema}"\n')
    fresh = callgate("store", "status", "--json", cwd=tmp_path).json
    assert (fresh["format"], fresh["role"], fresh["connection"]) == (None, "primary", "direct")
    async with await PostgresStore.open(location) as store:
        await append(store, await new_session(store), "one")
        found = callgate("store", "status", "--json", cwd=tmp_path).json
        assert found["processes"] == [f"another process ({store.owner})"]
    assert (found["reachable"], found["format"], found["rows"]["events"]) == (True, FORMAT, 1)
    assert abs(found["clock_skew_s"]) < 5 and found["bytes"] > 0
    assert int(found["version"].split(".")[0]) >= 15


def test_status_says_that_the_database_is_away(home: Path, tmp_path: Path) -> None:
    (home / "settings.toml").write_text('[store]\nurl = "postgresql://127.0.0.1:1/x"\n')
    ran = callgate("store", "status", "--json", cwd=tmp_path)
    assert (ran.code, ran.json["reachable"]) == (1, False)
    assert "cannot be reached" in ran.json["problem"]


@pytest.mark.parametrize(
    "store",
    [
        'url = "postgresql://me:hush-hush@[bad/x"',
        'url = "postgresql://me:hush-hush@h/x?nonsense=1"',
        'url = "postgresql://127.0.0.1:1/x"\nlisten_url = "postgresql://me:hush-hush@h/x?nonsense=1"',
        'url_env = "NOT_SET_ANYWHERE"',
    ],
)
def test_an_address_that_is_none_is_said_and_its_password_is_not(home: Path, tmp_path: Path, store: str) -> None:
    (home / "settings.toml").write_text(f"[store]\n{store}\n{SECRETS}")
    read = callgate("call", "list_dir", "path=.", cwd=tmp_path)
    write = callgate("call", "write_file", "path=a", "content=x", "--yes", cwd=tmp_path)
    listed, status, health = (
        callgate(*words, cwd=tmp_path) for words in (("sessions", "list"), ("store", "status"), ("doctor",))
    )
    assert [each.code for each in (read, write, listed, status)] == [2] * 4  # whose rules are not known either
    for ran in (read, write, listed, status, health):
        assert "hush" not in ran.out + ran.err and "internal" not in ran.out + ran.err
    assert "[store]" in listed.err and "[store]" in write.err
