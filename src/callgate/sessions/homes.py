"""Owners of other homes that share the store: whose journals we cannot read, and until when.

    dead, of our home          -> its journal is here: we read it, then close what it left open
    dead, of another home      -> `gone` since a moment: a process of that home reads its journal
    still unread after a while -> `lost`: its calls without effects end as interrupted

A home that was copied, id and all, is found out while both are in use (`CopiedHome`): journals of
the one would count as read by the other.

A home that comes back and one that declares it lost exclude each other: both change one shared
entry by compare-and-set. Lines written for a lost home by another one get a note, so that `audit
verify` does not take them for forgeries. So do lines of calls that the store ended otherwise: these
are reported for ever, also when the rows of the call are pruned.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import msgspec

from callgate.core.ids import home_of
from callgate.core.ops import DropEntry, PutEntry
from callgate.core.stores import Store

GONE = "gone_owner"
"""Kind of entry: a dead owner, by its name."""
HOME = "home"
"""Kind of entry: the owner that looks after a home and where that home is, by the home's id."""
NOTE = "audit_note"
"""Kind of entry: why a line is not as the store has it, by the line's id."""
SUPERSEDED = "superseded"
"""The call was ended otherwise before the line was read."""
MOVED = "moved"
"""Another home wrote the line too, because its owner's home was lost."""

_log = logging.getLogger("callgate.sessions")


class HomeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One home among those that share a store."""

    id: str
    lost_after_s: float = 15 * 60.0
    """How long a home whose process died is waited for."""
    place: str = ""
    """Where its directory is; a copy is elsewhere."""

    def has(self, owner: str) -> bool:
        """Whether the journal of an owner is here, or nowhere."""
        return home_of(owner) in (None, self.id)


class CopiedHome(Exception):
    """Another directory with the id of this home is in use; `str` says what to do."""

    def __init__(self, keeper: str) -> None:
        super().__init__(
            "its home was copied from one in which a server runs now, and has the same id"
            f" ({home_of(keeper)}): remove the file home.id of the copy, and start it again"
        )


class _Absence(msgspec.Struct, frozen=True):
    """The value of an entry of kind `GONE`."""

    state: str
    """`gone`, `read` (by its own home), or `lost`."""
    since: float


def is_lost(state: str) -> bool:
    return state == "lost"


async def lost_owners(
    store: Store, home: HomeIdentity, owners: Iterable[str], at: float
) -> frozenset[str]:
    """Those whose homes are not waited for any more. For the others the time begins to run."""
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
    """Whether `lost_owners` has anything to do, or to give."""
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
    """Before the lines of a dead owner of our home are stored. False: it was lost meanwhile, so
    that its calls may have been ended."""
    while True:
        version, absence = (await _absences(store)).get(owner, (0, None))
        if absence is not None and is_lost(absence.state):
            return False
        if await _set(store, owner, _Absence("read", at), version):
            return True


async def forget_absences(store: Store, waited_for: Collection[str]) -> None:
    """Drop the entries of owners that left nothing open. That one was lost is kept."""
    for owner, (version, absence) in (await _absences(store)).items():
        if owner not in waited_for and not is_lost(absence.state):
            await store.commit(DropEntry(kind=GONE, name=owner, expected=version))


async def declare_home(store: Store, home: HomeIdentity) -> None:
    """Have it known that a process of this home lives, and reads what its dead left.

    Raises `CopiedHome` where one of another directory with this id does so already: of two that
    come at once one is refused."""
    while True:
        entries = {each.name: each for each in await store.entries(HOME)}
        known = entries.get(home.id)
        if known is not None:
            keeper, _, place = known.value.partition(" ")
            if await store.alive(keeper):
                if place and home.place and place != home.place:
                    raise CopiedHome(keeper)
                return
        value = f"{store.owner} {home.place}".rstrip()
        version = 0 if known is None else known.version
        put = PutEntry(kind=HOME, name=home.id, value=value, expected=version)
        (receipt,) = await store.commit(put)
        if receipt.applied:
            return


def note_line(line: str, why: str) -> PutEntry:
    """Say why a line, by its id, is not as the store has it."""
    return PutEntry(kind=NOTE, name=line, value=why)


async def _absences(store: Store) -> dict[str, tuple[int, _Absence]]:
    found = {}
    for entry in await store.entries(GONE):
        try:
            absence = msgspec.json.decode(entry.value, type=_Absence)
        except (ValueError, RecursionError):
            absence = _Absence("gone", 0.0)
        found[entry.name] = entry.version, absence
    return found


async def _set(store: Store, owner: str, absence: _Absence, expected: int) -> bool:
    value = msgspec.json.encode(absence).decode()
    (receipt,) = await store.commit(PutEntry(kind=GONE, name=owner, value=value, expected=expected))
    return receipt.applied


async def _is_overdue(
    store: Store, home: HomeIdentity, owner: str, absence: _Absence, at: float
) -> bool:
    if at - absence.since < home.lost_after_s or await store.alive(owner):
        return False
    living = {each.name: each.value.partition(" ")[0] for each in await store.entries(HOME)}
    keeper = living.get(home_of(owner) or "")
    return keeper is None or not await store.alive(keeper)
