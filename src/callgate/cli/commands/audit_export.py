"""`callgate audit export`: the calls on record for other programs, once or as they come."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace

from callgate.audit.cursors import Cursor, CursorHeld, CursorUnreadable, Positions
from callgate.audit.forward import LogReplaced
from callgate.audit.heads import KIND, read_heads
from callgate.cli.commands.audit import since_ms
from callgate.cli.errors import OK, CliError
from callgate.cli.records.stores import find_shared_store, not_found, with_store
from callgate.cli.ui.terminal import is_terminal, safe, say
from callgate.config.home import Home
from callgate.config.home_ids import known_home_id
from callgate.core.errors import ToolErrorClass
from callgate.core.stores import Store
from callgate.export.formats import Encoding, encoding_of
from callgate.export.runs import Export, Log, Summary, cursor_path
from callgate.export.sinks.files import FileSink, StreamSink
from callgate.export.sinks.http_sink import HttpSink
from callgate.export.sinks.sink import Sink, SinkRefused, SinkUnavailable
from callgate.export.sinks.syslog import SyslogSink, parse_syslog
from callgate.policy.rules import is_within

_RETRY_S = 60.0


def export(options: Namespace) -> int:
    if options.words:
        raise CliError(f"audit export takes no {options.words[0]!r}")
    logs = _logs(options)
    since = None if options.since is None else since_ms(options.since)
    token = _token(options)
    encoding = encoding_of(options.format)
    cursor = _cursor(options)
    try:
        if cursor is not None and not cursor.is_new and since is not None:
            say("it goes on where it stopped; --since counts for a new cursor only")
            since = None
        sink = _sink(options, encoding, token, cursor)
        summary = asyncio.run(_run(options, logs, encoding, sink, since, cursor))
    except LogReplaced as error:
        raise _failed(
            f"the cursor is of another log: {error}",
            hint="Remove the cursor to begin anew, or give another one with --cursor.",
        ) from error
    except (SinkUnavailable, SinkRefused) as error:
        raise _failed(
            str(error), hint="Nothing is lost: the next run goes on where it stopped."
        ) from error
    except OSError as error:
        raise _failed(f"the record cannot be exported: {error}") from error
    finally:
        if cursor is not None:
            cursor.close()
    if options.to is not None or options.output is not None:
        say(f"records {summary.records}")
        if summary.shortened:
            say(f"shortened {summary.shortened}, which the sink does not take whole")
    return OK


async def _run(
    options: Namespace,
    logs: list[Log],
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


def _logs(options: Namespace) -> list[Log]:
    """Those that were named, or ours; whose others share the store is said."""
    homes = [Home(os.path.abspath(each)) for each in options.home or ()]
    for home in homes:
        if not os.path.isdir(home.path):
            raise not_found(f"there is no directory {home.path}")
    if homes:
        return [Log(home.audit, known_home_id(home) or "") for home in homes]
    home = Home.from_environment()
    if find_shared_store(home) is not None:
        own = known_home_id(home)
        others = sorted(with_store(options, _homes) - {own})
        if others:
            say(f"not exported: the logs of homes {', '.join(others)} (--home DIR names them)")
    return [Log(home.audit, known_home_id(home) or "")]


async def _homes(store: Store) -> set[str]:
    return {head.home for head in read_heads(await store.entries(KIND)).values()}


def _token(options: Namespace) -> str | None:
    name = options.token_env
    if name is None:
        return None
    if not (options.to or "").startswith(("http://", "https://")):
        raise CliError("--token-env is for --to https://...")
    token = os.environ.get(name, "")
    if not token or not token.isascii() or not token.isprintable():
        raise CliError(f"the variable {name} has no token")
    return token


def _cursor(options: Namespace) -> Cursor | None:
    remembers = options.to is not None or (options.output is not None and options.follow)
    if options.cursor == "none" or (options.cursor is None and not remembers):
        return None
    if options.to is None and options.output is None:
        raise CliError("--cursor is for --to and -o: nobody says what stdout has accepted")
    target = options.to or os.path.abspath(options.output)
    home = Home.from_environment().path
    path = options.cursor or cursor_path(home, target, options.format)
    try:
        return Cursor(os.path.abspath(path), f"{options.format} {target}")
    except (CursorHeld, CursorUnreadable) as error:
        raise _failed(str(error), hint="Another one can be given with --cursor.") from error
    except OSError as error:
        raise _failed(f"the cursor cannot be kept: {error}") from error


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
    """Nothing of ours is written over, least of all the log itself."""
    home = os.path.realpath(Home.from_environment().path)
    if is_within(os.path.realpath(path), home):
        raise CliError(f"-o: {path} lies in {home}, where callgate keeps its own files")


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
