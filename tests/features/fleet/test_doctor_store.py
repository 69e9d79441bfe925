"""`callgate doctor` on a store in PostgreSQL: what would go wrong is said before it does."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from callgate.cli.findings import Level
from callgate.config.schema import StoreTable
from callgate.features.fleet.commands.database import problems
from callgate.features.fleet.postgres.administration import Inspection, PostgresMovable, inspect, shares_sessions
from callgate.storage.moving import NotMovable
from tests import postgres
from tests.kernel.cli.running import callgate, installed
from tests.needs import needs
from tests.pgbouncer import program
from tests.shared_stores import SECRETS


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.running(durable=True) as cluster:
        yield cluster


def diagnosed(home: Path, cwd: Path, store: str, **env: str) -> dict[str, Any]:
    (home / "settings.toml").write_text(f"[store]\n{store}\n{SECRETS}")
    found = installed("doctor", "--json", cwd=cwd, env=env).json
    [finding] = [each for each in found["checks"] if each["check"] == "store"]
    return finding


def test_a_sound_database_is_ok(home: Path, tmp_path: Path, cluster: postgres.Cluster) -> None:
    store = f'url = "{cluster.url}"\nschema = "sound"'
    assert diagnosed(home, tmp_path, store)["level"] == "ok"  # the tools of the home were looked at: tables are made
    assert callgate("call", "list_dir", "path=.", cwd=tmp_path).code == 0
    found = diagnosed(home, tmp_path, store)
    assert found["level"] == "ok"
    assert "PostgreSQL" in found["text"] and "schema sound" in found["text"]


def test_a_database_that_is_away_is_said(home: Path, tmp_path: Path) -> None:
    found = diagnosed(home, tmp_path, 'url = "postgresql://me:hush-hush@127.0.0.1:1/x"')
    assert found["level"] == "failed" and "cannot be reached" in found["text"]
    assert "hush" not in str(found)


def test_a_database_that_may_lose_what_it_acknowledged_is_said(home: Path, tmp_path: Path) -> None:
    with postgres.running() as fast:
        store = f'url = "{fast.url}"'
        found = diagnosed(home, tmp_path, store)
        assert found["level"] == "note" and "fsync off" in found["text"]
        # A direct connection turns synchronous_commit on by itself; through a pooler none does.
        assert "synchronous_commit" not in found["text"]
        pooled = diagnosed(home, tmp_path, f'{store}\nlisten_url = "none"')
        assert "fsync and synchronous_commit off" in pooled["text"]


def test_rights_that_do_not_suffice_are_said(home: Path, tmp_path: Path, cluster: postgres.Cluster) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as db:
        db.execute("create role poor login")
    store = f'url = "{cluster.url.replace("callgate@", "poor@")}"\nschema = "none_of_yours"'
    found = diagnosed(home, tmp_path, store)
    assert found["level"] == "failed" and "right" in found["text"]
    assert callgate("store", "move", "--to", store.split('"')[1], "--yes", cwd=tmp_path).code != 0


def test_a_package_that_is_missing_is_named(home: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    (blocked / "psycopg").mkdir(parents=True)
    (blocked / "psycopg" / "__init__.py").write_text("raise ImportError('not installed')\n")
    found = diagnosed(home, tmp_path, 'url = "postgresql://h/x"', PYTHONPATH=str(blocked))
    assert found["level"] == "failed" and "callgate[postgres]" in found["fix"]


SOUND = Inspection(
    version="15.1",
    is_standby=False,
    fsync=True,
    synchronous_commit=True,
    is_pooled=False,
    has_direct=True,
    skew_s=0.1,
    may_write=True,
    format=1,
    living=["own_1", "own_2"],
    connections=97,
    other_connections=5,
)


def levels(**changed: Any) -> list[tuple[str, str]]:
    from msgspec.structs import replace

    return [(each.level, each.text) for each in problems(replace(SOUND, **changed), StoreTable())]


def test_what_is_sound_is_no_problem() -> None:
    assert levels() == []


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        ({"is_standby": True}, Level.FAILED, "standby"),
        ({"may_write": False}, Level.FAILED, "right"),
        ({"is_pooled": True}, Level.FAILED, "pooler"),
        ({"has_direct": False}, Level.NOTE, "polled"),
        ({"fsync": False}, Level.NOTE, "may be lost"),
        ({"synchronous_commit": False}, Level.NOTE, "may be lost"),
        ({"skew_s": 2.5}, Level.NOTE, "2.5 s ahead"),
        ({"skew_s": -31.0}, Level.FAILED, "31.0 s behind"),
        ({"connections": 16, "other_connections": 5}, Level.FAILED, "3 callgate processes need 12 connections"),
        ({"format": None}, Level.NOTE, "tables"),
    ],
)
def test_each_problem_has_its_level(changed: dict[str, Any], level: Level, text: str) -> None:
    [(found, words)] = levels(**changed)
    assert found == level and text in words


@contextmanager
def pgbouncer(cluster: postgres.Cluster, mode: str) -> Iterator[str]:
    """A real pooler in front of the cluster."""
    directory = Path(tempfile.mkdtemp(prefix="pool", dir=cluster.directory))
    (directory / "users").write_text('"callgate" ""\n')
    (directory / "ini").write_text(
        f"[databases]\npostgres = host={cluster.directory} port={cluster.port} user=callgate\n"
        f"[pgbouncer]\nlisten_addr =\nunix_socket_dir = {directory}\nlisten_port = 6432\nauth_type = any\n"
        f"auth_file = {directory / 'users'}\npool_mode = {mode}\nignore_startup_parameters = extra_float_digits\n"
    )
    user = "nobody" if os.getuid() == 0 else None
    if user is not None:
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, user, pwd.getpwnam(user).pw_gid)
    process = subprocess.Popen(
        [program(directory), "-q", str(directory / "ini")], cwd="/", user=user, extra_groups=[] if user else None
    )
    try:
        _wait_for(directory / ".s.PGSQL.6432", process)
        yield f"postgresql://callgate@/postgres?host={directory}&port=6432"
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
                return
            except OSError:
                assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)


@needs("pgbouncer")
@pytest.mark.parametrize(("mode", "shares"), [("transaction", True), ("session", False)])
def test_a_pooler_that_shares_sessions_is_recognised(cluster: postgres.Cluster, mode: str, shares: bool) -> None:
    assert not shares_sessions(cluster.url)
    with pgbouncer(cluster, mode) as url:
        assert shares_sessions(url) is shares


@needs("pgbouncer")
def test_a_listen_url_that_is_no_direct_connection_is_said(
    home: Path, tmp_path: Path, cluster: postgres.Cluster
) -> None:
    with pgbouncer(cluster, "transaction") as url:
        assert "listen_url" in str(diagnosed(home, tmp_path, f'url = "{url}"\nschema = "p"')["fix"])
        wrong = diagnosed(home, tmp_path, f'url = "{url}"\nlisten_url = "{url}"\nschema = "p"')
        assert wrong["level"] == "failed" and "pooler" in wrong["text"]
        right = diagnosed(home, tmp_path, f'url = "{url}"\nlisten_url = "{cluster.url}"\nschema = "p"')
        assert right["level"] != "failed"
        status = callgate("store", "status", "--json", cwd=tmp_path).json
        assert status["connection"] == "pooled, and one that is direct"


def test_a_standby_is_recognised(cluster: postgres.Cluster, tmp_path: Path) -> None:
    copy = postgres.Cluster(cluster.binaries, primary=cluster)
    try:
        copy.start()
        location = copy.location()
        assert inspect(location).is_standby
        for use in (PostgresMovable(location).reading, PostgresMovable(location).writing):
            with pytest.raises(NotMovable, match="standby"), use():
                pass
    finally:
        copy.remove()


def checked_store(cwd: Path) -> dict[str, Any]:
    [finding] = [each for each in installed("doctor", "--json", cwd=cwd).json["checks"] if each["check"] == "store"]
    return finding


def test_a_file_that_is_sound_damaged_too_new_or_no_file_is_said_to_be_so(home: Path, tmp_path: Path) -> None:
    assert callgate("call", "list_dir", "path=.", cwd=tmp_path).code == 0
    path = home / "callgate.db"
    assert checked_store(tmp_path)["level"] == "ok"
    sound = path.read_bytes()

    def change(statement: str) -> None:
        path.write_bytes(sound)
        db = apsw.Connection(str(path))
        db.execute(statement)
        db.close()

    change("update sessions set body = cast(x'ff' as text)")
    found = checked_store(tmp_path)
    assert found["level"] == "failed" and "is damaged" in found["text"] and "saves a copy of" in found["fix"]
    change("pragma user_version = 999")
    found = checked_store(tmp_path)
    assert found["level"] == "failed" and "newer callgate" in found["text"] and found["fix"] == "update callgate"
    path.write_bytes(sound[:100] + bytes(4_000) + sound[4_100:])
    assert "is damaged" in checked_store(tmp_path)["text"]
    path.unlink()
    path.mkdir()
    found = checked_store(tmp_path)
    assert found["level"] == "failed" and "cannot be" in found["text"]
