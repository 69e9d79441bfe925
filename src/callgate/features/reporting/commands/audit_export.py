"""`callgate audit export`: sends recorded calls to other programs, once or continuously.

    log --read_part--> rows --send, retry with growing waits--> accepted --> cursor

Memory is bounded by one part. A cursor moves after its rows were accepted, so a crash at any moment
repeats some rows and loses none. Each row has an id, so that a sink can detect duplicates.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import msgspec

from callgate.audit.forward import (
    PART,
    Cursor,
    CursorHeld,
    CursorUnreadable,
    LogReplaced,
    Position,
    Positions,
    read_part,
    start_of,
)
from callgate.audit.verify import KIND, read_heads
from callgate.cli.commands.audit import since_ms
from callgate.cli.errors import OK, CliError
from callgate.cli.stores import find_shared_store, not_found, with_store
from callgate.cli.ui.terminal import is_terminal, safe, say
from callgate.config.home import Home
from callgate.config.stores import known_home_id
from callgate.core.errors import ToolErrorClass
from callgate.core.http import back_off
from callgate.core.stores import Store
from callgate.features.reporting.export_formats import Encoding, ExportRow, encoding_of, make_row
from callgate.features.reporting.export_sinks import (
    FileSink,
    HttpSink,
    Sink,
    SinkRefused,
    SinkUnavailable,
    StreamSink,
    SyslogSink,
    TooLarge,
    parse_syslog,
)
from callgate.policy.rules import is_within

LOOK_EVERY_S = 0.2


class ExportedLog(msgspec.Struct, frozen=True):
    path: str
    home: str = ""
    """The id of its home."""


class Summary(msgspec.Struct):
    """Progress of an export."""

    records: int = 0
    dropped: int = 0
    """Log files that were deleted before their export."""
    shortened: int = 0
    """Records that were sent with only their id and hash."""


class Export:
    def __init__(
        self,
        logs: Sequence[ExportedLog],
        encoding: Encoding,
        sink: Sink,
        *,
        since_ms: int | None = None,
        cursor: Cursor | None = None,
        retry_s: float | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`retry_s`: seconds of retries for an unavailable sink; None: without limit."""
        self._logs = logs
        self._encoding = encoding
        self._sink = sink
        self._since_ms = since_ms
        self._cursor = cursor
        self._retry_s = retry_s
        self._report = report
        known: Mapping[str, Position] = {} if cursor is None else cursor.positions.logs
        self._positions = {
            log.path: known.get(log.path) or start_of(log.path, since_ms) for log in logs
        }
        self.summary = Summary()

    async def run(self, *, follow: bool) -> Summary:
        """Export all present records; with `follow`, also future ones."""
        while True:
            moved = [await self._export_part(log) for log in self._logs]
            if not any(moved):
                if not follow:
                    return self.summary
                await asyncio.sleep(LOOK_EVERY_S)

    async def _export_part(self, log: ExportedLog) -> bool:
        """Export the next part of a log. Return whether there may be more."""
        part = await asyncio.to_thread(read_part, log.path, self._positions[log.path], PART)
        if part.dropped:
            self.summary.dropped += part.dropped
            self._report(f"{part.dropped} files of {log.path} were deleted before their export")
        rows = [
            make_row(self._encoding, record, raw, log.home)
            for record, raw in part.records
            if self._since_ms is None or record.ts >= self._since_ms
        ]
        if rows:
            await self._send(rows)
            self.summary.records += len(rows)
        if part.position != self._positions[log.path]:
            self._positions[log.path] = part.position
            if self._cursor is not None and (rows or part.records or part.dropped):
                await asyncio.to_thread(self._remember)
        return not part.is_end

    def _remember(self) -> None:
        assert self._cursor is not None
        inode, size = self._sink.written if isinstance(self._sink, FileSink) else (0, 0)
        self._cursor.advance(
            Positions(
                for_=self._cursor.positions.for_,
                logs={**self._cursor.positions.logs, **self._positions},
                output_inode=inode,
                output_size=size,
            )
        )

    async def _send(self, rows: Sequence[ExportRow]) -> None:
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
                    self._report(f"{error}; retrying")
                waited = time.monotonic() - began
                if self._retry_s is not None and waited + wait_s > self._retry_s:
                    raise
            await asyncio.sleep(wait_s)

    def _shortened(self, row: ExportRow, problem: TooLarge) -> ExportRow:
        """Return the short replacement of a row that is too large for the sink, so that it does
        not block the rows after it.
        """
        if row.shorten is None:
            raise problem
        self.summary.shortened += 1
        self._report(f"{problem}; only the id and hash of record {row.id} are sent")
        return row.shorten()


