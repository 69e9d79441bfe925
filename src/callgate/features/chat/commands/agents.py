"""The agent of one command, the session that it continues, its refused calls, and the exit code.

A later call of the same tool, with the same arguments or the same path, makes up for a refusal if
it succeeds. A turn is finished if it ended normally and no refusal remains without such a call.
Other actions of the model do not count, because they may not solve the task.
"""

from __future__ import annotations

import asyncio
import json
import os
from argparse import Namespace
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from callgate.audit.reading import newest_first
from callgate.audit.records import CallRecord
from callgate.cli.embedded import find_tool
from callgate.cli.errors import EXIT_CODES, FAILED, OK, CliError
from callgate.cli.stores import explained, find_session, not_found
from callgate.core.calls import ToolResult
from callgate.core.errors import DENIALS, ToolErrorClass
from callgate.core.events import FAILED as CALL_FAILED
from callgate.core.events import TERMINAL, Event
from callgate.core.models import ModelError, ModelErrorKind
from callgate.core.sessions import Mode, Session, pool_workspace
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.settings import ChatSettings
from callgate.instance.wiring.runtime import Wired
from callgate.sessions.shows import TurnEnd, TurnStop

_PAGE = 50
REFUSED = EXIT_CODES[ToolErrorClass.PERMISSION_DENIED]
LIMIT = 3
CODES: Mapping[TurnStop, int] = {
    "end_turn": OK,
    "max_tokens": LIMIT,
    "max_turn_requests": LIMIT,
    "refusal": REFUSED,
    "cancelled": LIMIT,  # by the time limit; a cancel by a signal has the code of the signal
    "error": FAILED,
    "waiting": EXIT_CODES[ToolErrorClass.SHUTTING_DOWN],
}


class Chosen(NamedTuple):
    session: Session
    calls: Mapping[str, asyncio.Task[ToolResult]] = {}
    """Calls that have waited for approval since before the session was resumed."""
    seen: int = 0
    """Number of events before."""


def pool_of(options: Namespace) -> str | None:
    """Return `POOL` or `POOL/WORKSPACE` of the remote workers that the options name, or None."""
    named = pool_workspace(options.workspace)
    if options.pool is not None and named is not None:
        raise CliError("--pool and --workspace name different workspaces")
    return options.pool if named is None else f"{named.pool}/{named.name}"


def open_agent(wired: Wired, name: str | None, command: Sequence[str] = ("chat",)) -> Agent:
    """Return an agent with the named model, or with the default model of the settings.

    `command` is the command line for a hint.
    """
    if not (name or wired.settings.of(ChatSettings).model):
        from callgate.features.chat.commands.keys import no_model  # lazy: for the error  # noqa: PLC0415

        raise no_model(command)
    try:
        agent: Agent = wired.open_agent(name)
        return agent
    except ModelError as error:
        usage = error.kind is ModelErrorKind.REQUEST
        raise CliError(
            error.message.rstrip("."),
            hint='--model NAME, or model = "NAME" in settings.toml; callgate keys set NAME '
            "stores its key.",
            error_class=ToolErrorClass.VALIDATION_ERROR
            if usage
            else ToolErrorClass.EXECUTION_ERROR,
            reason=f"model_{error.kind}",
        ) from None


def allowed(wired: Wired, options: Namespace) -> frozenset[str]:
    """Return the names of the tools in `--allow`, without aliases."""
    found = {name: find_tool(wired, name) for name in options.allow or ()}
    for name, tool in found.items():
        if tool is None:
            raise CliError(f"--allow: there is no tool {name!r}", hint="See callgate tools.")
    return frozenset(tool.name for tool in found.values() if tool is not None)


def limit(agent: Agent, options: Namespace) -> None:
    """Apply the limits of the options to the agent."""
    requested = {
        "cycles": options.max_turns,
        "tokens": options.max_tokens,
        "time_s": options.time_limit,
    }
    limits = {key: value for key, value in requested.items() if value is not None}
    agent.limits = msgspec.structs.replace(agent.limits, **limits)


async def choose_session(wired: Wired, options: Namespace, fresh: Session) -> Chosen:
    """Return the session that the options select: the newest here, one by its id, or a
    fresh one.
    """
    if options.resume is None and not options.go_on:
        return Chosen(fresh)
    with explained():
        store = await wired.log.store()
        if options.resume is not None:
            stored = await find_session(store, options.resume)
        else:
            stored = await newest(store, fresh.workspace)
    chosen = await resume(wired, stored)
    if options.mode is not None:
        await set_mode(wired, chosen.session, Mode(options.mode))
    return chosen


async def resume(wired: Wired, stored: StoredSession) -> Chosen:
    """Take over a session, with its open questions."""
    if pool_workspace(stored.workspace) is not None:
        raise CliError(
            f"session {stored.id} works in {stored.workspace}, on remote workers",
            hint="--pool continues it.",
        )
    if not os.path.isdir(stored.workspace):
        raise not_found(f"the workspace {stored.workspace} of session {stored.id} does not exist")
    with explained():
        resumed = await wired.runtime.sessions.resume(stored.id)
    return Chosen(resumed.session, resumed.calls, stored.last_seq)


