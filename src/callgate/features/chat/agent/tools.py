"""Tools of an agent for its own work: its plan, skills, and sub-agents.

A call of `update_plan` always contains the complete list, which replaces all earlier ones.
`use_skill` reads a skill.

Sub-agents are agents that work for another agent, each in a separate session:

    spawn_agent -> Subagents.run -> a session with a parent -> Agent.turn -> its report

A sub-agent has the same model, limits and tools as its parent agent, except tools that are hidden
from workers; so it cannot start another sub-agent. Its mode is never wider than the present mode of
its parent session. Its text is not shown: its steps are the progress of the call, and its last text
is the result. Each of its calls is checked by the policy. The approver of the parent session
approves them, and observers of the parent session see them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.events import PLANNED
from callgate.core.models import Usage
from callgate.core.sessions import Mode, Session
from callgate.core.stores import StoreError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.foreign_code import watched
from callgate.redaction.data import in_words
from callgate.runtime import Runtime
from callgate.sessions.session_turns import SHUTDOWN
from callgate.sessions.shows import (
    SPAWN_AGENT,
    Asked,
    Delegated,
    Finished,
    Screen,
    Show,
    Started,
    nobody,
)
from callgate.sources.skills import Skills, SkillUnreadable, UnknownSkill

if TYPE_CHECKING:
    from callgate.instance.wiring.runtime import Wired
    from callgate.sessions.shows import TurnEnd

UPDATE_PLAN = "update_plan"
MOST_ENTRIES = 100
LONGEST_ENTRY = 500
_PRIORITIES = ("high", "medium", "low")
_STATUSES = ("pending", "in_progress", "completed")


class UpdatePlan:
    definition = ToolDefinition(
        name=UPDATE_PLAN,
        description=(
            "Show the user your plan and progress for work with several steps. Always send the"
            " complete list, with one entry in progress, and update completed entries."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "entries": {
                    "type": "array",
                    "maxItems": MOST_ENTRIES,
                    "items": {
                        "type": "object",
                        "properties": {
                            "content": {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": LONGEST_ENTRY,
                            },
                            "priority": {
                                "type": "string",
                                "enum": list(_PRIORITIES),
                                "default": "medium",
                            },
                            "status": {"type": "string", "enum": list(_STATUSES)},
                        },
                        "required": ["content", "status"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["entries"],
            "additionalProperties": False,
        },
        side_effects=SideEffects.NONE,
        requires_workspace=False,
        kind="think",
        source="builtin",
        hidden_from_workers=True,  # a sub-agent has no observers
    )

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        entries = [
            {
                "content": entry["content"],
                "priority": entry.get("priority", "medium"),
                "status": entry["status"],
            }
            for entry in input["entries"]
        ]
        context.publish(PLANNED, {"entries": entries})
        count = Counter(entry["status"] for entry in entries)
        counts = ", ".join(f"{count[each]} {each}" for each in _STATUSES)
        return ToolOutput(content=[TextBlock(f"The plan is shown: {counts}.")])

    async def cancel(self) -> bool:
        return False


class UseSkill:
    definition = ToolDefinition(
        name="use_skill",
        description=(
            "Read a skill: instructions of the user for a kind of work, which you must follow. Your"
            " instructions list the available skills. With `file`, read a text file from the"
            " skill's directory, if the instructions name one."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 64},
                "file": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Relative to the skill's directory.",
                },
            },
            "required": ["name"],
        },
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        path_params=(),  # `file` is relative to the skill, not to the workspace
        kind="read",
        source="builtin",
    )

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        name, file = input["name"], input.get("file")
        try:
            if file is None:
                text = self._skills.load(name, context.workspace_path, context.session_id)
            else:
                text = self._skills.file(name, file, context.workspace_path)
        except UnknownSkill as error:
            raise ToolExecutionError(str(error), reason="unknown_skill") from None
        except SkillUnreadable as error:
            raise ToolExecutionError(str(error), reason="skill_unreadable") from None
        return ToolOutput(content=[TextBlock(text)])

    async def cancel(self) -> bool:
        return False


AT_ONCE = 4
"""Maximum number of concurrent sub-agents of one session."""
_LONGEST_STEP = 160
_NO_AGENT = "it is available only to an agent in a turn; run: callgate chat"
_MODES = tuple(Mode)
"""From the narrowest to the widest."""

Tell = Callable[[str], None]


class ParentAgent(Protocol):
    """The part of `agent.Agent` that sub-agents use."""

    async def turn(self, session: Session, prompt: str, screen: Screen, /) -> TurnEnd: ...

    def cancel(self, session_id: str, /) -> bool: ...

    def forget(self, session_id: str, /) -> None: ...


class WorkerSession(Session, kw_only=True):
    """A session with the narrower of two modes: the chosen one and the mode of `over`."""

    over: Session

    # Every stage reads `mode` when it needs it, so it is computed on access.
    @property  # type: ignore[misc]
    def mode(self) -> Mode:
        chosen: Mode = _chosen_mode.__get__(self)
        return min(chosen, self.over.mode, key=_MODES.index)

    @mode.setter
    def mode(self, mode: Mode) -> None:
        _chosen_mode.__set__(self, mode)


_chosen_mode: Any = Session.__dict__["mode"]


class _AtWork:
    """An agent that works in a session."""

    def __init__(self, session: Session, agent: ParentAgent, screen: Screen) -> None:
        self.session = session
        self.agent = agent
        self.screen = screen
        self.delegated = Usage()
        """Tokens that its sub-agents have used in this turn."""


class Subagents:
    """The agents that are in a turn, by session, and their sub-agents. One per runtime.
    `SessionTurns` limits a session to one turn, and so to one agent, at a time.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._sessions = runtime.sessions
        self._turns = runtime.sessions.turns
        self._conversations = runtime.sessions.conversations
        self._at_work: dict[str, _AtWork] = {}

    @contextmanager
    def at_work(self, session: Session, agent: ParentAgent, screen: Screen) -> Iterator[None]:
        """Register the agent and the screen of a session's turn within the context."""
        self._at_work[session.id] = _AtWork(session, agent, screen)
        try:
            yield
        finally:
            del self._at_work[session.id]

    def why_not(self, session: Session) -> str | None:
        """Return why a session lacks the tools that need an agent; None if it has them."""
        return None if session.id in self._at_work else _NO_AGENT

    def of(self, session_id: str) -> tuple[Session, ParentAgent]:
        """Return the session and its agent. Raises `ToolExecutionError` if there is none."""
        found = self._at_work.get(session_id)
        if found is None:
            raise ToolExecutionError("No agent is at work in this session.", reason="no_agent")
        return found.session, found.agent

    def delegated(self, session_id: str) -> Usage:
        """Return the usage of a session's sub-agents in its present turn."""
        found = self._at_work.get(session_id)
        return Usage() if found is None else found.delegated

    async def run(
        self, agent: ParentAgent, worker: WorkerSession, task: str, tell: Tell = lambda step: None
    ) -> TurnEnd:
        """Run a task in a sub-agent's session. Report each step to `tell`.

        A cancellation of this task, or of the sub-agent's turn, stops the work and returns after
        it has stopped. Raises `StoreError` if the session cannot be stored.
        """
        await self._conversations.flush()  # the parent may not be written yet
        await self._conversations.keep(worker)
        over = self._at_work.get(worker.over.id)
        screen = nobody if over is None else over.screen
        try:
            end = await agent.turn(worker, task, _Steps(worker.id, tell, screen))
        finally:
            agent.forget(worker.id)
            # A shutdown leaves turns open. A sub-agent's turn is never resumed, so it ends here.
            await self._turns.end(worker, cancelled=SHUTDOWN)
            await self._sessions.close(worker)
        if (found := self._at_work.get(worker.over.id)) is not None:
            found.delegated += end.usage
        return end


