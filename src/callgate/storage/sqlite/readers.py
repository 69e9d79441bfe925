"""Two threads that read, each with a connection of its own; the writer never blocks them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import apsw

from callgate.storage.sqlite.files import Location, lasting, mark_damage, open_reader
from callgate.storage.sqlite.problems import DAMAGE, TROUBLE, unreadable
from callgate.storage.sqlite.schema import ensure_schema

READERS = 2

T = TypeVar("T")


class Readers:
    def __init__(self, location: Location) -> None:
        self._location = location
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="callgate-store-reader")
        self._local = threading.local()
        self._open: set[apsw.Connection] = set()

    async def run(self, act: Callable[[], T]) -> T:
        """Do something in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def ask(self, question: Callable[[apsw.Connection], T]) -> T:
        return await self.run(lambda: self._answer(question))

    def _answer(self, question: Callable[[apsw.Connection], T]) -> T:
        try:
            db = self._connection()
            try:
                return question(db)
            except apsw.SQLError:
                ensure_schema(db, self._location.path)
                raise
            finally:
                if db not in self._open:
                    db.close(force=True)
        except DAMAGE + TROUBLE as error:
            self._disconnect()
            if isinstance(error, DAMAGE):
                mark_damage(self._location)
            raise unreadable(self._location.path, error) from error

    def _connection(self) -> apsw.Connection:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = open_reader(self._location)
            if lasting(db):
                self._local.db = db
                self._open.add(db)
        return db

    def _disconnect(self) -> None:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        self._local.db = None
        if db is not None:
            self._open.discard(db)
            db.close(force=True)

    def close(self) -> None:
        self._threads.shutdown()
        for db in self._open:
            db.close(force=True)
