"""Secrets in a store that servers share: one winner a version, every server sees it, never plain."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callgate.config import secret_entries, secret_opening
from callgate.config.home import Home
from callgate.config.schema import Settings
from callgate.config.sealing import SealingKey, SecretsError, is_sealed
from callgate.config.secret_entries import KIND, SharedEntries
from callgate.config.secrets import KeyRing, Secrets, copy_all, rotate, survey
from callgate.core.models import Key, ModelError
from callgate.core.ops import PutEntry
from callgate.core.stored import SharedEntry
from callgate.core.stores import Store, StoreUnwritable, Trouble
from callgate.features.chat.models.make import delete_key, find_key, store_key, stored_keys
from callgate.features.chat.settings import ModelTable
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.config.secrets.desk import (
    EVERYTHING,
    NAMES,
    ONE,
    TWO,
    VARIABLE,
    accounts,
    contents,
    fill,
    settings,
    shows,
    tokens,
)

LIMIT_S = 20.0
PROJECT = Path(__file__).parents[4]


class Servers:
    """Several servers, each with a store of its own on the same data."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._opened: list[SharedEntries] = []

    def open_store(self) -> Callable[[], Any]:
        return partial(SqliteStore.open, str(self.directory))

    def entries(self) -> SharedEntries:
        opened = SharedEntries(self.open_store())
        self._opened.append(opened)
        return opened

    def secrets(self, key: str | None = ONE) -> Secrets:
        ring = KeyRing(None if key is None else SealingKey(key))
        return Secrets(self.entries(), lambda: ring)

    def rows(self) -> dict[str, SharedEntry]:
        async def read() -> dict[str, SharedEntry]:
            async with await SqliteStore.open(str(self.directory)) as store:
                return {entry.name: entry for entry in await store.entries(KIND)}

        return asyncio.run(read())

    def commit(self, *ops: Any) -> None:
        async def write() -> None:
            async with await SqliteStore.open(str(self.directory)) as store:
                await store.commit(*ops)

        asyncio.run(write())

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path / "shared")
    yield servers
    servers.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    tick, end = threading.Event(), time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it never came"
        tick.wait(0.01)


def test_what_one_server_writes_every_other_sees(servers: Servers) -> None:
    here, there = servers.secrets(), servers.secrets()
    assert (here.read("n"), there.mark("n")) == (None, None)
    here.update("n", lambda known: "first")
    until(lambda: there.read("n") == "first")
    mark = there.mark("n")
    there.update("n", lambda known: f"{known} second")
    until(lambda: here.read("n") == "first second")
    assert there.mark("n") != mark
    here.store.drop("n")
    here.store.drop("n")
    until(lambda: there.read("n") is None and there.mark("n") is None)


def test_a_row_holds_nothing_but_what_is_encrypted(servers: Servers) -> None:
    servers.secrets().update("n", lambda known: ONE)
    [row] = servers.rows().values()
    assert is_sealed(json.loads(row.value)) and shows(row.value) == []
    for path in servers.directory.rglob("*"):
        assert not path.is_file() or shows(path.read_bytes()) == []


def test_of_servers_that_change_one_secret_at_once_none_loses_what_it_wrote(servers: Servers) -> None:
    every = [servers.secrets() for _ in range(4)]

    def add(number: int) -> None:
        def change(known: str | None) -> str:
            return json.dumps([*json.loads(known or "[]"), number])

        every[number % 4].update("n", change)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    written = json.loads(servers.secrets().read("n") or "")
    assert sorted(written) == list(range(40))


def test_without_a_key_a_shared_store_keeps_no_secret(servers: Servers) -> None:
    with pytest.raises(SecretsError, match=r"key_env or\s+key_command"):
        servers.secrets(None).update("n", lambda known: "text")
    assert servers.rows() == {}
    servers.secrets().update("n", lambda known: "text")
    with pytest.raises(SecretsError, match="names no key"):
        servers.secrets(None).read("n")


def test_a_plain_row_and_one_in_the_place_of_another_are_refused(servers: Servers) -> None:
    secrets = servers.secrets()
    secrets.update("a", lambda known: "of a")
    row = servers.rows()["a"]
    servers.commit(
        PutEntry(kind=KIND, name="b", value=row.value),
        PutEntry(kind=KIND, name="c", value='"plain"'),
        PutEntry(kind=KIND, name="d", value='{"not": "a text"}'),
    )
    until(lambda: secrets.mark("d") is not None)
    for name in ("b", "c", "d"):
        with pytest.raises(SecretsError):
            secrets.read(name)
        with pytest.raises(SecretsError):
            secrets.update(name, lambda known: "mine")
    assert [(each.name, each.state) for each in survey(secrets)] == [
        ("a", "encrypted"),
        ("b", "unreadable"),
        ("c", "unreadable"),
        ("d", "unreadable"),
    ]
    assert secrets.read("a") == "of a"


