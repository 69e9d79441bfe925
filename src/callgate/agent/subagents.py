"""Agents that work for another one, each in a session of its own.

    spawn_agent -> Subagents.run -> a session with a parent -> Agent.turn -> its report

A sub-agent is the agent that asked for it, once more: the same model, limits and tools, but for
those that are hidden from workers, so that it cannot start another. Its mode is never wider than
the mode of the session it works for has become. Nobody watches what it says: its steps are the
progress of the call, and its last words are the call's result. Each of its own calls is judged
as any other; whoever answers for the parent is asked, and whoever watches the parent is shown it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from callgate.agent.shows import (
    SPAWN_AGENT,
    Asked,
    Delegated,
    Finished,
    Screen,
    Show,
    Started,
    nobody,
)
from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.sessions import Mode, Session
from callgate.core.stores import StoreError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.core.usage import Usage
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.raw_open import watched
from callgate.redaction.summaries import in_words
from callgate.sessions.live import SessionTurns
from callgate.sessions.session_turn import SHUTDOWN

if TYPE_CHECKING:  # heavy
    from callgate.agent.turns import TurnEnd

AT_ONCE = 4
"""Sub-agents of one session that work at a time."""
_LONGEST_STEP = 160
_MODES = tuple(Mode)
"""From the narrowest to the widest."""

Tell = Callable[[str], None]


class Agent(Protocol):
    """The part of `agent.Agent` by which one works for another."""

    async def turn(self, session: Session, prompt: str, screen: Screen, /) -> TurnEnd: ...

    def cancel(self, session_id: str, /) -> bool: ...

    def forget(self, session_id: str, /) -> None: ...


class WorkerSession(Session, kw_only=True):
    """A session whose mode is its own or, where that is narrower now, the one of `over`."""

    over: Session

    # Every stage reads `mode` at its own moment, so it is found out when it is read.
    @property  # type: ignore[misc]
    def mode(self) -> Mode:
        chosen: Mode = _chosen_mode.__get__(self)
        return min(chosen, self.over.mode, key=_MODES.index)

    @mode.setter
    def mode(self, mode: Mode) -> None:
        _chosen_mode.__set__(self, mode)


_chosen_mode: Any = Session.__dict__["mode"]


class _AtWork:
    """An agent in its session."""

    def __init__(self, session: Session, agent: Agent, screen: Screen) -> None:
        self.session = session
        self.agent = agent
        self.screen = screen
        self.delegated = Usage()
        """What its sub-agents have used in this turn."""


class Subagents:
    """Which agent works in the turn of a session, and those that work for it. One per runtime.
    `SessionTurns` sees to it that there is one turn, and so one agent, at a time."""

    def __init__(self, dispatcher: ToolDispatcher, turns: SessionTurns) -> None:
        self._dispatcher = dispatcher
        self._turns = turns
        self._conversations = turns.conversations
        self._at_work: dict[str, _AtWork] = {}

    @contextmanager
    def at_work(self, session: Session, agent: Agent, screen: Screen) -> Iterator[None]:
        """While this lasts, the agent takes a turn in the session, on this screen."""
        self._at_work[session.id] = _AtWork(session, agent, screen)
        try:
            yield
        finally:
            del self._at_work[session.id]

    def why_not(self, session: Session) -> str | None:
        """Why a session is not offered what only an agent can use; None where it is."""
        return None if session.id in self._at_work else "no agent is at work in this session"

    def of(self, session_id: str) -> tuple[Session, Agent]:
        """The session, and the agent at work in it. `ToolExecutionError` if there is none."""
        found = self._at_work.get(session_id)
        if found is None:
            raise ToolExecutionError("No agent is at work in this session.", reason="no_agent")
        return found.session, found.agent

    def delegated(self, session_id: str) -> Usage:
        """What the sub-agents of a session have used in the turn that is under way there."""
        found = self._at_work.get(session_id)
        return Usage() if found is None else found.delegated

    async def run(
        self, agent: Agent, worker: WorkerSession, task: str, tell: Tell = lambda step: None
    ) -> TurnEnd:
        """Have a task done in a worker's session, step by step told of; how it ended.

        Cancelling this, or the worker's turn, stops it, and waits until it has stopped.
        `StoreError` if nothing can be kept of it.
        """
        await self._conversations.flush()  # its parent may be on its way to the disk
        await self._conversations.keep(worker)
        over = self._at_work.get(worker.over.id)
        screen = nobody if over is None else over.screen
        try:
            end = await agent.turn(worker, task, _Steps(worker.id, tell, screen))
        finally:
            agent.forget(worker.id)
            # What the runtime left open when it went away: nobody goes on with a worker's turn.
            await self._turns.end(worker, cancelled=SHUTDOWN)
            await self._dispatcher.close_session(worker)
        if (found := self._at_work.get(worker.over.id)) is not None:
            found.delegated += end.usage
        return end


def worker_of(
    parent: Session, *, title: str | None = None, mode: Mode | None = None
) -> WorkerSession:
    """A session that works for another, with a narrower mode where one is asked for."""
    return WorkerSession(
        over=parent,
        parent=parent.id,
        is_worker=True,
        workspace=parent.workspace,
        extra_roots=parent.extra_roots,
        tags=parent.tags,
        mode=parent.mode if mode is None else mode,
        title=title,
        client=parent.client,
    )


class _Steps:
    """A screen that tells what a sub-agent does, and nothing of what it says."""

    def __init__(self, session: str, tell: Tell, screen: Screen) -> None:
        self._session = session
        self._tell = tell
        self._screen = screen
        self._step = 0

    def __call__(self, show: Show) -> None:
        match show:
            case Asked():
                self._step += 1
                self._tell(f"step {self._step}: asks the model")
            case Started(use=use):
                line = f"step {self._step}: {use.name} {in_words(use.input)}".rstrip()
                more = "…" if len(line) > _LONGEST_STEP else ""
                self._tell(line[:_LONGEST_STEP] + more)
        if isinstance(show, Started | Finished):
            self._screen(Delegated(self._session, show))


class SpawnAgent:
    """`spawn_agent`: have another agent do a task, and get its report."""

    # It has no effect of its own: every call that the sub-agent makes is judged by itself.
    definition = ToolDefinition(
        name=SPAWN_AGENT,
        description=(
            "Have a sub-agent do a task that can be done on its own, and get its report. It has "
            "your tools and the same workspace, but knows nothing of this conversation: say all "
            "that it needs to know. Several work side by side."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "task": {
                    "type": "string",
                    "minLength": 1,
                    "description": "What to do, and what to report.",
                },
                "title": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 200,
                    "description": "The task in a few words, for the user.",
                },
                "mode": {
                    "type": "string",
                    "enum": [str(mode) for mode in Mode],
                    "description": "What it may do at most; never more than you may.",
                },
            },
            "required": ["task"],
            "additionalProperties": False,
        },
        side_effects=SideEffects.NONE,
        requires_workspace=False,
        kind="think",
        source="builtin",
        hidden_from_workers=True,
        max_concurrent=AT_ONCE,
        timeout_s=86_400.0,  # the limits of a turn bound it, and those of the settings
    )

    def __init__(self, subagents: Subagents) -> None:
        self._subagents = subagents
        self._cancel: Callable[[], bool] = lambda: False

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        parent, agent = self._subagents.of(context.session_id)
        mode = Mode(input["mode"]) if "mode" in input else None
        worker = worker_of(parent, title=input.get("title"), mode=mode)
        self._cancel = lambda: agent.cancel(worker.id)
        watched.set(None)  # what a sub-agent opens is no doing of this tool
        try:
            end = await self._subagents.run(agent, worker, input["task"], context.progress)
        except StoreError as error:
            raise ToolExecutionError(f"The sub-agent cannot work: {error}") from None
        return report(worker, end)

    async def cancel(self) -> bool:
        return self._cancel()


def report(worker: Session, end: TurnEnd) -> ToolOutput:
    """The end of a sub-agent's turn as the result of the call that asked for it."""
    texts = [end.text] if end.text.strip() else []
    if end.stop != "end_turn":
        why = f" {end.notice}" if end.notice else ""
        texts.append(f"[The sub-agent did not finish: {end.stop}.{why}]")
    elif not texts:
        texts.append("[The sub-agent finished without a report.]")
    return ToolOutput(
        content=[TextBlock("\n\n".join(texts))],
        success=end.stop == "end_turn",
        metadata={
            "session": worker.id,
            "stop": end.stop,
            "cycles": end.cycles,
            "calls": end.calls,
            "usage": msgspec.to_builtins(end.usage),
            "cost_usd": end.cost_usd,
        },
    )
