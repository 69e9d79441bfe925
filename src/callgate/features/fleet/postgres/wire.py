"""Statements of one transaction in one round trip: a pipeline of libpq, with binary arrays.

This module knows no table. A failed statement ends the pipeline. Its purpose is reported, so that
the writer knows which assumption was wrong.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.errors import lookup

from callgate.features.fleet.postgres.connections import Lost

_TEXT, _INT8, _FLOAT8, _BYTEA = 25, 20, 701, 17
_ARRAYS = {_TEXT: 1009, _INT8: 1016, _FLOAT8: 1022, _BYTEA: 1001}
_HEAD = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_INTEGER = struct.Struct("!iq")
_FLOAT = struct.Struct("!id")
_NULL = _LENGTH.pack(-1)
_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class Value(NamedTuple):
    oid: int
    data: bytes


class Statement(NamedTuple):
    sql: str
    values: tuple[Value, ...] = ()
    purpose: str = ""
    """The purpose of the statement, reported if it fails."""


class StatementFailed(Exception):
    def __init__(self, purpose: str, sqlstate: str, message: str) -> None:
        super().__init__(f"{purpose or 'a statement'}: {message}")
        self.purpose = purpose
        self.sqlstate = sqlstate
        self.message = message

    def as_error(self) -> psycopg.Error:
        try:
            kind = lookup(self.sqlstate)
        except KeyError:
            kind = psycopg.DatabaseError
        error = kind(self.message)
        error.sqlstate = self.sqlstate
        return error


def texts(values: Sequence[str | None]) -> Value:
    encoded = []
    for value in values:
        if value is None:
            encoded.append(_NULL)
            continue
        data = _text(value)
        encoded.append(_LENGTH.pack(len(data)))
        encoded.append(data)
    return _array(_TEXT, len(values), encoded)


def integers(values: Sequence[int]) -> Value:
    return _array(_INT8, len(values), [_INTEGER.pack(8, value) for value in values])


def floats(values: Sequence[float]) -> Value:
    return _array(_FLOAT8, len(values), [_FLOAT.pack(8, value) for value in values])


def byte_strings(values: Sequence[bytes]) -> Value:
    encoded = [part for value in values for part in (_LENGTH.pack(len(value)), value)]
    return _array(_BYTEA, len(values), encoded)


def integer(value: int) -> Value:
    return Value(_INT8, value.to_bytes(8, signed=True))


def text(value: str) -> Value:
    return Value(_TEXT, _text(value))


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    if b"\0" in data:
        raise ValueError("a name with a NUL character cannot be stored")
    return data


def _array(oid: int, length: int, elements: Sequence[bytes]) -> Value:
    head = _HEAD.pack(1, 1, oid, length, 1)
    return Value(_ARRAYS[oid], b"".join([head, *elements]))


Results = list[list[tuple[bytes | None, ...]]]


def exchange(
    connection: psycopg.Connection[Any],
    statements: Sequence[Statement],
    limit_s: float,
    sent: Callable[[], None] = lambda: None,
) -> Results:
    """Send statements, and return the rows of each as text.

    `sent` is called when the server may have received them: if the connection is `Lost` after
    that, the outcome is unknown. Raises `StatementFailed` for the first failed statement.
    """
    pg, until = connection.pgconn, time.monotonic() + limit_s
    try:
        pg.nonblocking = 1
        pg.enter_pipeline_mode()
        for each in statements:
            pg.send_query_params(
                each.sql.encode(),
                [value.data for value in each.values],
                [value.oid for value in each.values],
                [pq.Format.BINARY] * len(each.values),
                pq.Format.TEXT,
            )
        pg.pipeline_sync()
        sent()
        _flush(pg, until)
        return _receive(pg, statements, until)
    except psycopg.OperationalError as error:
        raise Lost(str(error)) from error
    finally:
        if pg.status == pq.ConnStatus.OK:
            try:
                pg.exit_pipeline_mode()
                pg.nonblocking = 0
            except psycopg.Error:  # an answer is outstanding, so the connection is unusable
                connection.close()


def _flush(pg: pq.abc.PGconn, until: float) -> None:
    while pg.flush():
        _wait(pg, until, writing=True)
        pg.consume_input()


def _receive(pg: pq.abc.PGconn, statements: Sequence[Statement], until: float) -> Results:
    rows: Results = []
    failure: StatementFailed | None = None
    for each in statements:
        result = _result(pg, until)
        if result is None:
            raise Lost("the answers ended early")
        if result.status in _GOOD:
            rows.append(_rows(result))
        elif failure is None and result.status != pq.ExecStatus.PIPELINE_ABORTED:
            failure = _failure(each, result)
        while _result(pg, until) is not None:
            pass
    ending = _result(pg, until)
    if ending is None or ending.status != pq.ExecStatus.PIPELINE_SYNC:
        raise Lost("the end of the answers is missing")
    if failure is not None:
        raise failure
    return rows


def _result(pg: pq.abc.PGconn, until: float) -> pq.abc.PGresult | None:
    while pg.is_busy():
        _wait(pg, until)
        pg.consume_input()
    return pg.get_result()


def _wait(pg: pq.abc.PGconn, until: float, *, writing: bool = False) -> None:
    left = until - time.monotonic()
    poll = select.poll()
    poll.register(pg.socket, select.POLLIN | (select.POLLOUT if writing else 0))
    if left <= 0 or not poll.poll(left * 1000):
        raise Lost("the database did not answer in time")


def _rows(result: pq.abc.PGresult) -> list[tuple[bytes | None, ...]]:
    columns = range(result.nfields)
    return [
        tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)
    ]


def _failure(statement: Statement, result: pq.abc.PGresult) -> StatementFailed:
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return StatementFailed(statement.purpose, state.decode(), message.decode("utf-8", "replace"))
