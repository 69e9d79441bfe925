"""The sessions that this process serves to clients who come and go.

    open ---> served ---begin_turn---> an agent at work, whoever watches
    take ---> served (a session that no living process owns is taken over)
    close --> its turn and calls are stopped, its answers forgotten; what is on the disk stays

A client that goes away changes nothing: the session is the instance's until it is closed or the
instance stops. Which sessions there are, and the turn in each, `SessionTurns` knows. Each model
has one agent, made when it is first asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.agent.shows import Screen
from callgate.core.calls import CallerKind
from callgate.core.clients import Client
from callgate.core.content import ToolUseBlock
from callgate.core.ids import session_id
from callgate.core.messages import Message
from callgate.core.sessions import Mode, Root, Session
from callgate.core.stores import SessionLocked, StoreError
from callgate.core.task_sets import TaskSet
from callgate.runtime import Resumed, Runtime, Stop
from callgate.sessions.session_turn import SessionTurn

if TYPE_CHECKING:  # heavy, and loaded when a model is at work
    from callgate.agent.agent import Agent
    from callgate.agent.turns import TurnEnd

_log = logging.getLogger("callgate.sessions")
_INTERRUPTED = "interrupted"
"""Why a turn ended that was under way when the session's process went away."""

MODES = tuple(Mode)
"""From the narrowest to the widest."""
OpenSession = Callable[[str | None, str], Session]
"""A session in a directory, or the usual one, with an id. Raises a `ToolError`."""
OpenAgent = Callable[[str | None], "Agent"]
"""The agent of a model, or of the usual one. Raises a `ModelError` that says what to do."""