def subagents(wired: Wired) -> Subagents:
    """Return the agents and sub-agents of a runtime."""
    return wired.part(_make)


def _make(wired: Wired) -> Subagents:
    return Subagents(wired.runtime)


def worker_of(
    parent: Session, *, title: str | None = None, mode: Mode | None = None
) -> WorkerSession:
    """Return a new session for a sub-agent, with the parent's mode or the given one."""
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
    """A screen that reports the steps of a sub-agent, and none of its text."""

    def __init__(self, session: str, tell: Tell, screen: Screen) -> None:
        self._session = session
        self._tell = tell
        self._screen = screen
        self._step = 0

    def __call__(self, show: Show) -> None:
        match show:
            case Asked():
                self._step += 1
                self._tell(f"step {self._step}: calls the model")
            case Started(use=use):
                line = f"step {self._step}: {use.name} {in_words(use.input)}".rstrip()
                more = "…" if len(line) > _LONGEST_STEP else ""
                self._tell(line[:_LONGEST_STEP] + more)
        if isinstance(show, Started | Finished):
            self._screen(Delegated(self._session, show))


class SpawnAgent:
    """`spawn_agent`: delegates a task to another agent and returns its report."""

    # The tool itself has no effect: every call of the sub-agent is checked separately.
    definition = ToolDefinition(
        name=SPAWN_AGENT,
        description=(
            "Delegate a self-contained task to a sub-agent and get its report. The sub-agent has "
            "your tools and the same workspace, but does not see this conversation: describe "
            "everything that it needs to know. Several sub-agents work concurrently."
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
                    "description": "The sub-agent's mode; your own mode limits it.",
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
        timeout_s=86_400.0,  # the limits of a turn and the settings apply
    )

    def __init__(self, subagents: Subagents) -> None:
        self._subagents = subagents
        self._cancel: Callable[[], bool] = lambda: False

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        parent, agent = self._subagents.of(context.session_id)
        mode = Mode(input["mode"]) if "mode" in input else None
        worker = worker_of(parent, title=input.get("title"), mode=mode)
        self._cancel = lambda: agent.cancel(worker.id)
        watched.set(None)  # a sub-agent's actions are not actions of this tool
        try:
            end = await self._subagents.run(agent, worker, input["task"], context.progress)
        except StoreError as error:
            raise ToolExecutionError(f"The sub-agent cannot start: {error}") from None
        return report(worker, end)

    async def cancel(self) -> bool:
        return self._cancel()


def report(worker: Session, end: TurnEnd) -> ToolOutput:
    """Return the end of a sub-agent's turn as the result of the parent's call."""
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
