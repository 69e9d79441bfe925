"""The ops that delete what is old: small, idempotent, and never what somebody still needs.

    PruneSessions ---> a session is gone for everybody at once; its rows are left behind
    SweepRows     ---> those rows, so many at a time
    PruneEvents   ---> the oldest events of sessions that stay; their numbers are not used again
    ReleasePages  ---> empty pages of the file go back to the disk

Each is a commit of its own. A process that dies in between leaves sessions that are whole or gone;
the next one sweeps what is left of those. A session is needed while a living process owns it, or
while one of its calls has not ended, which includes those that a person is asked about; its
workers go with it and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from callgate.core.ops import Op
from callgate.core.stored import StoredSession


class SessionPruning(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Sequence[StoredSession] = ()
    """Those that are gone, as they were."""
    cursor: str | None = None
    """Where to go on; None: there is nothing older than the bound behind it."""


class EventPruning(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 0
    calls: int = 0
    """Ended calls whose last event went."""
    cursor: str | None = None
    """Where to go on; None: there is nothing older than the bound behind it."""


class RowSweep(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 0
    messages: int = 0
    calls: int = 0
    more: bool = False
    """Whether rows of sessions that are gone are left."""


class PageRelease(msgspec.Struct, frozen=True, kw_only=True):
    pages: int = 0
    more: bool = False
    """Whether further empty pages can be given back."""


class PruneSessions(Op[SessionPruning], frozen=True, kw_only=True):
    """Remove sessions that nobody needs and that were last used before a moment.

    The one that was not used for the longest goes first. At most `most` are looked at.
    """

    sole: ClassVar[bool] = True
    before: float
    most: int = 100
    rows: int | None = None
    """Stop once the events and messages of those that went are so many."""
    cursor: str | None = None


class SweepRows(Op[RowSweep], frozen=True, kw_only=True):
    """Remove at most `most` rows of sessions that are gone."""

    sole: ClassVar[bool] = True
    most: int = 1_000


class PruneEvents(Op[EventPruning], frozen=True, kw_only=True):
    """Remove events from before a moment, and the calls that ended with them.

    Of each session the oldest go first, so that those that stay have no gap. At most `most` are
    looked at. A session that is needed keeps all of its events.
    """

    sole: ClassVar[bool] = True
    before: float
    most: int = 500
    cursor: str | None = None


class ReleasePages(Op[PageRelease], frozen=True, kw_only=True):
    """Give at most `most` empty pages of the file back to the disk, where it was made for that."""

    sole: ClassVar[bool] = True
    most: int = 1_000