class LiveSessions:
    def __init__(
        self,
        runtime: Runtime,
        open_session: OpenSession,
        open_agent: OpenAgent,
        ceiling: Mode | None = None,
    ) -> None:
        """No session is worked in with a wider mode than `ceiling`."""
        self._runtime = runtime
        self._ceiling = ceiling
        self._open_session = open_session
        self._open_agent = open_agent
        self._turns = runtime.turns
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
        """A session for one call, which is not served. Raises a `ToolError`."""
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
        """A new session, kept from now on; `roots` are beside those of the settings. Raises a
        `ToolError` or a `StoreError`."""
        session = self.fresh(workspace, mode, client)
        session.title = title
        session.extra_roots += roots
        await self._runtime.conversations.keep(session)
        self._turns.serve(session)
        return session

    def let_go(self, session: Session) -> None:
        """Done with a session that was made for one call; one that is served stays."""
        if self.find(session.id) is None:
            self._tasks.start(self._runtime.close_session(session))

    @property
    def count(self) -> int:
        """How many are served."""
        return self._turns.served_count

    def find(self, id: str) -> Session | None:
        """A session of ours. One that another process has taken over is let go of."""
        session = self._turns.served(id)
        if session is not None and self._runtime.conversations.has_lost(id):
            self._tasks.start(self._abandon(id))
            return None
        return session

    async def _abandon(self, id: str) -> None:
        _log.warning("session %s was taken over by another process", id)
        session = self._turns.served(id)
        if session is None:
            return
        try:
            await self._turns.withdraw(id)
        except StoreError:  # nothing of ours is written about it any more
            pass
        await self._runtime.close_session(session)

    async def take(
        self, id: str, workspace: str | None = None, roots: tuple[Root, ...] = ()
    ) -> Session:
        """A session to work in: one of ours, or one whose process is gone. That one works in
        `workspace` from now on, if it is given, with `roots` beside those of the settings.

        `SessionNotFound`, or `SessionLocked` while another has it.
        """
        async with self._taking:
            live = self.find(id)
            if live is not None:
                return live
            stored = await (await self._runtime.store()).get_session(id)
            # It may be served no longer: a `ToolError`.
            fit = self._open_session(workspace or stored.workspace, id)
            resumed = await self._runtime.resume(id)
            session = resumed.session
            session.extra_roots += roots
            where = (fit.workspace, session.extra_roots)
            if workspace is not None and where != (stored.workspace, stored.extra_roots):
                await self._runtime.conversations.move(session, fit.workspace)
            await self._narrow(session)
            if session.turn_id is not None:
                await self._give_up(resumed)
            self._turns.serve(session)
            return session

    async def _narrow(self, session: Session) -> None:
        """One that was kept may be wider than this instance lets any be."""
        mode = self._narrowed(session.mode)
        if mode is not session.mode:
            await self._runtime.conversations.set_mode(session, mode)

    def _narrowed(self, mode: Mode) -> Mode:
        return mode if self._ceiling is None else min(mode, self._ceiling, key=MODES.index)

    async def _give_up(self, resumed: Resumed) -> None:
        """End the turn of a process that is gone, with the questions that it left open."""
        await asyncio.sleep(0)  # its calls begin, so that they can be stopped
        await self._runtime.cancel_session(resumed.session.id)
        await asyncio.gather(*resumed.calls.values(), return_exceptions=True)
        await self._turns.end(resumed.session, cancelled=_INTERRUPTED)

    async def begin_turn(self, id: str, prompt: str, model: str | None) -> str:
        """Begin a turn with what the user says; its id, once it is on the disk.

        `TurnInProgress`, a `ModelError`, or what `take` raises.
        """
        await (await self._runtime.store()).get_session(id)
        agent = await self.agent(model)  # before a session is taken over in vain
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
        """Make one call in a turn that is open, as the user wants it, without a model. With an
        `agent`, what that needs one for is done by it. None if a cancel was quicker."""
        from callgate.agent.direct import direct_turn  # lazy: heavy, and few turns are such  # noqa: PLC0415

        runtime = self._runtime

        def stop() -> bool:
            if runtime.find(use.id) is not None:  # else it ends by itself
                self._tasks.start(runtime.cancel(use.id))
            return True

        return await turn.run(
            lambda: direct_turn(runtime.call, turn, use, caller, screen, agent), stop
        )

    def turn_of(self, id: str) -> str | None:
        """The turn under way in a session of ours."""
        session = self.find(id)
        return None if session is None else session.turn_id

    async def knows_turn(self, id: str, turn: str) -> bool:
        """Whether a turn is, or ever was, one of a session's."""
        if self.turn_of(id) == turn:
            return True
        store, after = await self._runtime.store(), 0
        while page := await store.read_messages(id, after):
            if any(each.turn_id == turn for each in page):
                return True
            after += len(page)
        return False

    def cancel_turn(self, id: str, turn: str | None = None) -> bool:
        """Stop the turn of a session, or just that one; False if it is not under way."""
        running = None if self.find(id) is None else self._turns.running(id)
        return running is not None and turn in (None, running.id) and running.cancel()

    async def close(self, id: str) -> None:
        """Stop its turn and calls and let go of it. One that nobody has is closed already, one
        whose process is gone is taken over first.

        `SessionNotFound`, or `SessionLocked` while another has it."""
        session = await self._turns.withdraw(id)
        if session is None:
            store = await self._runtime.store()
            owner = (await store.get_session(id)).owner
            if owner is None:
                return
            if await store.alive(owner):
                raise SessionLocked(id, owner)
            await self.take(id)  # what a process that is gone has left in it ends
            session = await self._turns.withdraw(id)
            if session is None:  # another was quicker to close it
                return
        for agent in self._agents.values():
            agent.forget(id)
        await self._runtime.close_session(session, Stop.CANCEL)

    async def stop(self, limit_s: float) -> None:
        """The instance stops: turns that do not end by themselves are cancelled.

        The calls have been stopped before; a question of a turn stays open for whoever takes
        the session over.
        """
        await self._tasks.wait(limit_s)
        self._turns.cancel_served()
        await self._tasks.wait(limit_s)

    async def agent(self, model: str | None) -> Agent:
        """The agent of a model. Raises a `ModelError`."""
        async with self._opening:
            if model not in self._agents:  # its key may come from a program that takes its time
                self._agents[model] = await asyncio.to_thread(self._open_agent, model)
            return self._agents[model]

    def forget_agents(self) -> None:
        """Make each anew when it is next asked for, with the key that there is then. Turns under
        way keep theirs."""
        self._agents.clear()
