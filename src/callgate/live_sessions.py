"""The sessions that this process holds for clients who come and go, and the turns in them.

    open ---> held here ---begin_turn---> an agent at work, whoever watches
    take ---> held here (a session that no living process owns is taken over)
    close --> its turn and calls are stopped, its answers forgotten; what was kept stays

A client that goes away changes nothing: the session is the instance's until it is closed or the
instance stops. Each model has one agent, made when it is first asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from callgate.agent.shows import Screen, nobody
from callgate.core.calls import CallerKind
from callgate.core.clients import Client
from callgate.core.content import ToolUseBlock
from callgate.core.ids import session_id
from callgate.core.messages import Message
from callgate.core.sessions import Mode, Root, Session
from callgate.core.stores import SessionLocked
from callgate.dispatch.running import Stop
from callgate.runtime import Resumed, Runtime

if TYPE_CHECKING:  # heavy, and loaded when a model is at work
    from callgate.agent.agent import Agent
    from callgate.agent.turns import TurnEnd

T = TypeVar("T")

_log = logging.getLogger("callgate.sessions")
_INTERRUPTED = "interrupted"
"""Why a turn ended that was under way when the session's process went away."""

MODES = (Mode.NONE, Mode.READ, Mode.ASK, Mode.WRITE)
"""From the narrowest to the widest."""
OpenSession = Callable[[str | None, str], Session]
"""A session in a directory, or the usual one, with an id. Raises a `ToolError`."""
OpenAgent = Callable[[str | None], "Agent"]
"""The agent of a model, or of the usual one. Raises a `ModelError` that says what to do."""


