"""How sessions lie in their table, for those who read them and those who write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from callgate.core.stored import StoredSession
from callgate.storage.encoding import decode

SESSION = (
    "select ord, id, workspace, parent, owner, fence, last_seq, messages, updated_at, touch, body"
    " from cg.sessions"
)
TOUCH = 9
"""Which of these columns it is."""
DRIFT = 5_000
"""A session's `listed` is less than so many changes before its `touch`."""


def session_of(row: Sequence[Any]) -> StoredSession:
    """A session, from the columns of `SESSION`."""
    _, _, workspace, parent, owner, fence, last_seq, messages, updated_at, _, body = row
    return replace(
        decode(body, StoredSession),
        workspace=workspace,
        parent=parent,
        owner=owner,
        fence=fence,
        last_seq=last_seq,
        messages=messages,
        updated_at=updated_at,
    )