async def set_mode(wired: Wired, session: Session, mode: Mode) -> None:
    if wired.log.holds(session.id):
        await wired.runtime.sessions.conversations.set_mode(session, mode)
    else:  # a session without messages is not stored yet
        session.mode = mode


async def newest(store: Store, workspace: str) -> StoredSession:
    """Return the session of a workspace with the newest message."""
    cursor: str | None = None
    while True:
        page = await store.list_sessions(workspace, cursor=cursor, limit=_PAGE)
        for each in page.sessions:
            if each.messages:
                return each
        cursor = page.cursor
        if cursor is None:
            raise not_found(f"there is no conversation in {workspace} to continue")


def exit_code(end: TurnEnd, signal: int | None = None, *, made_up_for: bool = True) -> int:
    """Return the exit code for the end of a turn.

    Args:
        signal: The signal that stopped it.
        made_up_for: Whether no call was refused, or each refusal was made up for.
    """
    if end.stop == "cancelled" and signal is not None:
        return 128 + signal
    return CODES[end.stop] or (OK if made_up_for else REFUSED)


def described(session: Session, end: TurnEnd) -> dict[str, Any]:
    """Return the end of a turn for JSON output."""
    return {
        "session": session.id,
        "stop": end.stop,
        "text": end.text,
        "usage": msgspec.to_builtins(end.usage),
        "cost_usd": end.cost_usd,
        "cycles": end.cycles,
        "calls": end.calls,
        "notice": end.notice,
    }


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    call_id: str
    tool: str
    arguments: str
    """Summary, redacted; empty if the audit log has none."""
    error_class: str
    reason: str | None
    message: str
    origin: str | None
    """The rule or default that decided, with file and line; None for other checks."""


class Refusals:
    """Collects the ends of calls from events; the audit log has their arguments."""

    def __init__(self) -> None:
        self._ended: list[str] = []
        """Ids of calls, in the order of their ends."""
        self._refused: dict[str, Event] = {}

    def hear(self, event: Event) -> None:
        if event.type not in TERMINAL:
            return
        id = str(event.payload.get("call_id", ""))
        self._ended.append(id)
        if event.type == CALL_FAILED and event.payload.get("error_class") in DENIALS:
            self._refused[id] = event

    def report(self, audit: str) -> tuple[list[Refusal], bool]:
        """Return the refusals, and whether later calls made up for all. `audit` is the path of the
        audit log.
        """
        records = _records(audit, self._ended) if self._refused else {}
        found = [_refusal(id, event, records.get(id)) for id, event in self._refused.items()]
        return found, all(self._is_made_up_for(each.call_id, records) for each in found)

    def _is_made_up_for(self, id: str, records: dict[str, CallRecord]) -> bool:
        refused = records.get(id)
        if refused is None:
            return False
        later = self._ended[self._ended.index(id) + 1 :]
        return any(_makes_up_for(records[each], refused) for each in later if each in records)


def _makes_up_for(record: CallRecord, refused: CallRecord) -> bool:
    if record.tool != refused.tool or record.error_class is not None:
        return False
    path = _path(refused)
    return record.args == refused.args or (path is not None and path == _path(record))


def _path(record: CallRecord) -> str | None:
    try:
        arguments = json.loads(record.args)
    except (ValueError, RecursionError):  # a summary of long arguments is truncated
        return None
    path = arguments.get("path") if isinstance(arguments, dict) else None
    return path if isinstance(path, str) else None


def _records(audit: str, ids: Collection[str]) -> dict[str, CallRecord]:
    """Return the records of these calls, as far as they are found among the newest records."""
    wanted = set(ids)
    found: dict[str, CallRecord] = {}
    try:
        for record in _newest(audit, len(wanted)):
            if record.call_id in wanted:
                found[record.call_id] = record
                if len(found) == len(wanted):
                    break
    except OSError:
        pass  # refusals are listed without their arguments
    return found


_OTHERS = 2_000
"""Maximum number of records of other processes to search."""


def _newest(audit: str, count: int) -> Iterable[CallRecord]:
    for number, (record, _) in enumerate(newest_first(audit)):
        if number >= count + _OTHERS:
            return
        yield record


def _refusal(id: str, event: Event, record: CallRecord | None) -> Refusal:
    payload = event.payload
    reason = payload.get("reason")
    return Refusal(
        call_id=id,
        tool=str(payload.get("tool_name", "")),
        arguments="" if record is None else record.args,
        error_class=str(payload.get("error_class", "")),
        reason=None if reason is None else str(reason),
        message=str(payload.get("message", "")),
        origin=None if record is None else record.policy,
    )


def described_refusals(refusals: Collection[Refusal], *, finished: bool) -> dict[str, Any]:
    """Return the fields about refusals for the JSON output."""
    return {"finished": finished, "refusals": msgspec.to_builtins(list(refusals))}


def unfinished_words(refusals: Collection[Refusal]) -> str:
    """Return the notice for the user."""
    tools = ", ".join(dict.fromkeys(each.tool for each in refusals))
    calls = "1 call was" if len(refusals) == 1 else f"{len(refusals)} calls were"
    return f"the task may be unfinished: {calls} refused ({tools})"
