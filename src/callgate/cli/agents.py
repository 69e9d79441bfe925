"""A model at work for one command: its agent, the session it goes on with, and how it ended."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from callgate.agent.agent import Agent
from callgate.agent.turns import TurnEnd, TurnStop
from callgate.cli.embedded import find_tool
from callgate.cli.errors import EXIT_CODES, FAILED, OK, CliError
from callgate.cli.records.stores import explained, find_session, not_found
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.core.errors import ToolErrorClass
from callgate.core.models import ModelError, ModelErrorKind
from callgate.core.results import ToolResult
from callgate.core.sessions import Mode, Session, pool_workspace
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.wiring.runtime import Wired

_PAGE = 50
_REFUSED = EXIT_CODES[ToolErrorClass.PERMISSION_DENIED]
LIMIT = 3
CODES: Mapping[TurnStop, int] = {
    "end_turn": OK,
    "max_tokens": LIMIT,
    "max_turn_requests": LIMIT,
    "refusal": _REFUSED,
    "cancelled": LIMIT,  # by the clock; one that a signal cancelled has the code of the signal
    "error": FAILED,
    "waiting": EXIT_CODES[ToolErrorClass.SHUTTING_DOWN],
}


class Chosen(NamedTuple):
    session: Session
    calls: Mapping[str, asyncio.Task[ToolResult]] = {}
    """About these a person is asked, since before the session was resumed."""
    seen: int = 0
    """How many events it had before."""


def pool_of(options: Namespace) -> str | None:
    """`POOL` or `POOL/WORKSPACE` of the remote workers that the options name; None: none."""
    named = pool_workspace(options.workspace)
    if options.pool is not None and named is not None:
        raise CliError("--pool and --workspace name two places")
    return options.pool if named is None else f"{named.pool}/{named.name}"


def is_configured() -> bool:
    """Whether the settings name a model. Wrong settings are told by the command that opens it."""
    try:
        return bool(load_user(Home.from_environment())[0].model)
    except SettingsError:
        return False


def open_agent(wired: Wired, name: str | None) -> Agent:
    """An agent with the model of that name, or the usual one of the settings."""
    try:
        return wired.open_agent(name)
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
    """The tools that `--allow` names, as they call themselves."""
    found = {name: find_tool(wired, name) for name in options.allow or ()}
    for name, tool in found.items():
        if tool is None:
            raise CliError(f"--allow: there is no tool {name!r}", hint="See callgate tools.")
    return frozenset(tool.name for tool in found.values() if tool is not None)


def limit(agent: Agent, options: Namespace) -> None:
    """Narrow what one turn may use to what the options say."""
    requested = {
        "cycles": options.max_turns,
        "tokens": options.max_tokens,
        "time_s": options.time_limit,
    }
    limits = {key: value for key, value in requested.items() if value is not None}
    agent.limits = msgspec.structs.replace(agent.limits, **limits)


async def choose_session(wired: Wired, options: Namespace, fresh: Session) -> Chosen:
    """The session that the options name: the newest here, one by its id, or a fresh one."""
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
    """Take a session over, with what is still asked in it."""
    if pool_workspace(stored.workspace) is not None:
        raise CliError(
            f"session {stored.id} works in {stored.workspace}, on remote workers",
            hint="--pool goes on with it.",
        )
    if not os.path.isdir(stored.workspace):
        raise not_found(f"the workspace {stored.workspace} of session {stored.id} is not there")
    with explained():
        resumed = await wired.runtime.resume(stored.id)
    return Chosen(resumed.session, resumed.calls, stored.last_seq)


async def set_mode(wired: Wired, session: Session, mode: Mode) -> None:
    if wired.log.holds(session.id):
        await wired.runtime.conversations.set_mode(session, mode)
    else:  # nothing was said in it: it need not be kept for this
        session.mode = mode


async def newest(store: Store, workspace: str) -> StoredSession:
    """The session of a workspace in which something was last said."""
    cursor: str | None = None
    while True:
        page = await store.list_sessions(workspace, cursor=cursor, limit=_PAGE)
        for each in page.sessions:
            if each.messages:
                return each
        cursor = page.cursor
        if cursor is None:
            raise not_found(f"there is no conversation in {workspace} to continue")


def exit_code(end: TurnEnd, signal: int | None = None) -> int:
    """What the end of a turn means to a script. `signal` is the one that stopped it."""
    if end.stop == "cancelled" and signal is not None:
        return 128 + signal
    return CODES[end.stop]


def described(session: Session, end: TurnEnd) -> dict[str, Any]:
    """The end of a turn as JSON shows it."""
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
