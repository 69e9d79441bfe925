"""The sessions that this process serves to clients, which may disconnect and return.

    open ---> served ---begin_turn---> an agent runs the turn, independent of clients
    take ---> served (takes over a session that no living process owns)
    close --> stops its turn and calls, forgets its answers; stored data stays

A client that disconnects changes nothing: the instance owns the session until it is closed or the
instance stops. `SessionTurns` has the list of sessions and the turn of each. Each model has one
agent, made on first use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.core.calls import CallerKind
from callgate.core.content import Message, ToolUseBlock
from callgate.core.ids import session_id
from callgate.core.sessions import Client, Mode, OpenSession, Root, Session
from callgate.core.stores import SessionLocked, StoreError
from callgate.core.tasks import TaskSet
from callgate.runtime import Resumed, Runtime, Stop
from callgate.sessions.session_turns import SessionTurn
from callgate.sessions.shows import Screen

if TYPE_CHECKING:  # heavy, and loaded when a model is at work
    from callgate.features.chat.agent.agent import Agent
    from callgate.sessions.shows import TurnEnd

_log = logging.getLogger("callgate.sessions")
_INTERRUPTED = "interrupted"
"""Reason in the event that ends a turn of a process that died."""

MODES = tuple(Mode)
"""From the narrowest to the widest."""
OpenAgent = Callable[[str | None], "Agent"]
"""Opens the agent of a model, or of the default model. Raises a `ModelError` with advice."""


class LiveSessions:
    def __init__(
        self,
        runtime: Runtime,
        open_session: OpenSession,
        open_agent: OpenAgent,
        ceiling: Mode | None = None,
    ) -> None:
        """`ceiling` limits the mode of every session."""
        self._runtime = runtime
        self._ceiling = ceiling
        self._open_session = open_session
        self._open_agent = open_agent
        self._turns = runtime.sessions.turns
        self._agents: dict[str | None, Agent] = {}
        self._tasks = TaskSet(_log, "the work of a session failed")
        self._taking = asyncio.Lock()
        self._opening = asyncio.Lock()

    def fresh(
        self,
        workspace: str | None = None,
        mode: Mode | None = None,
        client: Client | None = None,
    ) -> Session:
        """Return a new session for one call, which is not served. Raises `ToolError`."""
        session = self._open_session(workspace, session_id())
        if client is not None:
            session.client = client
        if mode is not None:
            session.mode = self._narrowed(mode)
        return session

    async def open(
        self,
        workspace: str | None,
        mode: Mode | None,
        title: str | None = None,
        roots: tuple[Root, ...] = (),
        client: Client | None = None,
    ) -> Session:
        """Create and store a session, and serve it. `roots` are added to the roots of the
        settings.

        Raises `ToolError` or `StoreError`.
        """
        session = self.fresh(workspace, mode, client)
        session.title = title
        session.extra_roots += roots
        await self._runtime.sessions.conversations.keep(session)
        self._turns.serve(session)
        return session

    def let_go(self, session: Session) -> None:
        """Close a session of a single call. A served session stays."""
        if self.find(session.id) is None:
            self._tasks.start(self._runtime.sessions.close(session))

    @property
    def count(self) -> int:
        """Number of served sessions."""
        return self._turns.served_count

    def find(self, id: str) -> Session | None:
        """Return a served session, or None. A session that another process took over is
        released.
        """
        session = self._turns.served(id)
        if session is not None and self._runtime.sessions.conversations.has_lost(id):
            self._tasks.start(self._abandon(id))
            return None
        return session

    async def _abandon(self, id: str) -> None:
        _log.warning("Another process has taken over session %s", id)
        session = self._turns.served(id)
        if session is None:
            return
        try:
            await self._turns.withdraw(id)
        except StoreError:  # this process no longer writes the session
            pass
        await self._runtime.sessions.close(session)

    async def take(
        self, id: str, workspace: str | None = None, roots: tuple[Root, ...] = ()
    ) -> Session:
        """Return a session to work in: a served one, or one whose process has ended.

        A session of an ended process is taken over. It moves to `workspace`, if given, and gets
        `roots` in addition to the roots of the settings. Raises `SessionNotFound`, or
        `SessionLocked` if another process owns it.
        """
        async with self._taking:
            live = self.find(id)
            if live is not None:
                return live
            stored = await (await self._runtime.sessions.store()).get_session(id)
            # The settings may no longer permit it: raises `ToolError`.
            fit = self._open_session(workspace or stored.workspace, id)
            resumed = await self._runtime.sessions.resume(id)
            session = resumed.session
            session.extra_roots += roots
            where = (fit.workspace, session.extra_roots)
            if workspace is not None and where != (stored.workspace, stored.extra_roots):
                await self._runtime.sessions.conversations.move(session, fit.workspace)
            await self._narrow(session)
            if session.turn_id is not None:
                await self._give_up(resumed)
            self._turns.serve(session)
            return session

    async def _narrow(self, session: Session) -> None:
        """Limit the mode of a stored session to the ceiling of this instance."""
        mode = self._narrowed(session.mode)
        if mode is not session.mode:
            await self._runtime.sessions.conversations.set_mode(session, mode)

    def _narrowed(self, mode: Mode) -> Mode:
        return mode if self._ceiling is None else min(mode, self._ceiling, key=MODES.index)

    async def _give_up(self, resumed: Resumed) -> None:
        """End the turn of an ended process, with its open questions."""
        await asyncio.sleep(0)  # starts its calls, so that they can be cancelled
        await self._runtime.sessions.cancel(resumed.session.id)
        await asyncio.gather(*resumed.calls.values(), return_exceptions=True)
        await self._turns.end(resumed.session, cancelled=_INTERRUPTED)

    async def begin_turn(self, id: str, prompt: str, model: str | None) -> str:
        """Begin a turn with the user's prompt. Return its id as soon as the prompt is on the disk.

        Raises `TurnInProgress`, a `ModelError`, or an error of `take`.
        """
        await (await self._runtime.sessions.store()).get_session(id)
        agent = await self.agent(model)  # first, because it can fail: then no session is taken over
        session = await self.take(id)
        with self._turns.reserve(session) as turn:
            await turn.begin(Message.text("user", prompt))
            self._tasks.add(turn.start(lambda: agent.work(turn)))
        return turn.id

    async def make_call(
        self,
        turn: SessionTurn,
        use: ToolUseBlock,
        caller: CallerKind,
        screen: Screen,
        agent: Agent | None = None,
    ) -> TurnEnd | None:
        """Make one call in an open turn, for the user and without a model.

        With an `agent`, the call can use tools that need an agent. None if the turn was cancelled
        before the call began.
        """
        from callgate.features.chat.agent.agent import (  # lazy: heavy, and few turns are such  # noqa: PLC0415
            direct_turn,
        )

        runtime = self._runtime

        def stop() -> bool:
            if runtime.calls.find(use.id) is not None:  # otherwise it ends soon
                self._tasks.start(runtime.calls.cancel(use.id))
            return True

        return await turn.run(
            lambda: direct_turn(runtime.calls.run, turn, use, caller, screen, agent), stop
        )

    def turn_of(self, id: str) -> str | None:
        """Return the id of a served session's turn, or None."""
        session = self.find(id)
        return None if session is None else session.turn_id

    async def knows_turn(self, id: str, turn: str) -> bool:
        """Whether a turn belongs, or belonged, to a session."""
        if self.turn_of(id) == turn:
            return True
        store, after = await self._runtime.sessions.store(), 0
        while page := await store.read_messages(id, after):
            if any(each.turn_id == turn for each in page):
                return True
            after += len(page)
        return False

    def cancel_turn(self, id: str, turn: str | None = None) -> bool:
        """Cancel the turn of a session, or only the turn with this id. False if it is
        not running.
        """
        running = None if self.find(id) is None else self._turns.running(id)
        return running is not None and turn in (None, running.id) and running.cancel()

    async def close(self, id: str) -> None:
        """Stop a session's turn and calls, and release it.

        A session without an owner is already closed. A session of an ended process is taken over
        first. Raises `SessionNotFound`, or `SessionLocked` if another process owns it.
        """
        session = await self._turns.withdraw(id)
        if session is None:
            store = await self._runtime.sessions.store()
            owner = (await store.get_session(id)).owner
            if owner is None:
                return
            if await store.alive(owner):
                raise SessionLocked(id, owner)
            await self.take(id)  # ends the open turn and calls of the ended process
            session = await self._turns.withdraw(id)
            if session is None:  # closed by another client
                return
        for agent in self._agents.values():
            agent.forget(id)
        await self._runtime.sessions.close(session, Stop.CANCEL)

    async def stop(self, limit_s: float) -> None:
        """Wait for the turns while the instance stops, and cancel them after the limit.

        The calls are already stopped. A question of a turn stays open for the process that takes
        over the session.
        """
        await self._tasks.wait(limit_s)
        self._turns.cancel_served()
        await self._tasks.wait(limit_s)

    async def agent(self, model: str | None) -> Agent:
        """Return the agent of a model. Raises `ModelError`."""
        async with self._opening:
            if model not in self._agents:  # its key may come from a slow program
                self._agents[model] = await asyncio.to_thread(self._open_agent, model)
            return self._agents[model]

    def forget_agents(self) -> None:
        """Make each agent again on its next use, with the key of that time. Running turns continue
        with their agent.
        """
        self._agents.clear()
