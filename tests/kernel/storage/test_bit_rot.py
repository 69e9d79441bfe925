"""Bytes of the file that changed by themselves: each answer is right, or the store says that it is damaged."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from callgate.core.events import EVENTS_LOST
from callgate.core.ids import ulid
from callgate.core.ops import Append, AppendMessages, PutBlob, PutEntry, PutGrant
from callgate.core.stored import StoredGrant, StoredMessage
from callgate.core.stores import StoreDamaged, StoreError
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.contract.stores import append, ask, event, new_session, start

BLOB = b"blob" * 2_000
Read = Callable[[Any, str], Awaitable[Any]]
READS: dict[str, Read] = {
    "list_sessions": lambda store, _: store.list_sessions(),
    "get_session": lambda store, session: store.get_session(session),
    "workers_of": lambda store, session: store.workers_of(session),
    "find_sessions": lambda store, session: store.find_sessions(session[5:12].casefold()),
    "snapshot": lambda store, session: store.snapshot(session),
    "read_events": lambda store, session: store.read_events(session),
    "read_all": lambda store, _: store.read_all(),
    "read_last": lambda store, _: store.read_last(),
    "behind": lambda store, _: store.behind(),
    "read_messages": lambda store, session: store.read_messages(session),
    "open_confirmations": lambda store, _: store.open_confirmations(),
    "open_calls": lambda store, session: store.open_calls(session),
    "grants": lambda store, session: store.grants(session),
    "entries": lambda store, _: store.entries("rules"),
    "get_blob": lambda store, _: store.get_blob(HASH),
    "cut_sessions": lambda store, _: store.cut_sessions(),
    "outbox": lambda store, _: store.outbox(),
    "dead_owners": lambda store, _: store.dead_owners(),
    "audited_from": lambda store, _: store.audited_from(),
    "usage": lambda store, _: store.usage(),
}
HASH = hashlib.sha256(BLOB).hexdigest()
TEXTS = [
    ("sessions", "id"),
    ("sessions", "workspace"),
    ("sessions", "body"),
    ("events", "id"),
    ("events", "body"),
    ("messages", "id"),
    ("messages", "body"),
    ("calls", "id"),
    ("calls", "state"),
    ("calls", "body"),
    ("confirmations", "id"),
    ("confirmations", "state"),
    ("confirmations", "body"),
    ("grants", "body"),
    ("entries", "name"),
    ("entries", "body"),
    ("blobs", "data"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home whose store has something in every table, and one of its sessions."""
    home = tmp_path_factory.mktemp("sound")
    return home, asyncio.run(filled(home))


async def filled(home: Path) -> str:
    async with await SqliteStore.open(str(home)) as store:
        first, *others = [await new_session(store, title=f"session {n}") for n in range(3)]
        for session in (first, *others):
            begun = start(store, session)
            grant = StoredGrant(id=ulid(), session_id=session, tool="t", decision="allow")
            await store.commit(
                Append(session=session, events=tuple(event(session, text="x" * 300) for _ in range(20))),
                AppendMessages(
                    session=session, messages=(StoredMessage(id=ulid(), body={"text": "hello" * 30}),), at=1.0
                ),
                begun,
                ask(store, session),
                PutGrant(session=session, grant=grant),
            )
        await store.commit(
            PutBlob(data=BLOB),
            PutEntry(kind="rules", name="one", value="x" * 100),
        )
    return first


def copied(sound: Path, target: Path) -> Path:
    home = target / "home"
    home.mkdir(mode=0o700)
    shutil.copyfile(sound / "callgate.db", home / "callgate.db")
    return home


def rot(home: Path, table: str, column: str, how: str) -> None:
    """Change the text of a column in every row of a table as a failing disk does."""
    db = apsw.Connection(str(home / "callgate.db"))
    for (value,) in db.execute(f"select distinct cast({column} as blob) from {table}").fetchall():
        if value is None:
            continue
        half = len(value) // 2
        rotten = {"byte": value[:half] + b"\xff" + value[half + 1 :], "cut": value[:half], "zeros": bytes(len(value))}[
            how
        ]
        kind = "blob" if column == "data" else "text"
        change = f"update {table} set {column} = cast(? as {kind}) where cast({column} as blob) = ?"
        db.execute(change, (rotten, value))
    db.execute("pragma wal_checkpoint(truncate)")
    db.close()


