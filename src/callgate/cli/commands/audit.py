"""`callgate audit`: show and search the recorded calls, newest last, and verify the audit log.

`callgate audit verify` over the logs of several homes that share a store.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.audit.keys import read_key
from callgate.audit.reading import Filter, Follower
from callgate.audit.reading import search as find
from callgate.audit.records import CallRecord
from callgate.audit.verify import (
    KIND,
    Head,
    LogFile,
    LogProblem,
    LogsVerdict,
    Verification,
    read_heads,
    verify_logs,
)
from callgate.audit.verify import verify as check
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.stores import find_shared_store, not_found, with_store
from callgate.cli.ui.output import print_json, print_json_line
from callgate.cli.ui.tables import Cell, Column, print_rows
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.sealing import SecretsError
from callgate.config.secret_opening import AUDIT, known_key
from callgate.config.stores import SharedStore, known_home_id
from callgate.core.errors import ToolErrorClass
from callgate.core.stores import Store
from callgate.sessions.audit_comparison import Comparison, compare


class SharedVerification(msgspec.Struct, frozen=True):
    found: Verification
    """The result for all logs together."""
    last_hashes: dict[str, str]
    """The last hash of each log."""
    calls: int | None
    """Number of ended calls in the store; None if the logs were not compared with it."""
    unchecked_homes: tuple[str, ...] = ()
    """Homes whose logs were not given."""


def verify_alone(logs: list[str]) -> SharedVerification:
    """Check logs without a shared store."""
    given = [LogFile(path, None) for path in logs]
    return _merged(given, verify_logs(given, {}), None, ())


def verify_shared(options: Namespace, shared: SharedStore) -> SharedVerification:
    """Check the given logs, or the log of this home, against the heads in the store."""

    async def check(store: Store) -> SharedVerification:
        return await _check(store, options, shared)

    return with_store(options, check)


async def _check(store: Store, options: Namespace, shared: SharedStore) -> SharedVerification:
    homes = [Home(os.path.abspath(each)) for each in options.home or ()]
    is_ours = not (homes or options.file)
    if is_ours:
        homes = [Home.from_environment()]
    logs = [LogFile(home.audit, known_home_id(home)) for home in homes]
    logs += [LogFile(path, known_home_id(_beside(path))) for path in options.file or ()]
    for log in logs if not is_ours else ():
        if not os.path.exists(log.path):
            raise not_found(f"there is no file {log.path}")
    heads = read_heads(await store.entries(KIND))  # before the logs, which only grow
    expected = {shared.home.id} if is_ours else None
    keys = await _shared_keys(store, logs)
    verdict = await asyncio.to_thread(verify_logs, logs, heads, homes=expected, keys=keys)
    unchecked = _unchecked(heads, logs)
    comparison = None
    if not options.file:
        others = [(home.audit, home.processes) for home in homes[1:]]
        comparison = await compare(
            store,
            homes[0].audit,
            homes[0].processes,
            others=others,
            is_shared=True,
            is_whole=not unchecked,
        )
    return _merged(logs, verdict, comparison, unchecked)


async def _shared_keys(store: Store, logs: list[LogFile]) -> tuple[bytes, ...]:
    """Return the key that the homes share, if a log has none next to it."""
    if all(read_key(each.path) is not None for each in logs):
        return ()
    try:
        key = await known_key(Home.from_environment(), AUDIT, store)
    except SecretsError as error:
        raise CliError(
            str(error), error_class=ToolErrorClass.EXECUTION_ERROR, reason="secrets"
        ) from None
    return () if key is None else (key,)


def _beside(path: str) -> Home:
    return Home(os.path.dirname(os.path.abspath(path)))


def _unchecked(heads: dict[str, Head], logs: list[LogFile]) -> tuple[str, ...]:
    return tuple(sorted({each.home for each in heads.values()} - {log.home for log in logs}))


def _merged(
    logs: list[LogFile],
    verdict: LogsVerdict,
    comparison: Comparison | None,
    unchecked: tuple[str, ...],
) -> SharedVerification:
    problems: list[LogProblem] = [problem for each in verdict.logs for problem in each.problems]
    problems += verdict.missing
    if comparison is not None:
        problems += comparison.problems
    found = Verification(
        records=sum(each.records for each in verdict.logs),
        chains=sum(each.chains for each in verdict.logs),
        segments=sum(each.segments for each in verdict.logs),
        problems=tuple(problems),
        unreadable=tuple(problem for each in verdict.logs for problem in each.unreadable),
        last_hash=verdict.logs[0].last_hash,
    )
    hashes = {log.path: each.last_hash for log, each in zip(logs, verdict.logs, strict=True)}
    calls = None if comparison is None else comparison.calls
    return SharedVerification(found, hashes, calls, unchecked)


_LOOK_EVERY_S = 0.2
_AGO = re.compile(r"(\d{1,6})([smhd])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

_HEADINGS = (Column("when"), Column("ended", least=17), Column("caller"), Column("call"))
_MOST_ROWS = 3
"""Maximum rows of one call at a terminal; `--json` has all details."""

Found = Iterable[tuple[CallRecord, bytes]]


def tail(options: Namespace) -> int:
    path = _path(options)
    follower = Follower(path)  # before the first read, so that no record is missed
    shown = _read(path, Filter(), options.n)
    _show(shown, options.json)
    if not (shown or options.json or options.follow):
        say("no calls are recorded")
    seen = {line.id for line, _ in shown}
    while options.follow:
        _show((each for each in follower.read() if each[0].id not in seen), options.json)
        sys.stdout.flush()
        time.sleep(_LOOK_EVERY_S)
    return OK


def search(options: Namespace) -> int:
    wanted = Filter(
        text=options.text,
        tool=options.tool,
        session=options.session,
        decision=options.decision,
        error_classes=None if options.error is None else (options.error,),
        since_ms=None if options.since is None else since_ms(options.since),
    )
    limit = sys.maxsize if options.n is None else options.n
    found = _read(_path(options), wanted, limit)
    _show(found, options.json)
    if not (found or options.json):
        say("no recorded call matches")
    return OK


def verify(options: Namespace) -> int:
    """Verify the home's log against its store, or the named files, or logs of several homes."""
    try:
        path = _path(options)
        shared = find_shared_store(Home.from_environment())
        if shared is not None or options.home or len(options.file or ()) > 1:
            return _verify_several(options, shared)
        file = options.file[0] if options.file else None
        compared = None if file is not None else _compare(options, path)
        found = check(path if file is None else _existing(file))
    except OSError as error:
        raise _unreadable(error) from error
    if compared is not None:
        found = replace(found, problems=(*found.problems, *compared.problems))
    calls = None if compared is None else compared.calls
    return _report(options, found, calls, {path: found.last_hash})


