"""`callgate audit`: the calls on record, newest last, and whether the record is whole."""

from __future__ import annotations

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

from callgate.audit.reading import Filter, Follower
from callgate.audit.reading import search as find
from callgate.audit.records import CallRecord
from callgate.audit.verify import Problem, Verification
from callgate.audit.verify import verify as check
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.records.stores import find_shared_store, not_found, with_store
from callgate.cli.ui.output import print_json, print_json_line
from callgate.cli.ui.terminal import columns, is_terminal, paint_for, say
from callgate.cli.ui.visible import clip, visible
from callgate.config.home import Home
from callgate.config.stores import SharedStore
from callgate.core.errors import ToolErrorClass
from callgate.sessions.audit_comparison import Comparison, compare

_LOOK_EVERY_S = 0.2
_AGO = re.compile(r"(\d{1,6})([smhd])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Found = Iterable[tuple[CallRecord, bytes]]


def tail(options: Namespace) -> int:
    path = _path(options)
    follower = Follower(path)  # before the first look, so that nothing falls in between
    shown = _read(path, Filter(), options.n)
    _show(shown, options.json)
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
    _show(_read(_path(options), wanted, limit), options.json)
    return OK


def verify(options: Namespace) -> int:
    """The log of the home, compared with its store; or others alone; or those of several homes."""
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
    from callgate.cli.records import shared_audit  # lazy: most homes share nothing  # noqa: PLC0415

    if shared is not None:
        several = shared_audit.verify_shared(options, shared)
    else:
        homes = [Home(os.path.abspath(each)).audit for each in options.home or ()]
        several = shared_audit.verify_alone([*map(_existing, [*homes, *(options.file or ())])])
    unchecked = several.unchecked_homes
    if unchecked and not options.json:
        say(f"not checked: the logs of homes {', '.join(unchecked)} (--home DIR names them)")
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
    print(f"whole: {counts}" if found.ok else f"broken: problems {len(found.problems)}, {counts}")
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
    """What the store says to the log; None where there is neither."""
    home = Home.from_environment()
    if not os.path.exists(home.store) and not os.path.exists(path):
        return None
    try:
        return with_store(options, lambda store: compare(store, path, home.processes))
    except CliError as error:  # a store that says nothing does not say that all is well
        return Comparison(0, (Problem(path, 0, f"not compared with the store: {error}"),))


def _path(options: Namespace) -> str:
    if options.words:
        raise CliError(f"audit takes no {options.words[0]!r}", hint="See callgate audit --help.")
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
    """A date, a date with a time (ours, unless it names a zone), or how long ago."""
    ago = _AGO.match(text)
    try:
        if ago is not None:
            when = datetime.now().astimezone() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            when = datetime.fromisoformat(text)
        return int(when.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise CliError(
            f"--since: {text!r} is no date", hint="Such as 2026-01-31, 2026-01-31T12:00 or 2h."
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
    paint = paint_for(sys.stdout)
    room = columns() if is_terminal(sys.stdout) else None
    for line, _ in found:
        ended = line.error_class or "ok"
        colour = "green" if ended == "ok" else "red" if line.decision == "deny" else "yellow"
        when = datetime.fromtimestamp(line.ts / 1000).strftime("%Y-%m-%d %H:%M:%S")
        head = f"{when}  {paint(colour, f'{ended:<17}')}  {visible(line.caller)}  "
        text = f"{line.tool}  {line.args}{_by(line)}"
        taken = len(when) + 17 + len(line.caller) + 6
        print(head + (visible(text) if room is None else clip(text, max(room - taken - 1, 20))))


def _by(line: CallRecord) -> str:
    return "" if line.answered_by is None else f"  (answered by {line.answered_by})"
