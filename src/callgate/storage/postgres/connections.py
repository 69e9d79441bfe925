"""A connection to the database, as each thread of the store has one of its own.

Statements name our tables `cg.`, for the schema of the location; nothing relies on a search path or
on prepared statements, which a pooler does not keep.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import psycopg
from psycopg import sql

from callgate.core.stores import EngineTooOld
from callgate.storage.postgres.location import PostgresLocation

OLDEST_SERVER = 15
_DRAW_BITS = 48
"""Of an advisory key: room for the numbers of events."""


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A server may stop to answer while its machine goes on: then no time-out of TCP helps."""

    limit_s: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.limit_s if timeout is None else timeout)


class Connection:
    """One connection, without a transaction of its own unless `transaction` is used."""

    def __init__(
        self, location: PostgresLocation, url: str | None = None, *, patient: bool = False
    ) -> None:
        """Connects. Raises psycopg's errors, or `EngineTooOld`.

        `patient`: a statement may take as long as it takes."""
        self.location = location
        self.is_direct = url is not None or not location.is_pooled
        self.psycopg = _Bounded.connect(
            url or location.url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=max(2, round(location.connect_s)),
            application_name="callgate",
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=round(location.answer_s * 1000),
        )
        self.psycopg.limit_s = None if patient else location.answer_s
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

    def _configure(self) -> None:
        """What a pooler would not keep: there, the server's settings count."""
        wait_ms = round(self.location.answer_s * 500)
        self.psycopg.execute(
            "select set_config('lock_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false),"
            " set_config('synchronous_commit', case current_setting('synchronous_commit')"
            " when 'off' then 'on' else current_setting('synchronous_commit') end, false),"
            " set_config('jit', 'off', false)",
            (f"{wait_ms}ms", f"{wait_ms}ms"),
        )

    @property
    def schema_lock(self) -> int:
        return _key(self.location.schema, "migration")

    def owner_key(self, owner: str) -> int:
        return _key(self.location.schema, "owner " + owner)

    def text(self, statement: str) -> str:
        """A statement with the name of our schema in it."""
        return qualified(statement, self.location.schema)

    def execute(self, statement: str, values: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.psycopg.execute(self._sql(statement), values)

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

    @contextlib.contextmanager
    def transaction(self, kind: str = "") -> Iterator[None]:
        self.run(f"begin {kind}")
        try:
            yield
            self.run("commit")
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                self.run("rollback")
            raise

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.psycopg.close()


@cache
def qualified(statement: str, schema: str) -> str:
    return statement.replace("cg.", f'"{schema}".')


@cache
def _key(schema: str, purpose: str) -> int:
    """An advisory key: 64 bits, by schema and purpose."""
    digest = hashlib.sha256(f"callgate {schema} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
