"""Remembered answers: for a session, for a number of uses, until a time.

An answer for the session covers the same tool for the rest of the session, also in its sub-agents.
The store retains it, so it survives the process and ends when the session is closed. Saved rules
are in the settings instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from callgate.core.ids import ulid
from callgate.core.ops import PutGrant, RevokeGrants, UseGrant
from callgate.core.sessions import Session
from callgate.core.stored import LOCAL, StoredGrant
from callgate.events.log import SessionLog
from callgate.policy.rules import Outcome


class Grant(msgspec.Struct, kw_only=True):
    id: str = msgspec.field(default_factory=ulid)
    tool: str | None
    """None covers every tool of the session."""
    decision: Outcome = Outcome.ALLOW
    arguments_sha256: str | None = None
    """Hash of the only arguments that it covers; None covers any."""
    uses: int | None = None
    """Remaining uses; None means without limit."""
    expires_at: float | None = None
    covers_rules: bool = True
    """Whether it answers a question of a rule; an approval by `prompt_once` does not."""
    network: bool = False
    """Whether the call requested the network. An approval covers network requests only if it is
    set. A denial covers all commands unless it is set."""
    destinations: tuple[str, ...] = ()
    """The destinations of the approved call."""
    is_narrow: bool = False
    """Whether it covers only calls to these destinations."""
    principal: str = LOCAL
    """The approver."""


class _Remembered(NamedTuple):
    session: Session
    grants: list[Grant]


class Grants:
    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._by_session: dict[str, _Remembered] = {}

    def add(self, session: Session, grant: Grant) -> None:
        self._by_session.setdefault(session.id, _Remembered(session, [])).grants.append(grant)
        self._log.commit(session, PutGrant(session=session.id, grant=_stored(session, grant)))

    def load(self, session: Session, stored: Iterable[StoredGrant]) -> None:
        """Load the grants of a resumed session."""
        self._by_session[session.id] = _Remembered(session, [_grant(each) for each in stored])

    def take(
        self,
        session: Session,
        tool: str,
        sha256: str,
        call: str,
        *,
        by_rule: bool = False,
        network: bool = False,
        destinations: Callable[[], Collection[str]] = tuple,
    ) -> Grant | None:
        """Return the grant that covers a call, and consume one use of it. A remembered denial
        beats an approval. `destinations` returns the destinations of the call, for a narrow grant.
        """
        if not self._by_session:
            return None
        now = time.time()
        matching = [
            (grants, grant)
            for id in (session.id, session.parent)
            if id is not None and (grants := self._by_session.get(id)) is not None
            for grant in grants.grants
            if _covers(grant, tool, sha256, now)
            and (grant.covers_rules or not by_rule)
            and _covers_network(grant, network)
            and _covers_destinations(grant, destinations)
        ]
        if not matching:
            return None
        denied = (each for each in matching if each[1].decision is Outcome.DENY)
        grants, chosen = next(denied, matching[0])
        if chosen.uses is not None:
            chosen.uses -= 1
            owner = grants.session
            use = UseGrant(session=owner.id, grant=chosen.id, call=call, at=now)
            self._log.commit(owner, use)
            if chosen.uses == 0:
                grants.grants.remove(chosen)
        return chosen

    def denies(self, session: Session, tool: str, sha256: str) -> bool:
        """Whether a remembered denial covers such calls for the rest of the session."""
        now = time.time()
        return any(
            grant.decision is Outcome.DENY
            and not grant.is_narrow
            and _covers(grant, tool, sha256, now)
            for id in (session.id, session.parent)
            if id is not None and (remembered := self._by_session.get(id)) is not None
            for grant in remembered.grants
        )

    def destinations(self, session: Session, tool: str) -> frozenset[str]:
        """Return the destinations that approvals of a tool cover, for the rest of the session."""
        if not self._by_session:
            return frozenset()
        return frozenset(
            destination
            for id in (session.id, session.parent)
            if id is not None and (grants := self._by_session.get(id)) is not None
            for grant in grants.grants
            if grant.tool == tool and grant.decision is Outcome.ALLOW
            for destination in grant.destinations
        )

    def revoke_session(self, session: Session) -> None:
        if self._by_session.pop(session.id, None):
            self._log.commit(session, RevokeGrants(session=session.id))


def _stored(session: Session, grant: Grant) -> StoredGrant:
    return StoredGrant(
        id=grant.id,
        session_id=session.id,
        tool=grant.tool,
        decision=grant.decision,
        arguments_sha256=grant.arguments_sha256,
        uses=grant.uses,
        expires_at=grant.expires_at,
        covers_rules=grant.covers_rules,
        network=grant.network,
        destinations=grant.destinations,
        is_narrow=grant.is_narrow,
        principal=grant.principal,
    )


def _grant(stored: StoredGrant) -> Grant:
    return Grant(
        id=stored.id,
        tool=stored.tool,
        decision=Outcome(stored.decision),
        arguments_sha256=stored.arguments_sha256,
        uses=None if stored.uses is None else stored.uses - len(stored.used_by),
        expires_at=stored.expires_at,
        covers_rules=stored.covers_rules,
        network=stored.network,
        destinations=stored.destinations,
        is_narrow=stored.is_narrow,
        principal=stored.principal,
    )


def _covers(grant: Grant, tool: str, sha256: str, now: float) -> bool:
    return (
        grant.tool in (None, tool)
        and grant.arguments_sha256 in (None, sha256)
        and (grant.expires_at is None or now < grant.expires_at)
        and (grant.uses is None or grant.uses > 0)
    )


def _covers_network(grant: Grant, network: bool) -> bool:
    if grant.decision is Outcome.ALLOW:
        return grant.network or not network
    return network or not grant.network


def _covers_destinations(grant: Grant, destinations: Callable[[], Collection[str]]) -> bool:
    if not grant.is_narrow:
        return True
    wanted = destinations()
    return bool(wanted) and all(each in grant.destinations for each in wanted)
