"""Connections to PostgreSQL, one for each thread of the store, and the liveness of their processes.

Statements name the tables `cg.`, a placeholder for the schema of the location. No code relies on a
search path or on prepared statements, which a pooler does not preserve. Errors of the database
become store errors.

Each process has an advisory lock on its direct connections, and sends beats:

    lock held, heard of lately  ---> alive
    lock held, silent for long  ---> stopped: counts as dead; sooner if a witness was not silent
    no lock                     ---> dead, unless the database has just restarted
    marked as dead              ---> dead, whatever it does; `beat` reports it

A witness is another process without a silence in the meantime. It proves that the database did
answer, so the silent process is stopped or disconnected. Without a witness, the database itself may
have been unavailable.

A restart, a crash or a failover of the database removes all locks. Each starts a new *boot* with an
id, so that clocks of different servers are not compared. An owner from an earlier boot has a grace
period to reconnect, counted from the first beat of any process in the new boot.
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
    StoreUnreadable,
    StoreUnwritable,
    Trouble,
    UnstorableName,
)
from callgate.features.fleet.postgres import PostgresLocation, redacted

_BY_STATE = {
    "25006": Trouble.READ_ONLY,  # a standby
    "53300": Trouble.EXHAUSTED,
    "53100": Trouble.FULL,
    "55P03": Trouble.BUSY,
    "57014": Trouble.BUSY,
    "3D000": Trouble.NO_ACCESS,
    "42501": Trouble.NO_ACCESS,
    "25P03": Trouble.UNREACHABLE,
}
_BY_CLASS = {
    "08": Trouble.UNREACHABLE,
    "57": Trouble.UNREACHABLE,
    "28": Trouble.NO_ACCESS,
    "40": Trouble.BUSY,
    "53": Trouble.EXHAUSTED,
    "58": Trouble.IO,
    "XX": Trouble.IO,
}


_EXHAUSTED = ("too many", "remaining connection slots", "no more connections allowed")


class Lost(Exception):
    """The connection is lost, or the database did not answer in time."""


TROUBLE = (psycopg.Error, Lost, OSError)
"""Errors of the database."""


def trouble_of(error: BaseException) -> Trouble | None:
    """Return the kind of trouble; None for a defect of this program."""
    if isinstance(error, Lost | OSError):
        return Trouble.UNREACHABLE
    state = getattr(error, "sqlstate", None) or ""
    known = _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
    if known is None and isinstance(error, psycopg.OperationalError):
        return _of_message(str(error)) if not state else Trouble.IO
    return known


def _of_message(text: str) -> Trouble:
    """Return the kind of a refused connection, from the message: libpq gives the reason only as
    text.
    """
    if any(word in text for word in _EXHAUSTED):
        return Trouble.EXHAUSTED
    failures = [line.rpartition("failed: ")[2] for line in text.splitlines() if "failed: " in line]
    if failures and all("session is read-only" in each for each in failures):
        return Trouble.READ_ONLY  # all hosts are standbys
    if "authentication failed" in text or "does not exist" in text or "permission denied" in text:
        return Trouble.NO_ACCESS
    return Trouble.UNREACHABLE


def unwritable(
    label: str, error: BaseException, *, outcome_unknown: bool = False
) -> StoreUnwritable | None:
    trouble = trouble_of(error)
    if trouble is None:
        return None
    return StoreUnwritable(label, trouble, outcome_unknown=outcome_unknown)


def unreadable(label: str, error: BaseException) -> StoreUnreadable | None:
    trouble = trouble_of(error)
    return None if trouble is None else StoreUnreadable(label, trouble)


OLDEST_SERVER = 15
_DRAW_BITS = 48
"""Bits of an advisory key for the numbers of events."""


def _is_news(record: logging.LogRecord) -> bool:
    """Filter a message about ending a pipeline; the loss of its connection is raised anyway."""
    return not str(record.msg).startswith("error ignored terminating")


logging.getLogger("psycopg").addFilter(_is_news)


class _BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up on a server that does not answer. After that it can only be closed."""

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
    """One connection in autocommit mode, unless `transaction` is used."""

    def __init__(
        self, location: PostgresLocation, url: str | None = None, *, patient: bool = False
    ) -> None:
        """Connect. Raises psycopg's errors, or `EngineTooOld`.

        `patient`: statements have no time limit.
        """
        self.location = location
        self.is_direct = url is not None or not location.is_pooled
        try:
            conninfo.conninfo_to_dict(url or location.url)
        except psycopg.ProgrammingError:  # the text of this error contains the password
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
            # At least the limit of any wait, so that a lock is not lost earlier.
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
        """First advisory key of the numbers of events in flight."""

    def _check_server(self) -> None:
        version = self.psycopg.info.server_version
        if version // 10_000 < OLDEST_SERVER:
            found = f"PostgreSQL {version // 10_000}"
            raise EngineTooOld(self.location.label, found, f"PostgreSQL {OLDEST_SERVER}")
        encoding = self.psycopg.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreMisconfigured(
                f"{self.location.label} has the encoding {encoding}, and callgate needs UTF8. "
                "Create a new one: create database callgate encoding 'UTF8' template template0"
            )

    def _configure(self) -> None:
        """Set session parameters, which a pooler would not preserve. For a pooler, `begin` sets
        some of them, and the settings of the server apply for the others.
        """
        wait_ms = round(self.location.answer_s * 500)
        self.psycopg.execute(
            "select set_config('lock_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false),"
            " set_config('synchronous_commit', case current_setting('synchronous_commit')"
            " when 'off' then 'on' else current_setting('synchronous_commit') end, false),"
            " set_config('jit', 'off', false),"
            # The server must notice a lost client soon, but not before the process counts as
            # silent.
            " set_config('tcp_keepalives_idle', '5', false),"
            " set_config('tcp_keepalives_interval', '2', false),"
            " set_config('tcp_keepalives_count', '3', false),"
            " set_config('tcp_user_timeout', %s, false)",
            (f"{wait_ms}ms", f"{wait_ms}ms", f"{round(self.location.silent_s * 1000)}ms"),
        )

    def has_ended(self) -> bool:
        """Whether the server or the network has ended the connection. Call only without a pending
        query.
        """
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
        """Return a statement with the name of the schema."""
        return qualified(statement, self.location.schema)

    def execute(self, statement: str, values: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            return self.psycopg.execute(self._sql(statement), values)
        except UnicodeEncodeError:
            raise UnstorableName from None
        except psycopg.DataError as error:
            if error.sqlstate is None:  # it was not sent
                raise UnstorableName from None
            raise

    def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.execute(statement, values or None).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        """Run a statement, and return the number of changed rows."""
        return self.execute(statement, values or None).rowcount

    def run_script(self, statements: str) -> None:
        """Run several statements without values."""
        self.execute(statements)

    def _sql(self, statement: str) -> sql.SQL:
        return sql.SQL(self.text(statement))

    def begin(self) -> None:
        """Begin a transaction that reads and then writes. It ends automatically if this process
        stops.
        """
        wait_ms = round(self.location.answer_s * 500)
        limits = (
            f"; set local lock_timeout = {wait_ms};"
            f" set local idle_in_transaction_session_timeout = {wait_ms}"
        )
        self.run_script("begin" + ("" if self.is_direct else limits))

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Disable the time limit of statements within the context."""
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
    """Wait until one of these is readable or has ended. Unlike `select`, the number is
    unlimited.
    """
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, limit_s) * 1000)}


@cache
def qualified(statement: str, schema: str) -> str:
    return statement.replace("cg.", f'"{schema}".')


@cache
def _key(schema: str, purpose: str) -> int:
    """Return an advisory key: 64 bits, by schema and purpose."""
    digest = hashlib.sha256(f"callgate {schema} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


_BOOT = """
concat_ws(
    ' ',
    extract(epoch from pg_postmaster_start_time()),
    extract(epoch from pg_stat_get_bgwriter_stat_reset_time()),
    case when not pg_is_in_recovery()
    then substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end
)
"""
"""Differs after a restart, after a crash of one backend (which resets statistics, and takes all
locks with it), and after a failover (a new timeline)."""
_NOTE_BOOT = f"with boot as (insert into cg.boots (id) select {_BOOT} on conflict do nothing)"
_STEADY = """
steady_since = case when clock_timestamp() - o.beat_at < make_interval(secs => %s)
then o.steady_since else clock_timestamp() end
"""
_DECLARE = f"""
{_NOTE_BOOT}
insert into cg.owners as o (id, key, locks, format, boot) values (%s, %s, %s, %s, {_BOOT})
on conflict (id) do update
set beat_at = clock_timestamp(), locks = excluded.locks, boot = excluded.boot, {_STEADY}
returning dead
"""  # noqa: S608
_BEAT = f"""
{_NOTE_BOOT}
update cg.owners o set beat_at = clock_timestamp(), boot = {_BOOT}, {_STEADY}
where id = %s returning dead
"""  # noqa: S608
_ALIVE = f"""
with now as (select {_BOOT} as boot),
recovery as (
    select now.boot, coalesce(
        clock_timestamp() - boots.since < make_interval(secs => %(grace)s), true
    ) as lasts
    from now left join cg.boots on boots.id = now.boot
)
select o.id from cg.owners o, recovery where o.id = any(%(owners)s) and not o.dead and (
    clock_timestamp() - o.beat_at < make_interval(secs => %(silent)s)
    and not (
        clock_timestamp() - o.beat_at > make_interval(secs => %(stopped)s)
        and exists (
            select 1 from cg.owners w where w.id <> o.id and not w.dead
            and clock_timestamp() - w.beat_at < make_interval(secs => %(gap)s)
            and clock_timestamp() - w.steady_since > make_interval(secs => %(stopped)s)
        )
    )
    and (not o.locks or exists (
        select 1 from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 1
        and l.database = (select oid from pg_database where datname = current_database())
        and l.classid = ((o.key >> 32) & 4294967295)::oid and l.objid = (o.key & 4294967295)::oid
    ))
    or o.boot <> recovery.boot and recovery.lasts
)
"""  # noqa: S608


def declare(db: Connection, owner: str, known_format: int) -> bool:
    """Announce this process on the connection. False if others marked it as dead."""
    key = db.owner_key(owner)
    if db.is_direct:
        db.run("select pg_advisory_lock_shared(%s)", key)
    locks = db.location.direct_url is not None
    [(dead,)] = db.fetch(_DECLARE, owner, key, locks, known_format, _gap(db))
    return not dead


def beat(db: Connection, owner: str) -> bool:
    """Send a beat. False if others marked the process as dead."""
    found = db.fetch(_BEAT, _gap(db), owner)
    return bool(found) and not found[0][0]


def withdraw(db: Connection, owner: str) -> None:
    """Remove this process from the owners."""
    db.run("delete from cg.owners where id = %s", owner)


def living(db: Connection, owners: Iterable[str]) -> set[str]:
    """Return the owners that are alive."""
    wanted = list(owners)
    if not wanted:
        return set()
    limits = {
        "silent": db.location.silent_s,
        "stopped": db.location.stopped_s,
        "gap": _gap(db),
        "grace": db.location.grace_s,
    }
    return {id for (id,) in db.execute(_ALIVE, {"owners": wanted, **limits}).fetchall()}


def _gap(db: Connection) -> float:
    """Return how far apart two beats of a steady process may be."""
    return max(2.5 * db.location.beat_s, db.location.stopped_s / 2)