def cursor_path(home: str, target: str, format: str) -> str:
    """Return the default path of a target's cursor."""
    name = sha256(f"{format} {target}".encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return os.path.join(home, "exports", f"{name}.json")


_RETRY_S = 60.0


def export(options: Namespace) -> int:
    if options.words:
        raise CliError(f"audit export takes no arguments: {options.words[0]!r}")
    logs = _logs(options)
    since = None if options.since is None else since_ms(options.since)
    token = _token(options)
    encoding = encoding_of(options.format)
    cursor = _cursor(options)
    try:
        if cursor is not None and not cursor.is_new and since is not None:
            say("the export continues at its cursor; --since applies only to a new cursor")
            since = None
        sink = _sink(options, encoding, token, cursor)
        summary = asyncio.run(_run(options, logs, encoding, sink, since, cursor))
    except LogReplaced as error:
        raise _failed(
            f"the cursor belongs to another log: {error}",
            hint="Remove the cursor to start again, or select another one with --cursor.",
        ) from error
    except (SinkUnavailable, SinkRefused) as error:
        raise _failed(
            str(error), hint="Nothing is lost: the next run continues at the same record."
        ) from error
    except OSError as error:
        raise _failed(f"the audit log cannot be exported: {error}") from error
    finally:
        if cursor is not None:
            cursor.close()
    if options.to is not None or options.output is not None:
        say(f"records {summary.records}")
        if summary.shortened:
            say(f"shortened {summary.shortened}: too large for the sink")
    return OK


async def _run(
    options: Namespace,
    logs: list[ExportedLog],
    encoding: Encoding,
    sink: Sink,
    since: int | None,
    cursor: Cursor | None,
) -> Summary:
    retry_s = options.retry if options.retry is not None else _RETRY_S
    endless = options.follow and options.retry is None
    try:
        running = Export(
            logs,
            encoding,
            sink,
            since_ms=since,
            cursor=cursor,
            retry_s=None if endless else float(retry_s),
            report=say,
        )
        return await running.run(follow=options.follow)
    finally:
        await sink.close()


def _logs(options: Namespace) -> list[ExportedLog]:
    """Return the named logs, or the log of this home. Report other homes that share the store."""
    homes = [Home(os.path.abspath(each)) for each in options.home or ()]
    for home in homes:
        if not os.path.isdir(home.path):
            raise not_found(f"there is no directory {home.path}")
    if homes:
        return [ExportedLog(home.audit, known_home_id(home) or "") for home in homes]
    home = Home.from_environment()
    if find_shared_store(home) is not None:
        home_id = known_home_id(home)
        others = sorted(with_store(options, _homes) - {home_id})
        if others:
            say(f"not exported: the logs of homes {', '.join(others)} (use --home DIR)")
    return [ExportedLog(home.audit, known_home_id(home) or "")]


async def _homes(store: Store) -> set[str]:
    return {head.home for head in read_heads(await store.entries(KIND)).values()}


def _token(options: Namespace) -> str | None:
    name = options.token_env
    if name is None:
        return None
    if not (options.to or "").startswith(("http://", "https://")):
        raise CliError("--token-env needs --to https://...")
    token = os.environ.get(name, "")
    if not token or not token.isascii() or not token.isprintable():
        raise CliError(f"the variable {name} contains no valid token")
    return token


def _cursor(options: Namespace) -> Cursor | None:
    remembers = options.to is not None or (options.output is not None and options.follow)
    if options.cursor == "none" or (options.cursor is None and not remembers):
        return None
    if options.to is None and options.output is None:
        raise CliError("--cursor needs --to or -o, because stdout acknowledges nothing")
    target = options.to or os.path.abspath(options.output)
    home = Home.from_environment().path
    path = options.cursor or cursor_path(home, target, options.format)
    try:
        return Cursor(os.path.abspath(path), f"{options.format} {target}")
    except (CursorHeld, CursorUnreadable) as error:
        raise _failed(str(error), hint="Select another one with --cursor.") from error
    except OSError as error:
        raise _failed(f"the cursor cannot be stored: {error}") from error


def _sink(options: Namespace, encoding: Encoding, token: str | None, cursor: Cursor | None) -> Sink:
    if options.output is not None:
        _ensure_outside_home(options.output)
        known = Positions() if cursor is None else cursor.positions
        written = None if cursor is None else (known.output_inode, known.output_size)
        return FileSink(options.output, encoding.head, written)
    if options.to is None:
        return StreamSink(_write_stdout, encoding.head)
    try:
        if options.to.startswith("syslog"):
            return SyslogSink(parse_syslog(options.to))
        return HttpSink(options.to, encoding, token)
    except ValueError as error:
        raise CliError(f"--to: {error}") from None


def _ensure_outside_home(path: str) -> None:
    """Refuse to write into callgate's home, which contains the audit log."""
    home = os.path.realpath(Home.from_environment().path)
    if is_within(os.path.realpath(path), home):
        raise CliError(f"-o: {path} is in {home}, which is reserved for files of callgate")


def _write_stdout(data: bytes) -> None:
    if is_terminal(sys.stdout):
        data = safe(data.decode("utf-8", "replace")).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _failed(message: str, hint: str | None = None) -> CliError:
    return CliError(
        message, error_class=ToolErrorClass.EXECUTION_ERROR, reason="export_failed", hint=hint
    )
