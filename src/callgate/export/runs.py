"""From the logs to a sink, a part at a time: read, encode, send until it is accepted, remember.

    log --read_part--> rows --send, again with growing waits--> accepted --> cursor

Memory is bounded by one part. A cursor moves after its rows were accepted, so a crash at any moment
repeats some and loses none; each has its id, by which a sink can tell.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import msgspec

from callgate.audit.cursors import Cursor, Positions
from callgate.audit.forward import PART, Place, read_part, start_of
from callgate.export.formats import Encoding, Row, make_row
from callgate.export.sinks.files import FileSink
from callgate.export.sinks.sink import Sink, SinkUnavailable, TooLarge
from callgate.http_client.retries import back_off

LOOK_EVERY_S = 0.2


class Log(msgspec.Struct, frozen=True):
    path: str
    home: str = ""
    """The id of its home."""


class Summary(msgspec.Struct):
    """What an export has done so far."""

    records: int = 0
    dropped: int = 0
    """Files of the logs that were dropped before they were exported."""
    shortened: int = 0
    """Records of which the sink took no more than their id and hash."""


class Export:
    def __init__(
        self,
        logs: Sequence[Log],
        encoding: Encoding,
        sink: Sink,
        *,
        since_ms: int | None = None,
        cursor: Cursor | None = None,
        retry_s: float | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`retry_s`: how long an unavailable sink is tried again; None: without end."""
        self._logs = logs
        self._encoding = encoding
        self._sink = sink
        self._since_ms = since_ms
        self._cursor = cursor
        self._retry_s = retry_s
        self._report = report
        known: Mapping[str, Place] = {} if cursor is None else cursor.positions.logs
        self._places = {
            log.path: known.get(log.path) or start_of(log.path, since_ms) for log in logs
        }
        self.summary = Summary()

    async def run(self, *, follow: bool) -> Summary:
        """Export all that there is; with `follow`, also what comes."""
        while True:
            moved = [await self._export_part(log) for log in self._logs]
            if not any(moved):
                if not follow:
                    return self.summary
                await asyncio.sleep(LOOK_EVERY_S)

    async def _export_part(self, log: Log) -> bool:
        """Whether there was anything."""
        part = await asyncio.to_thread(read_part, log.path, self._places[log.path], PART)
        if part.dropped:
            self.summary.dropped += part.dropped
            self._report(f"{part.dropped} files of {log.path} were dropped before they were read")
        rows = [
            make_row(self._encoding, record, raw, log.home)
            for record, raw in part.records
            if self._since_ms is None or record.ts >= self._since_ms
        ]
        if rows:
            await self._send(rows)
            self.summary.records += len(rows)
        if part.place != self._places[log.path]:
            self._places[log.path] = part.place
            if self._cursor is not None and (rows or part.records or part.dropped):
                await asyncio.to_thread(self._remember)
        return not part.is_end

    def _remember(self) -> None:
        assert self._cursor is not None
        inode, size = self._sink.written if isinstance(self._sink, FileSink) else (0, 0)
        self._cursor.advance(
            Positions(
                for_=self._cursor.positions.for_,
                logs={**self._cursor.positions.logs, **self._places},
                output_inode=inode,
                output_size=size,
            )
        )

    async def _send(self, rows: Sequence[Row]) -> None:
        attempt, began = 0, time.monotonic()
        while True:
            try:
                await self._sink.send(rows)
                return
            except TooLarge as error:
                rows = rows[error.accepted :]
                if len(rows) == 1:
                    rows = [self._shortened(rows[0], error)]
                    continue
                half = len(rows) // 2
                await self._send(rows[:half])
                await self._send(rows[half:])
                return
            except SinkUnavailable as error:
                attempt += 1
                wait_s = error.wait_s
                if wait_s is None:
                    wait_s = back_off(attempt, random.random())  # noqa: S311
                if attempt == 1:
                    self._report(f"{error}; trying again")
                waited = time.monotonic() - began
                if self._retry_s is not None and waited + wait_s > self._retry_s:
                    raise
            await asyncio.sleep(wait_s)

    def _shortened(self, row: Row, problem: TooLarge) -> Row:
        """What is sent in place of a row that no sink of this kind would ever take: it must not
        keep back all that come after it."""
        if row.shorten is None:
            raise problem
        self.summary.shortened += 1
        self._report(f"{problem}; of record {row.id} only its id and hash are sent")
        return row.shorten()


def cursor_path(home: str, target: str, format: str) -> str:
    """Where the cursor of a target is kept, unless somebody names another place."""
    name = sha256(f"{format} {target}".encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return os.path.join(home, "exports", f"{name}.json")