class TurnInProgress(Exception):
    """The session is at work; one turn at a time."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"Turn {turn_id} is under way.")
        self.turn_id = turn_id


class _RunningTurn(NamedTuple):
    """A turn under way."""

    turn: str
    cancel: Callable[[], bool]
    """Stop it; False if it has not come to its work yet."""
    task: asyncio.Task[TurnEnd | None]


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
        self._sessions: dict[str, Session] = {}
        self._agents: dict[str | None, Agent] = {}
        self._working: dict[str, _RunningTurn] = {}
        """By session."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._taking = asyncio.Lock()
        self._opening = asyncio.Lock()

    def fresh(
        self,
        workspace: str | None = None,
        mode: Mode | None = None,
        client: Client | None = None,
    ) -> Session:
        """A session for one call, held by nobody. Raises a `ToolError`."""
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
        self._sessions[session.id] = session
        return session

    def let_go(self, session: Session) -> None:
        """Done with a session that was made for one call; one that is held stays."""
        if session.id not in self._sessions:
            self._start_task(self._runtime.close_session(session))

    def find(self, id: str) -> Session | None:
        return self._sessions.get(id)

    async def take(
        self, id: str, workspace: str | None = None, roots: tuple[Root, ...] = ()
    ) -> Session:
        """A session to work in: one of ours, or one whose process is gone. That one works in
        `workspace` from now on, if it is given, with `roots` beside those of the settings.

        `SessionNotFound`, or `SessionLocked` while another has it.
        """
        async with self._taking:
            live = self._sessions.get(id)
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
            self._sessions[id] = session
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
        await self._runtime.conversations.end_turn(resumed.session, cancelled=_INTERRUPTED)

    async def begin_turn(
        self, id: str, prompt: str | Message, model: str | None, screen: Screen = nobody
    ) -> str:
        """Begin a turn with what the user says; its id, once it is on the disk.

        `TurnInProgress`, a `ModelError`, or what `take` raises.
        """
        await (await self._runtime.store()).get_session(id)
        agent = await self.agent(model)  # before a session is taken over in vain
        session = await self.take(id)
        message = Message.text("user", prompt) if isinstance(prompt, str) else prompt
        return await self._begin(
            session, message, lambda: agent.go_on(session, {}, screen), partial(agent.cancel, id)
        )

    async def begin_call(
        self,
        id: str,
        message: Message,
        use: ToolUseBlock,
        caller: CallerKind,
        screen: Screen,
        agent: Agent | None = None,
    ) -> str:
        """Begin a turn in which one call is made, as the user wants it, without a model. With
        an `agent`, what that needs one for is done by it."""
        session = await self.take(id)
        from callgate.agent.direct import direct_turn  # lazy: heavy, and few turns are such  # noqa: PLC0415

        runtime = self._runtime
        begun: list[bool] = []

        async def work() -> TurnEnd | None:
            begun.append(True)
            return await direct_turn(
                runtime.dispatcher, runtime.conversations, session, use, caller, screen, agent
            )

        def cancel() -> bool:
            return self._stop_call(use.id) or bool(begun)

        return await self._begin(session, message, work, cancel)

    def _stop_call(self, call_id: str) -> bool:
        """False if it is not under way: it has not begun yet, or ends by itself."""
        found = self._runtime.find(call_id)
        if found is not None:
            self._start_task(self._runtime.cancel(call_id))
        return found is not None

    async def _begin(
        self,
        session: Session,
        message: Message,
        work: Callable[[], Awaitable[TurnEnd | None]],
        cancel: Callable[[], bool],
    ) -> str:
        if session.turn_id is not None:
            raise TurnInProgress(session.turn_id)
        turn = await self._runtime.conversations.begin_turn(session, message)
        task = self._start_task(self._work(session, turn, work))
        task.add_done_callback(partial(self._never_begun, session, turn))
        self._working[session.id] = _RunningTurn(turn, cancel, task)
        return turn

    async def _work(
        self, session: Session, turn: str, work: Callable[[], Awaitable[TurnEnd | None]]
    ) -> TurnEnd | None:
        try:
            return await work()
        finally:
            self._forget(session, turn)

    async def turn_end(self, id: str, turn: str) -> TurnEnd | None:
        """Wait for the end of a turn that was begun here; None if it never came to its work.

        Cancelled, it leaves the turn as it is."""
        working = self._working.get(id)
        if working is None or working.turn != turn:
            return None
        await asyncio.wait([working.task])
        return None if working.task.cancelled() else working.task.result()

    def _forget(self, session: Session, turn: str) -> None:
        if (working := self._working.get(session.id)) and working.turn == turn:
            del self._working[session.id]

    def _never_begun(self, session: Session, turn: str, task: asyncio.Task[Any]) -> None:
        """A turn that was cancelled before its agent could end it."""
        if task.cancelled() and session.turn_id == turn:
            self._forget(session, turn)
            end = self._runtime.conversations.end_turn
            self._start_task(end(session, cancelled="user_cancel"))

    def turn_of(self, id: str) -> str | None:
        """The turn under way in a session of ours."""
        session = self._sessions.get(id)
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
        working = self._working.get(id)
        if working is None or turn not in (None, working.turn):
            return False
        return working.cancel() or working.task.cancel()

    async def close(self, id: str) -> None:
        """Stop its turn and calls and let go of it. One that nobody has is closed already.

        `SessionNotFound`, or `SessionLocked` while another has it."""
        session = self._sessions.pop(id, None)
        if session is None:
            store = await self._runtime.store()
            owner = (await store.get_session(id)).owner
            if owner is not None:
                raise SessionLocked(id, owner)
            return
        working = self._working.get(id)
        if working is not None:
            self.cancel_turn(id)
            await asyncio.wait([working.task])
            await self._runtime.conversations.end_turn(session, cancelled="user_cancel")
        for agent in self._agents.values():
            agent.forget(id)
        await self._runtime.close_session(session, Stop.CANCEL)

    async def stop(self, limit_s: float) -> None:
        """The instance stops: turns that do not end by themselves are cancelled.

        The calls have been stopped before; a question of a turn stays open for whoever takes
        the session over.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        for id in list(self._working):
            self.cancel_turn(id)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

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

    def _start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("the work of a session failed", exc_info=task.exception())