async def answers(home: Path, session: str) -> dict[str, Any]:
    """Each answer of the store, or the error in its place."""
    found: dict[str, Any] = {}
    try:
        store = await SqliteStore.open(str(home))
    except StoreError as error:
        return dict.fromkeys(READS, error)
    async with store:
        for name, read in READS.items():
            try:
                found[name] = await read(store, session)
            except StoreError as error:
                found[name] = error
    return found


def is_marked(answer: Any) -> bool:
    """Whether an answer says itself that events are missing."""
    events = getattr(answer, "events", answer)
    return isinstance(events, list | tuple) and any(getattr(each, "type", "") == EVENTS_LOST for each in events)


@pytest.mark.parametrize("how", ["byte", "cut"])
@pytest.mark.parametrize(("table", "column"), TEXTS)
async def test_a_text_that_rotted_is_reported_as_damage_and_saved(
    sound: tuple[Path, str], tmp_path: Path, table: str, column: str, how: str
) -> None:
    home, session = copied(sound[0], tmp_path), sound[1]
    right = await answers(home, session)
    assert not [each for each in right.values() if isinstance(each, StoreError)]
    try:
        rot(home, table, column, how)
    except apsw.ConstraintError:
        pytest.skip("two rows would have one key")
    wrong = {
        name: answer
        for name, answer in (await answers(home, session)).items()
        if answer != right[name] and not isinstance(answer, StoreDamaged) and not is_marked(answer)
    }
    if column == "body":
        assert {name: each for name, each in wrong.items() if name != "usage"} == {}
    assert not [each for each in wrong.values() if isinstance(each, Exception) and not isinstance(each, StoreError)]
    with pytest.raises(StoreDamaged) as damaged:
        (home / "callgate.db-damaged").touch()  # as after damage was met
        await SqliteStore.open(str(home))
    assert damaged.value.salvage is not None and os.path.exists(damaged.value.salvage.path)


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_byte_rots_no_answer_is_an_internal_error(
    sound: tuple[Path, str], tmp_path: Path, seed: int
) -> None:
    chance, session = random.Random(seed), sound[1]
    data = (sound[0] / "callgate.db").read_bytes()
    for number in range(25):
        (tmp_path / str(number)).mkdir()
        home = copied(sound[0], tmp_path / str(number))
        changed = bytearray(data)
        for _ in range(chance.choice([1, 1, 4, 40])):
            at = chance.randrange(len(changed))
            changed[at] = chance.choice([changed[at] ^ (1 << chance.randrange(8)), 0, 0xFF, 0x80])
        (home / "callgate.db").write_bytes(changed)
        await answers(home, session)  # raises what is no `StoreError`
        try:
            async with await SqliteStore.open(str(home)) as store:
                await append(store, session, "after")
        except StoreError:
            pass


COMMANDS = [
    ["sessions"],
    ["sessions", "show", "SESSION"],
    ["events", "--session", "SESSION"],
    ["confirmations"],
    ["sessions", "export", "SESSION"],
    ["doctor"],
    ["audit", "verify"],
]


@pytest.mark.parametrize(("table", "column"), [("sessions", "id"), ("messages", "body"), ("confirmations", "body")])
def test_no_command_meets_rot_with_an_internal_error_or_blames_an_option(
    sound: tuple[Path, str], tmp_path: Path, table: str, column: str
) -> None:
    home, session = copied(sound[0], tmp_path), sound[1]
    rot(home, table, column, "byte")
    env = {**os.environ, "CALLGATE_HOME": str(home)}
    reported = 0
    for words in COMMANDS:
        command = [sys.executable, "-m", "callgate", *(session if each == "SESSION" else each for each in words)]
        ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        said = ran.stdout + ran.stderr
        assert "Traceback" not in said and "internal" not in said.lower() and "UnicodeDecodeError" not in said, said
        assert "codec" not in said, said
        if "is damaged" in said:
            reported += 1
            assert ran.returncode != 0
    assert reported > 0
    saved = list(home.glob("callgate.db.saved-*"))
    assert saved, "nothing was saved"
