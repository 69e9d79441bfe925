"""Homes that share a store: owners whose journals are unreadable here, and heads of audit chains.

    dead, of our home          -> its journal is here: read it, then close its open calls
    dead, of another home      -> `gone` since a moment: a process of that home reads its journal
    still unread after a while -> `lost`: its calls without effects end as interrupted

A copied home, id included, is detected while both are in use (`CopiedHome`): journals of the one
would count as read by the other.

A home that comes back and one that declares it lost exclude each other: both change one shared
entry by compare-and-set. Lines written for a lost home by another one get a note, so that `audit
verify` does not report them as forgeries. So do lines of calls that the store ended differently:
these are reported permanently, also after the rows of the call are pruned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable

import msgspec

from callgate.audit.log import AuditLog
from callgate.audit.verify import Head, put_head
from callgate.core.ids import home_of
from callgate.core.ops import DropEntry, PutEntry
from callgate.core.stores import Store, StoreError
from callgate.core.tasks import TaskSet
from callgate.events.log import SessionLog

DEAD_OWNER = "gone_owner"
"""Kind of entry: a dead owner, by its name."""
HOME = "home"
"""Kind of entry: the process that serves a home, and the home's directory; by the home's id."""
NOTE = "audit_note"
"""Kind of entry: the reason for which a line differs from the store, by the line's id."""
SUPERSEDED = "superseded"
"""The call was ended in another way before the line was read."""
MOVED = "moved"
"""Another home also wrote the line, because its owner's home was lost."""

_log = logging.getLogger("callgate.sessions")


class HomeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of one of the homes that share a store."""

    id: str
    lost_after_s: float = 15 * 60.0
    """Time to wait for a home whose process died."""
    path: str = ""
    """Path of its directory, which reveals a copy."""

    def has(self, owner: str) -> bool:
        """Whether the journal of an owner is in this home, or in none."""
        return home_of(owner) in (None, self.id)


class CopiedHome(Exception):
    """Another directory with the id of this home is in use; `str` has the fix."""

    def __init__(self, keeper: str) -> None:
        super().__init__(
            "its home was copied from one in which a server runs now, and has the same id"
            f" ({home_of(keeper)}): remove the file home.id of the copy, and start it again"
        )


class _Absence(msgspec.Struct, frozen=True):
    """The value of an entry of kind `DEAD_OWNER`."""

    state: str
    """`gone`, `read` (by its own home), or `lost`."""
    since: float


def is_lost(state: str) -> bool:
    return state == "lost"


async def lost_owners(
    store: Store, home: HomeIdentity, owners: Iterable[str], at: float
) -> frozenset[str]:
    """Return the owners whose homes are lost. Starts the waiting time of the others."""
    foreign = sorted({owner for owner in owners if owner and not home.has(owner)})
    if not foreign:
        return frozenset()
    absences = await _absences(store)
    found = set()
    for owner in foreign:
        version, absence = absences.get(owner, (0, None))
        if absence is not None and is_lost(absence.state):
            found.add(owner)
        elif absence is None:
            await _set(store, owner, _Absence("gone", at), version)
        elif await _is_overdue(store, home, owner, absence, at) and await _set(
            store, owner, _Absence("lost", at), version
        ):
            _log.warning("the home of %s has not come back: its calls are closed", owner)
            found.add(owner)
    return frozenset(found)


async def any_due(store: Store, home: HomeIdentity, owners: Collection[str], at: float) -> bool:
    """Whether `lost_owners` has to change or to return anything."""
    foreign = {owner for owner in owners if owner and not home.has(owner)}
    if not foreign:
        return False
    absences = await _absences(store)
    for owner in foreign:
        if owner not in absences:
            return True
        _, absence = absences[owner]
        if is_lost(absence.state) or await _is_overdue(store, home, owner, absence, at):
            return True
    return False


async def claim_reading(store: Store, owner: str, at: float) -> bool:
    """Claim the lines of a dead owner of our home before they are stored. False: the home was
    declared lost, so its calls may have been ended."""
    while True:
        version, absence = (await _absences(store)).get(owner, (0, None))
        if absence is not None and is_lost(absence.state):
            return False
        if await _set(store, owner, _Absence("read", at), version):
            return True


async def forget_absences(store: Store, waited_for: Collection[str]) -> None:
    """Delete the entries of owners without open calls. The entry of a lost home remains."""
    for owner, (version, absence) in (await _absences(store)).items():
        if owner not in waited_for and not is_lost(absence.state):
            await store.commit(DropEntry(kind=DEAD_OWNER, name=owner, expected=version))


async def declare_home(store: Store, home: HomeIdentity) -> None:
    """Declare that a process of this home lives, and reads the journals of its dead processes.

    Raises `CopiedHome` if another directory with this id has declared the same. Of two concurrent
    declarations one fails."""
    while True:
        entries = {each.name: each for each in await store.entries(HOME)}
        known = entries.get(home.id)
        if known is not None:
            keeper, _, directory = known.value.partition(" ")
            if await store.alive(keeper):
                if directory and home.path and directory != home.path:
                    raise CopiedHome(keeper)
                return
        value = f"{store.owner} {home.path}".rstrip()
        version = 0 if known is None else known.version
        put = PutEntry(kind=HOME, name=home.id, value=value, expected=version)
        (receipt,) = await store.commit(put)
        if receipt.applied:
            return


def note_line(line: str, why: str) -> PutEntry:
    """Store the reason why a line, by its id, differs from the store."""
    return PutEntry(kind=NOTE, name=line, value=why)


async def _absences(store: Store) -> dict[str, tuple[int, _Absence]]:
    found = {}
    for entry in await store.entries(DEAD_OWNER):
        try:
            absence = msgspec.json.decode(entry.value, type=_Absence)
        except (ValueError, RecursionError):
            absence = _Absence("gone", 0.0)
        found[entry.name] = entry.version, absence
    return found


async def _set(store: Store, owner: str, absence: _Absence, expected: int) -> bool:
    value = msgspec.json.encode(absence).decode()
    (receipt,) = await store.commit(
        PutEntry(kind=DEAD_OWNER, name=owner, value=value, expected=expected)
    )
    return receipt.applied


async def _is_overdue(
    store: Store, home: HomeIdentity, owner: str, absence: _Absence, at: float
) -> bool:
    if at - absence.since < home.lost_after_s or await store.alive(owner):
        return False
    living = {each.name: each.value.partition(" ")[0] for each in await store.entries(HOME)}
    keeper = living.get(home_of(owner) or "")
    return keeper is None or not await store.alive(keeper)


class HeadPublisher:
    """Publishes the end of the audit log. One per runtime; the log calls it once a second."""

    def __init__(self, log: SessionLog, audit: AuditLog, home: str) -> None:
        self._log = log
        self._audit = audit
        self._home = home
        self._published: tuple[str, int] = ("", 0)
        self._tasks = TaskSet()
        log.on_checkpoint = self._begin

    def _begin(self) -> None:
        self._tasks.start(self.publish())

    async def publish(self) -> None:
        """Publish the last line. Best effort: the next call repeats it."""
        chain, n, *_ = self._audit.end
        if n == 0 or (chain, n) == self._published:
            return
        try:
            await publish_head(await self._log.store(), self._audit, self._home)
            self._published = chain, n
        except (StoreError, OSError) as error:
            _log.warning("the store does not know the end of the audit log: %s", error)

    async def close(self) -> None:
        """Publish the end of the chain, before the log is closed."""
        await self._tasks.wait()
        await self.publish()


async def publish_head(store: Store, audit: AuditLog, home: str) -> None:
    """Store the last line of a log, after it is on disk."""
    chain, n, hash, file = audit.end
    if n == 0:
        return
    head = Head(home=home, owner=audit.owner, n=n, hash=hash, file=file, at=time.time())
    await asyncio.wrap_future(audit.request_sync())
    await store.commit(put_head(chain, head))
