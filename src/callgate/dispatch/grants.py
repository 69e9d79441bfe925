"""Answers that are remembered: for a session, for some uses, for some time.

A session's answer covers the same tool for the rest of the session (the person is told so).
Everything here is gone when the session closes; saved rules live in the settings instead.
"""

from __future__ import annotations

import msgspec

from callgate.policy.rules import Outcome


class Grant(msgspec.Struct, kw_only=True):
    session_id: str
    tool: str | None
    """None covers every tool of the session."""
    decision: Outcome = Outcome.ALLOW
    arguments_sha256: str | None = None
    """Exactly these arguments; None covers any."""
    uses: int | None = None
    """Left; None means without limit."""
    expires_at: float | None = None
    covers_rules: bool = True
    """Whether it answers a question that a rule asks; a yes to `prompt_once` does not."""


class Grants:
    def __init__(self) -> None:
        self._by_session: dict[str, list[Grant]] = {}

    def add(self, grant: Grant) -> None:
        self._by_session.setdefault(grant.session_id, []).append(grant)

    def take(
        self, session_id: str, tool: str, sha256: str, now: float, *, by_rule: bool = False
    ) -> Grant | None:
        """The grant that covers a call, one use of it consumed. A remembered no beats a yes."""
        grants = self._by_session.get(session_id)
        if not grants:
            return None
        matching = [
            grant
            for grant in grants
            if _covers(grant, tool, sha256, now) and (grant.covers_rules or not by_rule)
        ]
        if not matching:
            return None
        chosen = next((g for g in matching if g.decision is Outcome.DENY), matching[0])
        if chosen.uses is not None:
            chosen.uses -= 1
        self._by_session[session_id] = [grant for grant in grants if grant.uses != 0]
        return chosen

    def revoke_session(self, session_id: str) -> None:
        self._by_session.pop(session_id, None)


def _covers(grant: Grant, tool: str, sha256: str, now: float) -> bool:
    return (
        grant.tool in (None, tool)
        and grant.arguments_sha256 in (None, sha256)
        and (grant.expires_at is None or now < grant.expires_at)
    )
