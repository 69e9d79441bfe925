"""The store of the home, opened for one command beside whoever else uses it.

A command that only reads leaves nothing on the disk: where there is no file there are no
sessions. Whatever the store cannot do becomes one sentence and an exit code.
"""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from callgate.audit.log import AuditLog
from callgate.cli.errors import CliError
from callgate.cli.logs import set_up
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import AuditTable
from callgate.config.stores import SharedStore, configured_store, open_store
from callgate.core.errors import ToolErrorClass
from callgate.core.stored import StoredSession
from callgate.core.stores import (
    ConfirmationNotFound,
    SessionLocked,
    SessionNotFound,
    Store,
    StoreDamaged,
    StoreError,
)
from callgate.sessions.audit_heads import publish_head
from callgate.sessions.recovery import needs_recovery, recover

if TYPE_CHECKING:
    from callgate.sessions.homes import HomeIdentity

T = TypeVar("T")

_SHORTEST = 4
"""Characters of an id that are enough, where they are unique."""
_SHORT = 12
_LISTED = 5

_NOT_FOUND = (SessionNotFound, ConfirmationNotFound)


def with_store(options: Namespace, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with the store of the home, after those who are gone were accounted for."""
    set_up(options.debug)
    with explained():
        return asyncio.run(_opened(Home.from_environment(), work))


@contextmanager
def explained() -> Iterator[None]:
    """What the store cannot do, as a `CliError`."""
    try:
        yield
    except SessionLocked as error:
        raise CliError(
            f"session {error.session} is in use by {process_name(error.owner)}",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="session_locked",
        ) from error
    except _NOT_FOUND as error:
        raise not_found(str(error)) from error
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    except StoreError as error:
        raise CliError(
            str(error), error_class=ToolErrorClass.EXECUTION_ERROR, reason="store_unusable"
        ) from error


async def _opened(home: Home, work: Callable[[Store], Awaitable[T]]) -> T:
    shared = find_shared_store(home)
    store = await open_store(home, shared)
    try:
        await settle(store, None if shared is None else shared.home)
        return await work(store)
    except StoreDamaged as error:
        if error.salvage is not None:
            raise
        damage = error
    finally:
        await store.close()
    # Opened again, it is read as a whole, and what can be read of it is saved.
    await (await open_store(home, shared)).close()
    raise damage


def find_shared_store(home: Home) -> SharedStore | None:
    """The store that the settings name, which other homes use too."""
    try:
        return configured_store(home)
    except SettingsError as error:
        raise CliError(
            f"which store this home shares cannot be told: {error}", reason="settings_invalid"
        ) from error


async def settle(store: Store, identity: HomeIdentity | None = None) -> None:
    """Close what dead processes left open, with the records that they did not write."""
    home = Home.from_environment()
    if not await needs_recovery(store, home.processes, identity):
        return
    try:
        bounds = load_user(home)[0].audit
    except SettingsError:  # what happened is shown and recorded all the same
        bounds = AuditTable()
    audit = AuditLog(home.audit, max_bytes=bounds.max_bytes, keep=bounds.keep)
    try:
        await recover(store, audit, home.processes, identity)
        if identity is not None:
            await publish_head(store, audit, identity.id)
    finally:
        audit.close()


def process_name(owner: str) -> str:
    """A living owner in words, with the number of its process where that can be read."""
    lock = os.path.join(Home.from_environment().processes, f"{os.path.basename(owner)}.lock")
    try:
        with open(lock, encoding="ascii") as file:
            return f"process {int(file.read(20))}"
    except (OSError, ValueError):
        return f"another process ({owner})"


async def find_session(store: Store, wanted: str) -> StoredSession:
    """A session by its id, or by the beginning or the end of it."""
    try:
        return await store.get_session(wanted)
    except SessionNotFound:
        ids = await store.find_sessions(wanted.casefold())
        return await store.get_session(pick(wanted, ids, "session"))


def pick(wanted: str, ids: Iterable[str], kind: str) -> str:
    """The one id that begins or ends like this, with or without its `sess_`."""
    part = wanted.casefold()
    fitting = [
        id
        for id in ids
        for folded in [id.casefold()]
        if part == folded
        or (
            len(part) >= _SHORTEST
            and (folded.startswith((part, f"sess_{part}")) or folded.endswith(part))
        )
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise not_found(f"there is no {kind} {wanted!r}")
    more = len(fitting) - _LISTED
    shown = ", ".join(fitting[:_LISTED]) + (f" and {more} more" if more > 0 else "")
    raise CliError(f"{wanted!r} is not one {kind}: {shown}", reason="ambiguous")


def not_found(message: str) -> CliError:
    return CliError(message, error_class=ToolErrorClass.NOT_FOUND, reason="not_found")


def short(id: str) -> str:
    """The end of an id: enough to tell sessions apart, and to name one."""
    return id[-_SHORT:]


def words(options: Namespace, *names: str) -> Sequence[str]:
    """The words behind a command's name, exactly as many as there are names for."""
    given: Sequence[str] = options.words
    if len(given) > len(names):
        raise CliError(f"{given[len(names)]!r} is one argument too many")
    if len(given) < len(names):
        raise CliError(f"which {names[len(given)]}?")
    return given


def alive(owner: str | None, dead: Collection[str]) -> bool:
    return owner is not None and owner not in dead


def ago(then: float, now: float) -> str:
    """How long ago, in the largest unit that fits."""
    return "just now" if now - then < 5 else f"{span(now - then)} ago"


def span(seconds: float) -> str:
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.0f} {name}"
    return f"{max(seconds, 0):.0f} s"
