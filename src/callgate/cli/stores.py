"""The store of the home, opened for one command while other processes use it.

A command that only reads creates no file: without a file there are no sessions. Errors of the
store become a `CliError`.
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
from callgate.sessions.homes import publish_head
from callgate.sessions.recovery import needs_recovery, recover

if TYPE_CHECKING:
    from callgate.sessions.homes import HomeIdentity

T = TypeVar("T")

_SHORTEST = 4
"""Minimum length of an abbreviated id."""
_SHORT = 12
_LISTED = 5

_NOT_FOUND = (SessionNotFound, ConfirmationNotFound)


def with_store(options: Namespace, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run `work` with the store of the home, after the recovery of dead processes' calls."""
    set_up(options.debug)
    with explained():
        return asyncio.run(_opened(Home.from_environment(), work))


@contextmanager
def explained() -> Iterator[None]:
    """Convert errors of the store to `CliError`."""
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
    # The second opening reads the whole file and saves a copy of the readable data.
    await (await open_store(home, shared)).close()
    raise damage


def find_shared_store(home: Home) -> SharedStore | None:
    """Return the shared store of the settings; None if the home has its own store file."""
    try:
        return configured_store(home)
    except SettingsError as error:
        raise CliError(
            f"the settings do not show which store to use: {error}", reason="settings_invalid"
        ) from error


async def settle(store: Store, identity: HomeIdentity | None = None) -> None:
    """Close the calls of dead processes, and write their missing audit records."""
    home = Home.from_environment()
    if not await needs_recovery(store, home.processes, identity):
        return
    try:
        bounds = load_user(home)[0].audit
    except SettingsError:  # recovery must not depend on valid settings
        bounds = AuditTable()
    audit = AuditLog(home.audit, max_bytes=bounds.max_bytes, keep=bounds.keep)
    try:
        await recover(store, audit, home.processes, identity)
        if identity is not None:
            await publish_head(store, audit, identity.id)
    finally:
        audit.close()


def process_name(owner: str) -> str:
    """Describe a living owner, by its process id if that is readable."""
    lock = os.path.join(Home.from_environment().processes, f"{os.path.basename(owner)}.lock")
    try:
        with open(lock, encoding="ascii") as file:
            return f"process {int(file.read(20))}"
    except (OSError, ValueError):
        return f"another process ({owner})"


async def find_session(store: Store, wanted: str) -> StoredSession:
    """Return the session with this id, or with an id that begins or ends like this."""
    try:
        return await store.get_session(wanted)
    except SessionNotFound:
        ids = await store.find_sessions(wanted.casefold())
        return await store.get_session(pick(wanted, ids, "session"))


def pick(wanted: str, ids: Iterable[str], kind: str) -> str:
    """Return the only id that begins or ends like `wanted`; `sess_` may be missing."""
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
    raise CliError(f"{wanted!r} matches more than one {kind}: {shown}", reason="ambiguous")


def not_found(message: str) -> CliError:
    return CliError(message, error_class=ToolErrorClass.NOT_FOUND, reason="not_found")


def short(id: str) -> str:
    """Return the end of an id, which is unique in practice and accepted by commands."""
    return id[-_SHORT:]


def words(options: Namespace, *names: str) -> Sequence[str]:
    """Return the positional arguments of a command. Raises `CliError` for a wrong number."""
    given: Sequence[str] = options.words
    if len(given) > len(names):
        raise CliError(f"unexpected argument {given[len(names)]!r}")
    if len(given) < len(names):
        raise CliError(f"missing argument: {names[len(given)]}")
    return given


def alive(owner: str | None, dead: Collection[str]) -> bool:
    return owner is not None and owner not in dead


def ago(then: float, now: float) -> str:
    """Return the age of a time, in the largest unit that fits."""
    return "just now" if now - then < 5 else f"{span(now - then)} ago"


def span(seconds: float) -> str:
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.0f} {name}"
    return f"{max(seconds, 0):.0f} s"
