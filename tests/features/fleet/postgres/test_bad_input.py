"""What a database can be that is of no use, each in a sentence; nothing is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from callgate.core.ids import session_id
from callgate.core.ops import Acquire, Append, NewSession, PutBlob, PutEntry, PutGrant
from callgate.core.stored import StoredGrant
from callgate.core.stores import (
    EngineTooOld,
    StoreAddressInvalid,
    StoreMisconfigured,
    StoreTooNew,
    StoreUnreadable,
    StoreUnwritable,
    Trouble,
)
from callgate.features.fleet.postgres import PostgresLocation, connections
from callgate.features.fleet.postgres.schema import FORMAT
from callgate.features.fleet.postgres.store import PostgresStore
from tests.features.fleet.postgres.test_living import gone, insist, read_once_back, until
from tests.kernel.contract.stores import append, event, new_session
from tests.needs import needs
from tests.postgres import Cluster


def _run(cluster: Cluster, *statements: str) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as db:
        for each in statements:
            db.execute(each)


def _as(cluster: Cluster, user: str, database: str = "postgres", **more: str) -> PostgresLocation:
    password = more.pop("password", "")
    options = urllib.parse.urlencode(
        {"host": str(cluster.directory), "port": cluster.port, **more}, quote_via=urllib.parse.quote
    )
    url = f"postgresql://{user}{':' + password if password else ''}@/{database}?{options}"
    return cluster.location().__class__(url=url, schema=cluster.location().schema, connect_s=2.0)


async def _refused(location: PostgresLocation, reason: Trouble, sentence: str) -> None:
    """Opening does not fail; commits and reads say why, each for itself."""
    async with await PostgresStore.open(location) as store:
        for _ in range(2):
            with pytest.raises(StoreUnwritable) as unwritable:
                await store.commit(NewSession(session=session_id(), workspace="/w", at=1.0))
            assert (unwritable.value.reason, unwritable.value.outcome_unknown) == (reason, False)
            assert str(unwritable.value) == f"{location.label} cannot be written: {sentence}."
            with pytest.raises(StoreUnreadable) as unreadable:
                await store.list_sessions()
            assert unreadable.value.reason is reason
            assert str(unreadable.value) == f"{location.label} cannot be read: {sentence}."


async def test_a_database_that_is_away_at_the_start_is_used_once_it_is_there(
    own_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    own_cluster.stop()
    location = own_cluster.location(connect_s=2.0)
    await _refused(location, Trouble.UNREACHABLE, "the database cannot be reached")
    async with await PostgresStore.open(location) as store, await PostgresStore.open(location) as reading:
        with pytest.raises(StoreUnreadable):
            await reading.list_sessions()
        own_cluster.start()
        page = await read_once_back(reading.list_sessions)
        assert list(page.sessions) == []  # nobody has written yet
        session = session_id()
        await insist(store, NewSession(session=session, workspace="/w", at=1.0))
        await until(lambda: reading.alive(store.owner))
        await store.read_all()
        own_cluster.stop()
        with pytest.raises(StoreUnreadable):
            await store.read_all()
        assert [each for each in caplog.records if each.name == "psycopg"] == []
        with pytest.raises(StoreUnwritable) as unwritable:
            await store.commit(Append(session=session, events=(event(session),)))
        assert unwritable.value.reason is Trouble.UNREACHABLE
        with pytest.raises(StoreUnreadable) as unreadable:
            await store.read_events(session)
        assert unreadable.value.reason is Trouble.UNREACHABLE
        own_cluster.start()
        assert await insist(store, Append(session=session, events=(event(session),))) == (1,)
        assert len(await read_once_back(lambda: reading.read_events(session))) == 1


async def test_a_wrong_password_is_said_and_not_shown(cluster: Cluster) -> None:
    rules = cluster.data / "pg_hba.conf"
    rules.write_text("local all locked scram-sha-256\n" + rules.read_text())
    _run(cluster, "create role locked login password 'right'", "select pg_reload_conf()")
    location = _as(cluster, "locked", password="wrong")
    assert "wrong" not in location.label
    await _refused(location, Trouble.NO_ACCESS, "it cannot be opened")


async def test_a_database_or_user_that_does_not_exist_is_said(cluster: Cluster) -> None:
    await _refused(_as(cluster, "callgate", "nothing"), Trouble.NO_ACCESS, "it cannot be opened")
    await _refused(_as(cluster, "nobody_at_all"), Trouble.NO_ACCESS, "it cannot be opened")


async def test_a_server_that_takes_no_more_connections_is_said(cluster: Cluster) -> None:
    _run(cluster, "create role many login connection limit 0")
    sentence = "the database accepts no more connections"
    await _refused(_as(cluster, "many"), Trouble.EXHAUSTED, sentence)


async def test_without_the_right_to_make_a_schema_it_is_not_made(cluster: Cluster) -> None:
    _run(cluster, "create role plain login")
    await _refused(_as(cluster, "plain"), Trouble.NO_ACCESS, "it cannot be opened")


async def test_an_ordinary_user_with_a_schema_of_its_own_is_enough(cluster: Cluster) -> None:
    location = _as(cluster, "ordinary")
    _run(cluster, "create role ordinary login", f"create schema {location.schema} authorization ordinary")
    async with await PostgresStore.open(location) as one, await PostgresStore.open(location) as two:
        session = await new_session(one)
        await one.commit(Acquire(session=session, owner=one.owner, at=1.0))
        assert await two.alive(one.owner)
        assert not await two.alive("own_nobody")
        await append(two, session, "note")
        assert (await two.behind()).most == 1
        await one.close()
        await until(lambda: gone(two, one.owner))
        await two.commit(Acquire(session=session, owner=two.owner, at=1.0))


async def test_a_default_that_forbids_writing_is_said(cluster: Cluster) -> None:
    location = cluster.location()
    await (await PostgresStore.open(location)).close()
    _run(
        cluster,
        "create role reading login",
        "alter role reading set default_transaction_read_only = on",
        f"grant usage on schema {location.schema} to reading",
        f"grant all on all tables in schema {location.schema} to reading",
        f"grant all on all sequences in schema {location.schema} to reading",
    )
    as_reader = PostgresLocation(url=_as(cluster, "reading").url, schema=location.schema)
    async with await PostgresStore.open(as_reader) as store:
        assert list((await store.list_sessions()).sessions) == []
        with pytest.raises(StoreUnwritable) as refused:
            await new_session(store)
        assert refused.value.reason is Trouble.READ_ONLY
        assert str(refused.value).endswith("cannot be written: it is read-only.")


async def test_a_server_that_is_too_old_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "OLDEST_SERVER", 99)
    with pytest.raises(EngineTooOld, match="callgate needs at least PostgreSQL 99"):
        await PostgresStore.open(cluster.location())


async def test_a_database_that_is_not_in_utf8_is_refused(cluster: Cluster) -> None:
    _run(cluster, "create database latin encoding 'LATIN1' locale 'C' template template0")
    try:
        location = PostgresLocation(url=cluster.url.replace("/postgres?", "/latin?"), schema="x")
        with pytest.raises(StoreMisconfigured, match="LATIN1.*UTF8"):
            await PostgresStore.open(location)
    finally:
        _run(cluster, "drop database latin")


async def test_tables_of_a_newer_callgate_are_refused_and_left_alone(cluster: Cluster) -> None:
    location = cluster.location()
    async with await PostgresStore.open(location) as store:
        await new_session(store)
    _run(cluster, f"update {location.schema}.format set version = 8, oldest = 7")
    with pytest.raises(StoreTooNew, match=rf"format 8; this one knows {FORMAT}"):
        await PostgresStore.open(location)


@pytest.mark.parametrize("name", ["", "Callgate", "a-b", 'a"; drop schema public; --', "a.b", "x" * 42, "1a"])
def test_a_schema_is_named_by_plain_letters(cluster: Cluster, name: str) -> None:
    with pytest.raises(ValueError, match="not a valid schema name"):
        cluster.location().__class__(url=cluster.url, schema=name)


@pytest.mark.parametrize("url", ["nonsense", "postgresql://user:hidden@[::1", "postgresql://user:hidden@h/?oops=1"])
async def test_an_address_that_is_none_is_said_without_its_password(url: str) -> None:
    with pytest.raises(StoreAddressInvalid) as refused:
        await PostgresStore.open(PostgresLocation(url=url))
    assert "is not a database address" in str(refused.value)
    assert "hidden" not in str(refused.value)


async def test_an_id_with_a_nul_is_refused_alone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async with await PostgresStore.open(cluster.location()) as store:
        session = await new_session(store)
        grant = StoredGrant(id="g\0", session_id=session, tool=None, decision="allow")
        bad: list[Any] = [
            Append(session=session, events=(event(session), _bad_event(session))),
            NewSession(session="sess\0", workspace="/w", at=1.0),
            Append(session="sess\0", events=(event("sess\0"),)),
            PutGrant(session=session, grant=grant),
            PutEntry(kind="k\0", name="n", value="v"),
            Acquire(session=session, owner="own\0", at=1.0),
        ]
        for each in bad:
            good = [Append(session=session, events=(event(session),)) for _ in range(3)]
            before = (await store.get_session(session)).last_seq
            results = await asyncio.gather(
                *(store.commit(op) for op in (good[0], each, *good[1:])), return_exceptions=True
            )
            assert isinstance(results[1], ValueError), (each, results[1])
            assert [results[0], *results[2:]] == [((before + n,),) for n in range(1, 4)]
        assert (await store.get_session(session)).owner is None
        with pytest.raises(ValueError, match="NUL"):
            await store.read_events("sess\0")
    assert caplog.records == []  # a mistake of the caller, who is told


def _bad_event(session: str) -> Any:
    return msgspec.structs.replace(event(session), id="e\0")


async def test_a_nul_within_a_text_is_kept(cluster: Cluster) -> None:
    async with await PostgresStore.open(cluster.location()) as store:
        session = await new_session(store)
        note = event(session, text="a\0b")
        await store.commit(Append(session=session, events=(note,)))
        assert list(await store.read_events(session)) == [note]
        assert list(await store.find_sessions("\0")) == []


@contextlib.contextmanager
def _small_disk(directory: Path, cluster: Cluster) -> Iterator[None]:
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", directory], check=True)
    try:
        user = pwd.getpwnam("nobody")
        os.chown(directory, user.pw_uid, user.pw_gid)
        yield
    finally:
        cluster.stop()
        subprocess.run(["umount", directory], check=True)


@needs("root", "mount")
async def test_a_full_disk_is_said_and_work_goes_on_once_there_is_room(own_cluster: Cluster) -> None:
    disk = own_cluster.directory / "small"
    with _small_disk(disk, own_cluster):
        _run(own_cluster, f"create tablespace small location '{disk}'")
        location = _as(own_cluster, "callgate", options="-c default_tablespace=small")
        async with await PostgresStore.open(location) as store:
            session = await new_session(store)
            kept = []
            with pytest.raises(StoreUnwritable) as full:
                while True:
                    note = event(session, text=os.urandom(50_000).hex())
                    await store.commit(Append(session=session, events=(note,)))
                    kept.append(note.id)
            assert (full.value.reason, full.value.outcome_unknown) == (Trouble.FULL, False)
            assert str(full.value).endswith("cannot be written: the disk is full.")
            assert [each.id for each in await store.read_events(session)] == kept
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            await store.commit(PutBlob(data=os.urandom(100_000)), Append(session=session, events=(note,)))
            assert [each.id for each in await store.read_events(session)] == [*kept, note.id]
