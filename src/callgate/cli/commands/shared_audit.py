"""`callgate audit verify` over the logs of several homes that share a store."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace

import msgspec

from callgate.audit.keys import read_key
from callgate.audit.verify import (
    KIND,
    Head,
    LogFile,
    Problem,
    Verdict,
    Verification,
    read_heads,
    verify_logs,
)
from callgate.cli.errors import CliError
from callgate.cli.stores import not_found, with_store
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
    verdict: Verdict,
    comparison: Comparison | None,
    unchecked: tuple[str, ...],
) -> SharedVerification:
    problems: list[Problem] = [problem for each in verdict.logs for problem in each.problems]
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
