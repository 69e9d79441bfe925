"""How sessions look: a row each, or a page about one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from callgate.cli.records.stores import ago, alive, process_name, span
from callgate.cli.ui.terminal import columns, is_terminal, paint_for
from callgate.cli.ui.visible import clip, visible
from callgate.core.stored import ConfirmationState, StoredCall, StoredGrant, StoredSession
from callgate.core.stores import Snapshot, Store

_LABEL = 12
_COLOURS = {"waiting": "yellow", "running": "green", "idle": "dim"}
_NARROWEST = 20
_LONGEST_PROMPT = 1_000


class States(NamedTuple):
    """What happens in the sessions at this moment."""

    dead: Collection[str]
    """Owners whose process is gone."""
    called: Collection[str]
    """Sessions in which a living process runs a call."""
    waiting: Collection[str]
    """Sessions in which a question waits for an answer."""

    def of(self, session: StoredSession) -> str:
        if session.id in self.waiting:
            return "waiting"
        used = alive(session.owner, self.dead) or session.id in self.called
        return "running" if used else "idle"


async def read_states(store: Store) -> States:
    dead = await store.dead_owners()
    calls = await store.open_calls()
    return States(
        dead,
        {call.session_id for call in calls if alive(call.owner, dead)},
        {each.session_id for each in await store.open_confirmations()},
    )


def described(session: StoredSession, states: States) -> dict[str, Any]:
    """A session as `--json` prints it."""
    owned = alive(session.owner, states.dead)
    return {
        **msgspec.to_builtins(session),
        "state": states.of(session),
        "owner_alive": owned,
    }


def print_table(
    sessions: Sequence[StoredSession], states: States, now: float, *, everywhere: bool
) -> None:
    """Columns: id, last used, state, events, title, and where it may differ the workspace."""
    paint = paint_for(sys.stdout)
    room = columns() if is_terminal(sys.stdout) else None
    for each in sessions:
        state = states.of(each)
        head = f"{visible(each.id)}  {ago(each.updated_at, now):>10}  "
        counts = f"  {each.last_seq:>5} events  "
        taken = len(head) + 7 + len(counts)
        text = each.title or ""
        if everywhere:
            text += f"  ({each.workspace})"
        title = visible(text) if room is None else clip(text, max(room - taken - 1, _NARROWEST))
        print(f"{head}{paint(_COLOURS[state], f'{state:<7}')}{counts}{title}".rstrip())


def print_page(snapshot: Snapshot, states: States, turns: Mapping[str, str], now: float) -> None:
    for label, value in _fields(snapshot.session, states, len(turns), now):
        print(f"{label:<{_LABEL}}{visible(value)}")
    room = columns() - 1 if is_terminal(sys.stdout) else 120
    sections = {
        "turns": _turns(turns),
        "questions": _questions(snapshot, states, now),
        "calls": (_call(call, states) for call in snapshot.calls),
        "grants": map(_grant, snapshot.grants),
    }
    for title, lines in sections.items():
        for number, line in enumerate(lines):
            if number == 0:
                print(f"\n{title}")
            print(f"  {clip(line, max(room - 2, _NARROWEST))}")


def _fields(
    session: StoredSession, states: States, turns: int, now: float
) -> Iterator[tuple[str, str]]:
    yield "session", session.id
    if session.title is not None:
        yield "title", session.title
    yield "workspace", session.workspace
    for root in session.extra_roots:
        yield "beside it", f"{root.path} ({'write' if root.writable else 'read'})"
    yield "mode", session.mode
    if session.forked_from is not None:
        yield "forked from", session.forked_from
    if session.parent is not None:
        yield "works for", session.parent
    yield "made", _when(session.created_at, now)
    yield "last used", _when(session.updated_at, now)
    owner = session.owner if alive(session.owner, states.dead) else None
    by = "" if owner is None else f", owned by {process_name(owner)}"
    yield "state", states.of(session) + by
    yield "holds", f"events {session.last_seq:,}, messages {session.messages:,}, turns {turns:,}"


def _turns(turns: Mapping[str, str]) -> Iterator[str]:
    for number, (id, prompt) in enumerate(turns.items(), 1):
        yield f"{number}  {id}  {prompt.strip()}"


def first_line(prompt: str) -> str:
    """As much of a prompt as a page shows; blank if it is, and empty if it is."""
    return prompt.strip().partition("\n")[0][:_LONGEST_PROMPT] or prompt[:1]


def _questions(snapshot: Snapshot, states: States, now: float) -> Iterator[str]:
    tools = {call.id: call.tool for call in snapshot.calls}
    for each in snapshot.confirmations:
        left = f"{span(each.expires_at - now)} left"
        if each.state is ConfirmationState.ALLOWED:
            left = "allowed, not started yet"
        yield f"{each.id}  {tools.get(each.call_id, '')}  {left}"


def _call(call: StoredCall, states: States) -> str:
    owner = "its process is gone"
    if alive(call.owner, states.dead):
        owner = process_name(call.owner)
    return f"{call.id}  {call.tool}  {call.state}, {owner}"


def _grant(grant: StoredGrant) -> str:
    words = [grant.decision, grant.tool or "every tool"]
    if grant.arguments_sha256 is not None:
        words.append(f"with arguments {grant.arguments_sha256[:12]}")
    if grant.uses is not None:
        words.append(f"used {len(grant.used_by)} of {grant.uses} times")
    if grant.expires_at is not None:
        words.append(f"until {_local(grant.expires_at)}")
    return "  ".join(words)


def _when(then: float, now: float) -> str:
    return f"{_local(then)} ({ago(then, now)})"


def _local(then: float) -> str:
    try:
        return datetime.fromtimestamp(then).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "unknown"
