"""Sessions on a terminal: a table, a page, an export, and their deletion."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TextIO

import msgspec

from callgate.cli.errors import CliError
from callgate.cli.stores import ago, alive, find_session, process_name, span
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.output import print_json_line, print_text
from callgate.cli.ui.tables import Cell, Column, print_field, print_rows
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass
from callgate.core.stored import (
    ConfirmationState,
    StoredCall,
    StoredGrant,
    StoredMessage,
    StoredSession,
)
from callgate.core.stores import Snapshot, Store
from callgate.sessions.artifacts import delete_session, family_of
from callgate.sessions.ordering import read_in_order
from callgate.sessions.transcripts import write_transcript

_LABEL = 12
_COLOURS = {"waiting": "yellow", "running": "green", "idle": "dim"}
_HEADINGS = (
    Column("session"),
    Column("used", least=10, is_right=True),
    Column("state", least=7),
    Column("content", least=12, is_right=True),
    Column("title"),
)
_MOST_ROWS = 3
"""Maximum rows of a title or a prompt at a terminal; `--json` has the whole text."""
_LONGEST_PROMPT = 1_000


class States(NamedTuple):
    """Present activity in all sessions."""

    dead: Collection[str]
    """Owners whose process has ended."""
    called: Collection[str]
    """Sessions with a call of a living process."""
    waiting: Collection[str]
    """Sessions with an open question."""

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
    """Return a session in the form of `--json`."""
    owned = alive(session.owner, states.dead)
    return {
        **msgspec.to_builtins(session),
        "state": states.of(session),
        "owner_alive": owned,
    }


def print_table(
    sessions: Sequence[StoredSession], states: States, now: float, *, everywhere: bool
) -> None:
    """Print id, last use, state, events and title; with `everywhere` also the workspace."""
    rows = []
    for each in sessions:
        state, title = states.of(each), each.title or ""
        rows.append(
            (
                each.id,
                ago(each.updated_at, now),
                Cell(state, _COLOURS[state]),
                f"{each.last_seq} events",
                f"{title}  ({each.workspace})" if everywhere else title,
            )
        )
    print_rows(_HEADINGS, rows, most=_MOST_ROWS)


def print_page(snapshot: Snapshot, states: States, turns: Mapping[str, str], now: float) -> None:
    for label, value in _fields(snapshot.session, states, len(turns), now):
        print_field(f"{label:<{_LABEL}}", value)
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
            print_field("  ", line, most=_MOST_ROWS)


def _fields(
    session: StoredSession, states: States, turns: int, now: float
) -> Iterator[tuple[str, str]]:
    yield "session", session.id
    if session.title is not None:
        yield "title", session.title
    yield "workspace", session.workspace
    for root in session.extra_roots:
        yield "extra root", f"{root.path} ({'write' if root.writable else 'read'})"
    yield "mode", session.mode
    if session.forked_from is not None:
        yield "forked from", session.forked_from
    if session.parent is not None:
        yield "parent", session.parent
    yield "created", _when(session.created_at, now)
    yield "last used", _when(session.updated_at, now)
    owner = session.owner if alive(session.owner, states.dead) else None
    by = "" if owner is None else f", owned by {process_name(owner)}"
    yield "state", states.of(session) + by
    yield "content", f"events {session.last_seq:,}, messages {session.messages:,}, turns {turns:,}"


def _turns(turns: Mapping[str, str]) -> Iterator[str]:
    for number, (id, prompt) in enumerate(turns.items(), 1):
        yield f"{number}  {id}  {prompt.strip()}"


def first_line(prompt: str) -> str:
    """Return the first line of a prompt, truncated. A blank prompt yields one blank character."""
    return prompt.strip().partition("\n")[0][:_LONGEST_PROMPT] or prompt[:1]


def _questions(snapshot: Snapshot, states: States, now: float) -> Iterator[str]:
    tools = {call.id: call.tool for call in snapshot.calls}
    for each in snapshot.confirmations:
        left = f"{span(each.expires_at - now)} left"
        if each.state is ConfirmationState.ALLOWED:
            left = "approved, not started yet"
        yield f"{each.id}  {tools.get(each.call_id, '')}  {left}"


def _call(call: StoredCall, states: States) -> str:
    owner = "its process has ended"
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


async def write_export(
    store: Store, session: StoredSession, path: str | None, *, as_json: bool
) -> None:
    """Write a session to a file or to stdout, while it is read."""
    with _output(path) as output:
        if as_json:
            async for line in lines(store, session):
                output.line(line)
            return
        await write_transcript(store, session, output.text)


class _Output(NamedTuple):
    line: Callable[[dict[str, Any]], object]
    text: Callable[[str], object]


@contextmanager
def _output(path: str | None) -> Iterator[_Output]:
    if path is None:
        yield _Output(print_json_line, print_text)
        return
    with _private_file(path) as file:
        yield _Output(
            lambda line: file.write(f"{json.dumps(line, ensure_ascii=False)}\n"), file.write
        )


async def lines(store: Store, session: StoredSession) -> AsyncIterator[dict[str, Any]]:
    """Yield one object for the session, then one for each message and event."""
    yield {"kind": "session", **msgspec.to_builtins(session)}
    async for number, item in read_in_order(store, session.id):
        if isinstance(item, StoredMessage):
            yield {"kind": "message", "number": number, **msgspec.to_builtins(item)}
        else:
            yield {"kind": "event", "seq": number, **msgspec.to_builtins(item)}


@contextmanager
def _private_file(path: str) -> Iterator[TextIO]:
    """Open a file for writing; a new file is readable only for its owner."""

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    try:
        # A lone surrogate becomes an escape, which JSON reads as the same.
        with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=private) as file:
            yield file
    except OSError as error:
        raise CliError(
            f"the export could not be written: {error}",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="unwritable",
        ) from error


async def ask_to_delete(items: Sequence[str]) -> None:
    """Ask for confirmation. Raises `CliError` if the person refuses or there is no terminal."""
    tty = open_tty()
    if tty is None:
        raise CliError(
            "deletion needs confirmation, and there is no terminal to ask at",
            hint="Use --yes to delete without confirmation.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="no_confirmer",
        )
    if not await agreed(tty, Lines([f"  {line}" for line in items]), "Delete permanently?"):
        raise CliError(
            "nothing was deleted",
            error_class=ToolErrorClass.USER_DENIED,
            reason="user_denied",
        )


async def delete_sessions(store: Store, ids: Sequence[str], *, ask: bool) -> list[str]:
    """Delete sessions with their sub-agents: all of them, or none if one is in use."""
    found = [await find_session(store, each) for each in ids]
    chosen = {session.id: session for session in found}
    families = {id: await family_of(store, id) for id in chosen}
    dead = await store.dead_owners()
    for id, family in families.items():
        await _ensure_free(store, id, family, dead)
    if ask:
        shown = [f"{visible(each.id)}  {visible(each.title or '')}" for each in chosen.values()]
        await ask_to_delete(shown)
    for id, family in families.items():
        await delete_session(store, id, family, Home.from_environment().artifacts)
    return [*chosen]


async def _ensure_free(
    store: Store, id: str, family: Sequence[StoredSession], dead: Collection[str]
) -> None:
    """Raise `CliError` if a living process owns a session or runs a call in it."""
    owners = [each.owner for each in family]
    owners += [call.owner for each in family for call in await store.open_calls(each.id)]
    living = next((owner for owner in owners if owner is not None and alive(owner, dead)), None)
    if living is not None:
        raise CliError(
            f"session {id} is in use by {process_name(living)}",
            hint="Nothing was deleted.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="session_locked",
        )
