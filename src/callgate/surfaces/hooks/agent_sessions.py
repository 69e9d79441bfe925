"""The conversations of agents with hooks, each a session of ours, and the calls under way in it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from callgate.config.agents.hook_switches import SWITCHES
from callgate.config.agents.settings_files import AGENTS, settings_files
from callgate.core.clients import Client
from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.core.ids import session_id
from callgate.core.sessions import Session
from callgate.policy.rules import is_within
from callgate.protocol.hooks.agent_tools import Translated
from callgate.protocol.hooks.events import HookEvent, Verdict
from callgate.runtime import Runtime
from callgate.surfaces.hooks.performing import PerformedCall
from callgate.surfaces.hooks.protection import Guarded
from callgate.tools.agent_tools import TAG

MOST_SESSIONS = 256
MOST_REMEMBERED = 512

OpenSession = Callable[[str | None, str], Session]


class OpenCall(msgspec.Struct):
    """A call that an agent may be running."""

    forms: set[str]
    """Which hooks told of it: one agent may have two."""
    digest: str
    """Of what it does: an id alone, which a model's server makes, stands for nothing."""
    performed: PerformedCall | None
    """None: it is run here."""
    decided: asyncio.Future[Verdict]

    @property
    def was_allowed(self) -> bool:
        return self.decided.done() and self.decided.result().allowed


class AgentSession:
    def __init__(self, agent: str, session: Session, home: str) -> None:
        self.agent = agent
        self.session = session
        files = [path for each in AGENTS for path in settings_files(each, session.workspace)]
        for switches in SWITCHES.values():  # `.env` is a file of the workspace, not of an agent
            names = (each for each in switches.env_files if "/" in each)
            files += [os.path.join(session.workspace, each) for each in names]
        self.guarded = Guarded(home, dict.fromkeys(files), session.workspace)
        self.open: dict[str, list[OpenCall]] = {}
        """By key: an agent without ids may run the same call twice at once."""
        self.refused: deque[str] = deque(maxlen=MOST_REMEMBERED)
        self.finished: deque[str] = deque(maxlen=MOST_REMEMBERED)
        """Calls that ended here before the agent reported their end."""
        self.unapproved: dict[str, str] = {}
        """The hook that reported an effect without permission, by key: the other hook of the same
        agent reports it once more."""
        self.rewritten: dict[str, str] = {}
        """The keys of calls by the keys of what the agent was told to run in their place."""
        self.present = ExitStack()

    def check_directory(self, cwd: str | None) -> None:
        """Refuse a directory outside that of the conversation, whose rules hold there alone."""
        workspace = self.session.workspace
        if cwd is None or cwd == workspace:
            return
        if not os.path.isabs(cwd) or not is_within(os.path.realpath(cwd), workspace):
            raise ToolPermissionDenied(
                f"{cwd[:200]} is outside {workspace}, where this conversation began.",
                reason="cwd_outside",
            )

    def rewrite(self, key: str, other: str) -> None:
        """The agent will report a call under another key."""
        while len(self.rewritten) >= MOST_REMEMBERED:
            del self.rewritten[next(iter(self.rewritten))]
        self.rewritten[other] = key

    def take(self, key: str) -> OpenCall | None:
        """The oldest open call of a key, which ends."""
        calls = self.open.get(key)
        if not calls:
            return None
        call = calls.pop(0)
        if not calls:
            del self.open[key]
        return call

    def add(self, key: str, call: OpenCall) -> None:
        self.open.setdefault(key, []).append(call)

    def drop(self, key: str, call: OpenCall) -> None:
        calls = self.open.get(key, [])
        if call in calls:
            calls.remove(call)
        if not calls:
            self.open.pop(key, None)


def digest_of(call: Translated) -> str:
    """Of what a call does."""
    text = json.dumps((call.tool, call.arguments), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class ReadCall(msgspec.Struct, frozen=True):
    """One event, read as a call."""

    call: Translated
    digest: str
    refusal: ToolError | None = None
    """Why the call may not run, whatever the policy says."""
    is_doubtful: bool = False
    """The command may do something that its words do not say."""


def key_of(event: HookEvent, read: ReadCall, agent: str) -> str:
    """What makes the events before and after a call, and those of two hooks, one call's."""
    if event.use_id is not None and agent != "cursor":
        return event.use_id
    return read.digest


class AgentSessions:
    """By agent and by the agent's own id."""

    def __init__(self, runtime: Runtime, open_session: OpenSession, home: str) -> None:
        self._runtime = runtime
        self._open_session = open_session
        self._home = home
        self._sessions: dict[tuple[str, str], AgentSession] = {}

    def find(self, agent: str, event: HookEvent) -> AgentSession | None:
        return self._sessions.get((agent, event.session))

    def all(self) -> list[AgentSession]:
        return list(self._sessions.values())

    async def open(self, agent: str, event: HookEvent) -> AgentSession:
        """Raises `ToolPermissionDenied` where its directory is not served, or another's."""
        found = self.find(agent, event)
        if found is not None:
            found.check_directory(event.cwd)
            return found
        session = self._open_session(event.cwd, session_id())
        session.tags |= {TAG}
        session.client = Client(name=AGENTS[agent].label)
        session.title = f"{AGENTS[agent].label} in {session.workspace}"
        opened = AgentSession(agent, session, self._home)
        # Whoever looks into the inbox may answer, as long as a hook waits.
        opened.present.enter_context(self._runtime.attach(None, session.id))
        self._sessions[agent, event.session] = opened
        await self._bound()
        return opened

    async def open_anywhere(self, agent: str, event: HookEvent) -> AgentSession:
        """For a report, which is recorded also where its directory is not served."""
        try:
            return await self.open(agent, event)
        except ToolPermissionDenied:
            return await self.open(agent, msgspec.structs.replace(event, cwd=None))

    async def _bound(self) -> None:
        while len(self._sessions) > MOST_SESSIONS:
            key = next((key for key, each in self._sessions.items() if not each.open), None)
            await self._end(self._sessions.pop(key or next(iter(self._sessions))))

    async def _end(self, session: AgentSession) -> None:
        session.present.close()
        await self._runtime.close_session(session.session)

    async def close(self) -> None:
        for session in self.all():
            session.present.close()
        self._sessions.clear()
