"""What calls put aside, where several homes share a store: it is there after a takeover, and goes with its session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callgate import Gate
from callgate.core.ops import PutEntry
from callgate.core.stores import StoreUnwritable, Trouble
from callgate.sessions import artifacts
from callgate.sessions.artifacts import SharedArtifacts, drop_shared, kind_of
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.sessions.sites import Site
from tests.memory_store import MemoryStore


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    for n in range(6_000):
        (made.ws / f"file_with_a_long_name_{n}.txt").touch()
    return made


def files_of(home: Path, session: str) -> dict[str, bytes]:
    directory = home / "artifacts" / session
    return {path.name: path.read_bytes() for path in directory.iterdir()} if directory.exists() else {}


async def listing(gate: Gate) -> str:
    """Have a call put something aside; the session."""
    result = await gate.call("find_files", {"pattern": "*.txt"})
    assert result.ok
    return gate.session.id


async def blobs_in(site: Site) -> int:
    import apsw  # noqa: PLC0415

    with apsw.Connection(str(site.store_path / "callgate.db")) as db:
        [(count,)] = db.execute("select count(*) from blobs")
    return int(count)


async def test_what_a_call_put_aside_can_be_read_where_its_session_is_resumed(site: Site) -> None:
    a, b = site.homes
    async with Gate(workspace=site.ws, home=a) as gate:
        session = await listing(gate)
    (name, content), *more = files_of(a, session).items()
    assert not more and content.count(b"\n") == 6_000
    assert files_of(b, session) == {}
    async with Gate(home=b, session=session) as gate:
        assert files_of(b, session) == {name: content}
        path = b / "artifacts" / session / name
        read = await gate.call("read_file", {"path": str(path), "limit": 1})
        assert read.ok, read.error
    async with Gate(home=b, session=session):  # again: nothing is fetched twice, or changed
        assert files_of(b, session) == {name: content}


async def test_a_deleted_session_leaves_no_blob_and_others_keep_theirs(site: Site) -> None:
    a, b = site.homes
    sessions = []
    for _ in range(2):  # both put the same aside
        async with Gate(workspace=site.ws, home=a) as gate:
            sessions.append(await listing(gate))
    assert await blobs_in(site) == 2
    async with site.gate(b) as gate:
        await gate.runtime.sessions.delete(sessions[0])
        store = await gate._wired.log.store()
        assert list(await store.entries(kind_of(sessions[0]))) == []
    assert await blobs_in(site) == 1
    async with Gate(home=b, session=sessions[1]):
        assert len(files_of(b, sessions[1])) == 1


async def test_a_large_file_is_kept_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "PART_BYTES", 1_000)
    content = os.urandom(3_500)
    one, two = tmp_path / "one" / "s1", tmp_path / "two"
    one.mkdir(parents=True)
    (one / "out.bin").write_bytes(content)
    (one / "empty").touch()
    store = MemoryStore()

    async def find_store() -> MemoryStore:
        return store

    here = SharedArtifacts(find_store, str(tmp_path / "one"))
    for _ in range(2):
        await here.share("s1", [str(one / "out.bin"), str(one / "empty"), str(one / "never_made")])
    elsewhere = SharedArtifacts(find_store, str(two))
    assert await elsewhere.fetch("s1") == str(two / "s1")
    found = {path.name: path.read_bytes() for path in (two / "s1").iterdir()}
    assert found == {"out.bin": content, "empty": b""}
    assert await elsewhere.fetch("s2") is None
    assert await drop_shared(store, "s1", before=1.0) == 0
    assert await drop_shared(store, "s1") == 2
    assert list(await store.entries(kind_of("s1"))) == []
    assert await SharedArtifacts(find_store, str(tmp_path / "three")).fetch("s1") is None


async def test_names_and_blobs_of_the_store_are_not_believed(tmp_path: Path) -> None:
    store = MemoryStore()

    async def find_store() -> MemoryStore:
        return store

    source = tmp_path / "one" / "s1"
    source.mkdir(parents=True)
    (source / "a").write_text("secret of s1")
    await SharedArtifacts(find_store, str(tmp_path / "one")).share("s1", [str(source / "a")])
    (entry,) = await store.entries(kind_of("s1"))
    for session, name in (("s2", "a"), ("s1", "b"), ("s1", "../../evil"), ("s1", ".hidden")):
        await store.commit(PutEntry(kind=kind_of(session), name=name, value=entry.value))
    there = SharedArtifacts(find_store, str(tmp_path / "two"))
    await there.fetch("s1")
    await there.fetch("s2")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and "two" in path.parts] == ["a"]
    assert not (tmp_path / "evil").exists()


async def test_a_store_that_is_away_costs_a_call_nothing_but_the_copy(site: Site) -> None:
    a, _ = site.homes

    async def away() -> MemoryStore:
        raise StoreUnwritable("the store", Trouble.IO)

    async with Gate(workspace=site.ws, home=a) as gate:
        gate._wired.dispatcher.files.share = SharedArtifacts(away, str(a / "artifacts")).share
        session = await listing(gate)
    assert len(files_of(a, session)) == 1
    assert await blobs_in(site) == 0


async def test_a_home_without_a_shared_store_keeps_no_blobs(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    for n in range(6_000):
        (ws / f"file_with_a_long_name_{n}.txt").touch()
    async with Gate(workspace=ws, home=tmp_path / "home") as gate:
        session = await listing(gate)
    async with await SqliteStore.open(str(tmp_path / "home")) as store:
        assert list(await store.entries(kind_of(session))) == []