def _verify_several(options: Namespace, shared: SharedStore | None) -> int:

    if shared is not None:
        several = verify_shared(options, shared)
    else:
        homes = [Home(os.path.abspath(each)).audit for each in options.home or ()]
        several = verify_alone([*map(_existing, [*homes, *(options.file or ())])])
    unchecked = several.unchecked_homes
    if unchecked and not options.json:
        say(f"not checked: the logs of homes {', '.join(unchecked)} (add them with --home DIR)")
    return _report(options, several.found, several.calls, several.last_hashes, unchecked)


def _report(
    options: Namespace,
    found: Verification,
    calls: int | None,
    last_hashes: dict[str, str],
    unchecked: tuple[str, ...] = (),
) -> int:
    if options.json:
        fields = msgspec.to_builtins(found)
        for internal in ("kept_from", "expected_chains"):
            del fields[internal]
        if len(last_hashes) > 1:
            fields["last_hashes"] = last_hashes
        if unchecked:
            fields["unchecked_homes"] = unchecked
        print_json({"ok": found.ok, "calls_in_store": calls, **fields})
        return OK if found.ok else FAILED
    for problem in (*found.problems, *found.unreadable):
        print(visible(str(problem)))
    counts = f"records {found.records}, chains {found.chains}, files {found.segments}"
    print(f"intact: {counts}" if found.ok else f"broken: problems {len(found.problems)}, {counts}")
    for path, hash in last_hashes.items():
        if hash:
            of = f" of {visible(path)}" if len(last_hashes) > 1 else ""
            print(f"last line{of}: sha256 {hash}")
    return OK if found.ok else FAILED


def _existing(path: str) -> str:
    if not os.path.exists(path):
        raise not_found(f"there is no file {path}")
    return path


def _compare(options: Namespace, path: str) -> Comparison | None:
    """Compare the log with the store; return None if neither exists."""
    home = Home.from_environment()
    if not os.path.exists(home.store) and not os.path.exists(path):
        return None
    try:
        return with_store(options, lambda store: compare(store, path, home.processes))
    except CliError as error:  # an unreadable store must count as a problem
        return Comparison(0, (LogProblem(path, 0, f"not compared with the store: {error}"),))


def _path(options: Namespace) -> str:
    if options.words:
        raise CliError(
            f"unexpected argument {options.words[0]!r}", hint="See callgate audit --help."
        )
    return Home.from_environment().audit


def _read(path: str, wanted: Filter, limit: int) -> list[tuple[CallRecord, bytes]]:
    try:
        return find(path, wanted, limit)
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> CliError:
    return CliError(
        f"the audit log cannot be read: {error}",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="audit_unreadable",
    )


def since_ms(text: str) -> int:
    """Parse a date, a date with a time (local, unless it names a zone), or an age like `2h`."""
    ago = _AGO.match(text)
    try:
        if ago is not None:
            when = datetime.now().astimezone() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            when = datetime.fromisoformat(text)
        return int(when.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise CliError(
            f"--since: {text!r} is not a date or an age",
            hint="Examples: 2026-01-31, 2026-01-31T12:00, 2h.",
        ) from None


def _as_written(line: CallRecord, raw: bytes) -> Any:
    """A record with what other versions wrote into it, unless that cannot be read."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return msgspec.to_builtins(line)


def _show(found: Found, as_json: bool) -> None:
    if as_json:
        for line, raw in found:
            print_json_line(_as_written(line, raw))
        return
    for line, _ in found:
        ended = line.error_class or "ok"
        colour = "green" if ended == "ok" else "red" if line.decision == "deny" else "yellow"
        when = datetime.fromtimestamp(line.ts / 1000).strftime("%Y-%m-%d %H:%M:%S")
        text = f"{line.tool}  {line.args}{_files(line)}{_by(line)}"
        print_rows(_HEADINGS, [(when, Cell(ended, colour), line.caller, text)], most=_MOST_ROWS)


def _files(line: CallRecord) -> str:
    if not line.changed:
        return ""
    return "  (1 file changed)" if line.changed == 1 else f"  ({line.changed:,} files changed)"


def _by(line: CallRecord) -> str:
    return "" if line.answered_by is None else f"  (answered by {line.answered_by})"
