"""Homes that share one store and nothing else, for the tests of what they share."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callgate import Gate
from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord
from callgate.core.events import TERMINAL, Event
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.gate.lives import mark, think
from tests.kernel.storage.processes import child
from tests.shared_stores import SECRETS

LIVES = "tests.kernel.sessions.home_lives"


class Site:
    """Homes that share nothing but a store: in a directory of its own, or a schema of a database."""

    def __init__(self, path: Path, location: PostgresLocation | None = None) -> None:
        self.path = path
        self.store_path = path / "store"
        self.location = location
        self.ws = path / "ws"
        self.ws.mkdir()
        self.homes = [self.home(name) for name in ("a", "b")]

    def home(self, name: str, lost_after_minutes: float = 15) -> Path:
        home = self.path / name
        home.mkdir(mode=0o700, exist_ok=True)
        url = f"sqlite://{self.store_path}" if self.location is None else self.location.url
        settings = f'[store]\nurl = "{url}"\nlost_after_minutes = {lost_after_minutes}\n'
        if self.location is not None:
            settings += f'schema = "{self.location.schema}"\n'
        (home / "settings.toml").write_text(settings + SECRETS)
        return home

    @asynccontextmanager
    async def gate(self, home: Path) -> AsyncIterator[Gate]:
        """A process of a home that has looked after those who are gone."""
        async with Gate(workspace=self.ws, tools=[mark, think], home=home, mode="write") as gate:
            await gate._wired.log.store()
            yield gate

    async def open_store(self) -> SqliteStore | PostgresStore:
        if self.location is not None:
            return await PostgresStore.open(self.location)
        return await SqliteStore.open(str(self.store_path))

    @asynccontextmanager
    async def store(self) -> AsyncIterator[SqliteStore | PostgresStore]:
        async with await self.open_store() as store:
            yield store

    async def look(self, home: Path) -> None:
        async with self.gate(home):
            pass

    async def events(self, session: str) -> list[Event]:
        async with self.store() as store:
            return list(await store.read_events(session))

    async def ends(self, session: str) -> list[tuple[str, str | None]]:
        events = await self.events(session)
        return [(each.type, each.payload.get("reason")) for each in events if each.type in TERMINAL]

    def lines(self, home: Path) -> list[CallRecord]:
        return [line for line, _ in newest_first(str(home / "audit.jsonl"))]

    async def die(self, role: str, home: Path) -> Any:
        async with child(role, home, self.ws, module=LIVES) as dying:
            said = await dying.hear()
            assert said is not None
            if role in ("hang", "writing"):
                dying.process.kill()
            assert await dying.process.wait() == -signal.SIGKILL
        return said