def test_a_change_that_fails_changes_nothing_and_says_why(servers: Servers) -> None:
    secrets = servers.secrets()
    secrets.update("n", lambda known: "text")

    def change(known: str | None) -> str:
        raise SecretsError("not today")

    with pytest.raises(SecretsError, match="not today"):
        secrets.update("n", change)
    assert secrets.read("n") == "text"


def test_rotation_writes_every_row_with_the_new_key_while_others_write(servers: Servers) -> None:
    old, stop, wrote = servers.secrets(), threading.Event(), []
    both = KeyRing(SealingKey(TWO), (SealingKey(ONE),))
    busy = Secrets(servers.entries(), lambda: both)
    for number in range(12):
        old.update(f"n{number}", lambda known, number=number: f"text {number}")

    def write() -> None:
        while not stop.is_set():
            number = len(wrote) % 12
            busy.update(f"n{number}", lambda known: f"{known}!")
            wrote.append(number)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        until(lambda: len(wrote) > 3)
        result = rotate(old, SealingKey(TWO))
        stop.set()
        writing.result(LIMIT_S)
    assert not result.failed
    new = servers.secrets(TWO)
    texts = {number: new.read(f"n{number}") for number in range(12)}
    assert texts == {number: f"text {number}" + "!" * wrote.count(number) for number in range(12)}


KILLED = """
import os, signal, sys
from pathlib import Path
from callgate.config import secret_entries
from callgate.config.secrets import rotate
from callgate.config.sealing import SealingKey
from tests.kernel.config.secrets.desk import TWO
from tests.kernel.config.secrets.test_shared import Servers

left, commits = int(sys.argv[2]), secret_entries._StoreThread.update

async def update(self, name, change):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # before the row is changed
    await commits(self, name, change)
    left -= 2
    if left == -1:
        os.kill(os.getpid(), signal.SIGKILL)  # after it was, before anyone is told

secret_entries._StoreThread.update = update
rotate(Servers(Path(sys.argv[1])).secrets(), SealingKey(TWO))
"""


@pytest.mark.parametrize("step", range(6))
def test_a_rotation_of_rows_that_is_killed_loses_nothing_and_can_be_run_again(step: int, servers: Servers) -> None:
    secrets = servers.secrets()
    for name in "abc":
        secrets.update(name, lambda known, name=name: f"of {name}")
    command = [sys.executable, "-c", KILLED, str(servers.directory), str(step)]
    ran = subprocess.run(command, cwd=PROJECT, timeout=60, check=False, capture_output=True)
    assert ran.returncode == -9, ran.stderr
    used = [json.loads(row.value).split(":")[2] for row in servers.rows().values()]
    assert used.count(SealingKey(TWO).id) == (step + 1) // 2
    assert not rotate(servers.secrets(), SealingKey(TWO)).failed
    new = servers.secrets(TWO)
    assert [new.read(name) for name in "abc"] == ["of a", "of b", "of c"]


# Renewing a login.


def test_one_server_renews_at_a_time(servers: Servers) -> None:
    here, there = servers.entries(), servers.entries()
    order: list[str] = []
    here.claim("n")

    def second() -> None:
        there.claim("n")
        order.append("second")

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second)
        there.claim("other")  # the thread of `there` has the question by now, and is not held up
        there.release("other")
        order.append("first")
        here.release("n")
        waiting.result(LIMIT_S)
    assert order == ["first", "second"]
    there.release("n")
    here.claim("n")


