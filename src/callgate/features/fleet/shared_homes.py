"""The store, rules, trust and pins that several homes share.

The rows of the store are authoritative. The files of the home follow them (`mirror`) and are read
as in other homes. An approval in one home applies to all.

`Sharing` is the background work of a runtime with a shared store. At its start it reads rules,
trust and pins from the store, or uses the last copy from then on. It follows their changes, shares
artifacts of calls, and publishes the audit log's head.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from callgate.audit.log import AuditLog
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.pins import PinFiles
from callgate.config.policies import PolicyBook
from callgate.config.schema import StoreTable
from callgate.config.stores import SharedStore, store_url
from callgate.core.ids import ulid
from callgate.core.ops import DropEntry, Op, PutEntry
from callgate.core.stored import SharedEntry
from callgate.core.stores import MissingPackage, Store, StoreError
from callgate.core.tasks import TaskSet
from callgate.dispatch.call_files import CallFiles
from callgate.events.log import SessionLog
from callgate.features.fleet.mirror import PINS, RULE, Mirror, SavedRule, SharedPin, put_rule
from callgate.features.fleet.mirror import rules_text as text_of
from callgate.features.fleet.postgres import PostgresLocation, redacted
from callgate.sessions.artifacts import SharedArtifacts
from callgate.sessions.homes import HeadPublisher
from callgate.sources.pins import Pinned
from callgate.storage.moving import MovableStore


def label(url: str) -> str:
    """Return the address of a database without its password."""
    return redacted(url)


async def open_store(
    table: StoreTable, *, home: str, owner: str, before_commit: Callable[[], None]
) -> Store:
    """Open the database of the settings. Raises `StoreError`, but no error if it is unavailable."""
    location = postgres_location(table)
    from callgate.features.fleet.postgres.store import (  # noqa: PLC0415
        # lazy: after the check of psycopg
        PostgresStore,
    )

    return await PostgresStore.open(location, home=home, owner=owner, before_commit=before_commit)


def movable_store(table: StoreTable) -> MovableStore:
    """Return the database as a source or target of `callgate store move`."""
    from callgate.features.fleet.postgres.administration import (  # noqa: PLC0415
        PostgresMovable,  # lazy: for one command
    )

    return PostgresMovable(postgres_location(table))


def postgres_location(table: StoreTable) -> PostgresLocation:
    """Return the database of the settings. Raises `MissingPackage` or `SettingsError`."""
    try:
        from psycopg import ProgrammingError, conninfo  # lazy: few have one  # noqa: PLC0415
    except ImportError as error:
        raise MissingPackage("[store] url", "callgate[postgres]") from error

    url = store_url(table, os.environ)
    for key, text in {"url": url, "listen_url": table.listen_url or "none"}.items():
        try:
            conninfo.conninfo_to_dict("" if text == "none" else text)
            urlsplit(text)
        except (ProgrammingError, ValueError):  # their texts contain the URL with the password
            raise SettingsError(f"[store] {key}", None, "is not a valid database address") from None
    return PostgresLocation(
        url=url,
        listen_url=table.listen_url,
        schema=table.schema,
        readers=table.readers,
        answer_s=table.answer_timeout_s,
    )


def save_rules(
    home: Home, shared: SharedStore, rules: Sequence[Mapping[str, Any]], stamp: str
) -> None:
    """Append rules to the shared rules."""
    Mirror(home, shared).change(*(put_rule(rule, stamp) for rule in rules))


def trust(home: Home, shared: SharedStore, directory: str, items: Mapping[str, str]) -> None:
    """Trust a directory in all homes."""
    Mirror(home, shared).trust(directory, items)


def distrust(home: Home, shared: SharedStore, directory: str) -> None:
    """Withdraw the trust of a directory in all homes."""
    Mirror(home, shared).distrust(directory)


def rules_text(home: Home, shared: SharedStore) -> str:
    """Return the shared rules in the format of `rules.toml`."""
    return text_of(Mirror(home, shared).read(RULE))


def import_rules(
    home: Home, shared: SharedStore, path: str, rules: list[dict[str, Any]], *, replace: bool
) -> tuple[int, int]:
    """Add the rules of a file to the shared ones; with `replace`, remove all others. Return the
    numbers of added and removed rules.
    """
    mirror = Mirror(home, shared)
    entries = mirror.read(RULE)
    known = [_rule_of(each) for each in entries]
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    fresh = [rule for rule in rules if rule not in known]
    ops: list[Op[Any]] = [put_rule(rule, stamp) for rule in fresh]
    surplus = [
        each for each, rule in zip(entries, known, strict=True) if replace and rule not in rules
    ]
    ops += [DropEntry(kind=RULE, name=each.name, expected=each.version) for each in surplus]
    real = os.path.realpath(path)
    if real in map(os.path.realpath, mirror.edited()) and os.path.basename(real) != "rules.toml":
        mirror.change(*ops)
        os.unlink(real)  # the import replaces it
        mirror.change()
    elif ops:
        mirror.change(*ops)
    return len(fresh), len(surplus)


def _rule_of(entry: SharedEntry) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(entry.value, type=SavedRule).rule
    except (ValueError, RecursionError):
        return None


class SharedPinFiles(PinFiles):
    """Pin files whose changes are written to the store first. Blocks. Raises `OSError` if the
    store does not accept a change.
    """

    def __init__(self, home: Home, shared: SharedStore, kind: str, accept: str) -> None:
        super().__init__(home.path, kind, accept)
        self._mirror = Mirror(home, shared)
        self._entries = PINS[kind]

    def write(self, name: str, pinned: Pinned) -> None:
        self._mirror.change(self._put(name, pinned, self._first_seen(name)))

    def write_first(self, name: str, pinned: Pinned) -> None:
        put = self._put(name, pinned, ulid())
        self._mirror.change(msgspec.structs.replace(put, expected=0))

    def forget(self, name: str) -> None:
        self._mirror.change(DropEntry(kind=self._entries, name=name))
        with suppress(FileNotFoundError):  # a file that was never shared
            os.unlink(self._path(name))

    def _put(self, name: str, pinned: Pinned, at: str) -> PutEntry:
        value = SharedPin(at, msgspec.Raw(msgspec.json.encode(pinned)))
        text = msgspec.json.encode(value).decode()
        return PutEntry(kind=self._entries, name=name, value=text)

    def _first_seen(self, name: str) -> str:
        known = (each for each in self._mirror.read(self._entries) if each.name == name)
        return next((msgspec.json.decode(each.value, type=SharedPin).at for each in known), ulid())


_log = logging.getLogger("callgate")
_NO_COPY = "the store with the saved rules is unreachable, and there is no local copy"


class Sharing:
    def __init__(
        self, home: Home, shared: SharedStore, log: SessionLog, audit: AuditLog | None
    ) -> None:
        self._home = home
        self._log = log
        self.mirror = Mirror(home, shared)
        """Rules, trust and pins, as files of the home."""
        self.saving = TaskSet(_log, "an answer could not be saved")
        self._heads = None if audit is None else HeadPublisher(log, audit, shared.home.id)
        self._policies: PolicyBook | None = None
        self.is_withheld = False
        """Whether the shared rules are still unknown, so that calls with effects are refused."""

    def begin(self, policies: PolicyBook) -> None:
        """Read the shared rules, or use the last copy if the store does not answer. Blocks."""
        self._policies = policies
        self.is_withheld = not self.mirror.refresh_now() and not self.mirror.exists
        if self.is_withheld:
            policies.withhold(SettingsError(self._home.saved_rules, None, _NO_COPY))
        policies.refresh()

    async def follow(self) -> None:
        """Keep the files equal to the store, for a long-lived runtime. Never returns."""
        await self.mirror.follow(self._log.store, self._refreshed)

    def _refreshed(self) -> None:
        assert self._policies is not None
        self.is_withheld = False
        self._policies.withhold(None)
        self._policies.refresh()

    def share_artifacts(self, files: CallFiles) -> Callable[[str], Awaitable[None]]:
        """Share artifacts of calls. Return the function that fetches a session's artifacts."""
        artifacts = SharedArtifacts(self._log.store, self._home.artifacts)
        files.share = artifacts.share

        async def fetch(session_id: str) -> None:
            try:
                directory = await artifacts.fetch(session_id)
            except (StoreError, OSError) as error:
                _log.warning("the artifacts of session %s are not available: %s", session_id, error)
                return
            if directory is not None:
                files.adopt(session_id, directory)

        return fetch

    async def close(self) -> None:
        """Finish pending work, before the log is closed."""
        await self.saving.wait()
        if self._heads is not None:
            await self._heads.close()
