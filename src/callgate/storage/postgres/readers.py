"""Threads that read, each with a connection of its own; the writer never blocks them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg

from callgate.storage.postgres.connections import Connection
from callgate.storage.postgres.location import PostgresLocation
from callgate.storage.postgres.problems import TROUBLE, trouble_of, unreadable
from callgate.storage.postgres.schema import migrate

T = TypeVar("T")


class Readers:
    def __init__(self, location: PostgresLocation) -> None:
        self._location = location
        self._threads = ThreadPoolExecutor(
            location.readers, thread_name_prefix="callgate-store-reader"
        )
        self._local = threading.local()
        self._open: set[Connection] = set()

    async def run(self, act: Callable[[], T]) -> T:
        """Do something in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def ask(self, question: Callable[[Connection], T]) -> T:
        return await self.run(lambda: self._answer(question))

    def _answer(self, question: Callable[[Connection], T]) -> T:
        was_open = getattr(self._local, "db", None) is not None
        try:
            return self._ask(question)
        except TROUBLE as error:
            if not was_open or not _is_lost(error):
                raise self._named(error) from error
        try:  # the connection had ended meanwhile: a new one
            return self._ask(question)
        except TROUBLE as error:
            raise self._named(error) from error

    def _ask(self, question: Callable[[Connection], T]) -> T:
        try:
            return question(self._connection())
        except TROUBLE as error:
            if trouble_of(error) is not None or _is_lost(error):
                self._disconnect()
            raise

    def _named(self, error: BaseException) -> BaseException:
        return unreadable(self._location.place, error) or error

    def _connection(self) -> Connection:
        db: Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = Connection(self._location)
            try:
                migrate(db)  # also where the database was away when we began
            except BaseException:
                db.close()
                raise
            self._local.db = db
            self._open.add(db)
        return db

    def _disconnect(self) -> None:
        db: Connection | None = getattr(self._local, "db", None)
        self._local.db = None
        if db is not None:
            self._open.discard(db)
            db.close()

    def close(self) -> None:
        self._threads.shutdown()
        for db in self._open:
            db.close()


def _is_lost(error: BaseException) -> bool:
    """Whether to ask once more on a new connection. Statements that the server does not understand
    too: connecting tells whether a newer callgate has changed the tables."""
    return isinstance(
        error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.ProgrammingError
    )