def test_a_server_that_died_while_it_renewed_is_not_waited_for(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_entries, "CLAIM_S", 600.0)
    code = (
        "import os, sys; from tests.kernel.config.secrets.test_shared import Servers; from pathlib import Path\n"
        "Servers(Path(sys.argv[1])).entries().claim('n'); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(servers.directory)], cwd=PROJECT, timeout=60, check=False)
    assert ran.returncode == -9
    servers.entries().claim("n")


def test_a_server_that_never_ends_its_renewal_is_overtaken(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_entries, "CLAIM_S", 0.2)
    here, there = servers.entries(), servers.entries()
    here.claim("n")
    there.claim("n")
    here.release("n")  # too late: it is no longer its own
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(secret_entries, "CLAIM_S", 600.0)
        waiting = pool.submit(here.claim, "n")
        assert not waiting.done()
        there.release("n")
        waiting.result(LIMIT_S)


# The store.


def test_the_store_is_opened_at_the_first_use_and_closed_at_the_end(servers: Servers) -> None:
    opened: list[Store] = []

    async def open_store() -> Store:
        opened.append(await SqliteStore.open(str(servers.directory)))
        return opened[-1]

    entries = SharedEntries(open_store)
    assert opened == []
    assert list(entries.names()) == [] and entries.get("n") is None
    assert len(opened) == 1
    entries.close()
    assert not [each for each in threading.enumerate() if each.name == "callgate-secrets"]
    assert entries.get("n") is None
    assert len(opened) == 2
    entries.close()


def test_a_store_that_cannot_be_opened_is_said_so_and_tried_again_after_a_while(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, tried = [True], []

    async def open_store() -> Store:
        tried.append(True)
        if failing:
            raise StoreUnwritable("postgresql://db/callgate", Trouble.NO_ACCESS)
        return await SqliteStore.open(str(servers.directory))

    entries = SharedEntries(open_store)
    for _ in range(2):
        with pytest.raises(SecretsError, match="cannot be opened"):
            entries.get("n")
    assert len(tried) == 1
    failing.clear()
    monkeypatch.setattr(secret_entries, "RETRY_S", 0.0)
    assert entries.get("n") is None
    entries.close()


def test_a_store_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_entries, "WAIT_S", 0.2)

    async def open_store() -> Store:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    entries = SharedEntries(open_store)
    with pytest.raises(SecretsError, match="did not answer"):
        entries.get("n")
    entries.close()


def test_while_the_store_is_away_what_was_read_still_counts(servers: Servers) -> None:
    away: list[bool] = []
    reads = threading.Semaphore(0)

    class Flaky(SqliteStore):
        async def entries(self, kind: str) -> Any:
            if away:
                reads.release()
                raise StoreUnwritable("db", Trouble.IO)
            return await super().entries(kind)

    ring = KeyRing(SealingKey(ONE))
    secrets = Secrets(SharedEntries(partial(Flaky.open, str(servers.directory))), lambda: ring)
    secrets.update("n", lambda known: "text")
    away.append(True)
    servers.secrets().update("m", lambda known: "more")
    assert reads.acquire(timeout=LIMIT_S)
    assert secrets.read("n") == "text"
    away.clear()
    until(lambda: secrets.read("m") == "more")
    secrets.store.close()  # type: ignore[attr-defined]


def test_a_process_that_used_a_shared_store_ends(servers: Servers) -> None:
    code = (
        "import sys; from tests.kernel.config.secrets.test_shared import Servers; from pathlib import Path\n"
        "Servers(Path(sys.argv[1])).secrets().update('n', lambda known: 'text'); print('done')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(servers.directory)], cwd=PROJECT, timeout=60, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
    assert servers.secrets().read("n") == "text"


# A home whose settings name a shared store.


@pytest.fixture
def sharing(home: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As `[store] url` will: every home has its secrets in the same store."""
    open_store = servers.open_store()
    monkeypatch.setattr(secret_opening, "shared_store", lambda home, settings: open_store)
    monkeypatch.setenv(VARIABLE, ONE)
    settings(home)
    secret_opening._store.cache_clear()
    yield home
    for path in (home, home.parent / "other"):
        store = secret_opening._store(str(path), open_store)
        assert isinstance(store, SharedEntries)
        store.close()
    secret_opening._store.cache_clear()


def test_keys_and_logins_of_one_server_are_those_of_all(sharing: Path, servers: Servers) -> None:
    other = sharing.parent / "other"
    other.mkdir(mode=0o700)
    settings(other)
    fill(sharing)
    assert contents(sharing) == EVERYTHING
    until(lambda: list(stored_keys(Home(str(other)))) == ["openai"])
    until(lambda: tokens(other).read() != {} and accounts(other).known().accounts != {})
    assert contents(other) == EVERYTHING
    assert sorted(each.name for each in sharing.iterdir()) == ["settings.toml"]
    assert sorted(servers.rows()) == NAMES
    assert delete_key(Home(str(other)), "openai")
    until(lambda: stored_keys(Home(str(sharing))) == {})


def test_without_a_key_variables_and_commands_of_models_still_work(
    sharing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(sharing, "")
    home = Home(str(sharing))
    for table in (ModelTable(kind="openai", model="m"), ModelTable(kind="openai", model="m", key_env="MINE")):
        found = find_key("m", table, home, {"OPENAI_API_KEY": "usual", "MINE": "usual"})
        assert found is not None and found.reveal() == "usual"
    with pytest.raises(ModelError, match="shared store needs a key for its secrets"):
        store_key(home, "m", Key("k"))


def test_the_files_of_a_home_are_put_into_the_store_unless_it_has_them(
    sharing: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as alone:
        alone.setattr(secret_opening, "shared_store", lambda home, settings: None)
        fill(sharing)
    shared, files = secret_opening.open_secrets(Home(str(sharing))), secret_opening.home_secrets(Home(str(sharing)))
    store_key(Home(str(sharing)), "anthropic", Key("sk-shared"))
    result = copy_all(files, shared)
    assert (result.written, result.unchanged, result.failed) == (["google.json", "mcp/web.tokens"], ["keys.json"], [])
    assert list(stored_keys(Home(str(sharing)))) == ["anthropic"]
    assert accounts(sharing).known().accounts.keys() == {"default"}
    assert sorted(servers.rows()) == NAMES


def test_settings_of_today_share_no_store(home: Path) -> None:
    assert secret_opening.shared_store(Home(str(home)), Settings()) is None
