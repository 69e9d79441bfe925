"""A connection to the database, as each thread of the store has one of its own.

Statements name our tables `cg.`, for the schema of the location; nothing relies on a search path or
on prepared statements, which a pooler does not keep.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import select
import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import psycopg
from psycopg import conninfo, sql

from callgate.core.stores import (
    EngineTooOld,
    StoreAddressInvalid,
    StoreMisconfigured,
    UnstorableName,
)
from callgate.storage.postgres.location import PostgresLocation, redacted
from callgate.storage.postgres.problems import Lost

OLDEST_SERVER = 15
_DRAW_BITS = 48
"""Of an advisory key: room for the numbers of events."""


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a pipeline could not be ended on a connection whose loss is raised anyway."""
    return not str(record.msg).startswith("error ignored terminating")


logging.getLogger("psycopg").addFilter(_is_news)


class _BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up on a server that does not answer; then it is of no use any more but to be closed."""

    answer_s: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit_s = self.answer_s if timeout is None else timeout
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        try:
            return super().wait(gen, interval, limit_s)
        except psycopg.OperationalError as error:
            if error.sqlstate is not None or time.monotonic() < until:
                raise
            raise Lost("the database did not answer in time") from None


class Connection:
    """One connection, without a transaction of its own unless `transaction` is used."""

    def __init__(
        self, location: PostgresLocation, url: str | None = None, *, patient: bool = False
    ) -> None:
        """Connects. Raises psycopg's errors, or `EngineTooOld`.

        `patient`: a statement may take as long as it takes."""
        self.location = location
        self.is_direct = url is not None or not location.is_pooled
        try:
            conninfo.conninfo_to_dict(url or location.url)
        except psycopg.ProgrammingError:  # whose text shows the password
            raise StoreAddressInvalid(redacted(url or location.url)) from None
        self.psycopg = _BoundedConnection.connect(
            url or location.url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=max(2, round(location.connect_s)),
            application_name="callgate",
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            # Longer than anyone waits for an answer: what holds our lock is not given up so soon.
            tcp_user_timeout=round(max(location.answer_s, location.silent_s) * 1000),
        )
        self.psycopg.answer_s = None if patient else location.answer_s
        try:
            self._check_server()
            if self.is_direct:
                self._configure()
        except BaseException:
            self.close()
            raise
        self.draw_base = _key(location.schema, "draw") >> _DRAW_BITS << _DRAW_BITS
        """Advisory keys from here on stand for numbers of events being drawn."""

    def _check_server(self) -> None:
        version = self.psycopg.info.server_version
        if version // 10_000 < OLDEST_SERVER:
            found = f"PostgreSQL {version // 10_000}"
            raise EngineTooOld(self.location.place, found, f"PostgreSQL {OLDEST_SERVER}")
        encoding = self.psycopg.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreMisconfigured(
                f"{self.location.place} has the encoding {encoding}, and callgate needs UTF8. Make "
                "another one: create database callgate encoding 'UTF8' template template0"
            )

    def _configure(self) -> None:
        """What a pooler would not keep: there, `begin` says some of it, and the server's settings
        count for the rest."""
        wait_ms = round(self.location.answer_s * 500)
        self.psycopg.execute(
            "select set_config('lock_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false),"
            " set_config('synchronous_commit', case current_setting('synchronous_commit')"
            " when 'off' then 'on' else current_setting('synchronous_commit') end, false),"
            " set_config('jit', 'off', false),"
            # So that the server, too, knows in time that the other end is gone, but not before we
            # count as silent.
            " set_config('tcp_keepalives_idle', '5', false),"
            " set_config('tcp_keepalives_interval', '2', false),"
            " set_config('tcp_keepalives_count', '3', false),"
            " set_config('tcp_user_timeout', %s, false)",
            (f"{wait_ms}ms", f"{wait_ms}ms", f"{round(self.location.silent_s * 1000)}ms"),
        )

    def has_ended(self) -> bool:
        """Whether the server, or what lies between, has ended it. Only while nothing is asked."""
        if self.psycopg.closed:
            return True
        if not readable([self.psycopg.fileno()], 0):
            return False
        try:
            self.psycopg.execute("")
        except (psycopg.Error, Lost):
            return True
        return False

    @property
    def schema_lock(self) -> int:
        return _key(self.location.schema, "migration")

    def owner_key(self, owner: str) -> int:
        return _key(self.location.schema, "owner " + owner)

    def text(self, statement: str) -> str:
        """A statement with the name of our schema in it."""
        return qualified(statement, self.location.schema)

    def execute(self, statement: str, values: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            return self.psycopg.execute(self._sql(statement), values)
        except UnicodeEncodeError:
            raise UnstorableName from None
        except psycopg.DataError as error:
            if error.sqlstate is None:  # it was not even sent
                raise UnstorableName from None
            raise

    def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.execute(statement, values or None).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        """How many rows it changed."""
        return self.execute(statement, values or None).rowcount

    def run_script(self, statements: str) -> None:
        """Several statements, without values."""
        self.execute(statements)

    def _sql(self, statement: str) -> sql.SQL:
        return sql.SQL(self.text(statement))

    def begin(self) -> None:
        """Begin a transaction that asks and then writes; if we stop in it, it ends by itself."""
        wait_ms = round(self.location.answer_s * 500)
        limits = (
            f"; set local lock_timeout = {wait_ms};"
            f" set local idle_in_transaction_session_timeout = {wait_ms}"
        )
        self.run_script("begin" + ("" if self.is_direct else limits))

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Statements may take as long as they take."""
        before, self.psycopg.answer_s = self.psycopg.answer_s, None
        try:
            yield
        finally:
            self.psycopg.answer_s = before

    @contextlib.contextmanager
    def transaction(self, kind: str = "") -> Iterator[None]:
        self.run(f"begin {kind}")
        try:
            yield
            self.run("commit")
        except BaseException:
            with contextlib.suppress(psycopg.Error, Lost):
                self.run("rollback")
            raise

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.psycopg.close()


def readable(descriptors: Iterable[int], limit_s: float) -> set[int]:
    """Wait until one of these can be read or has ended. Unlike `select`, of any number."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, limit_s) * 1000)}


@cache
def qualified(statement: str, schema: str) -> str:
    return statement.replace("cg.", f'"{schema}".')


@cache
def _key(schema: str, purpose: str) -> int:
    """An advisory key: 64 bits, by schema and purpose."""
    digest = hashlib.sha256(f"callgate {schema} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
