"""What a surface may ask of us. Surfaces turn a wire into these calls and decide nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.content import Label
from callgate.core.environment import Offered
from callgate.core.errors import ToolError
from callgate.core.messages import Message
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.core.stored import StoredConfirmation
from callgate.core.stores import Store
from callgate.core.tools import ToolFactory
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.early_answers import EarlyAnswers, early_result
from callgate.dispatch.journal import LEFT_OPEN
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.asking import Elsewhere
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Confirmer, Receipt
from callgate.dispatch.running import RunningCall, Stop
from callgate.dispatch.subjects import Performer, Subject
from callgate.dispatch.tools.registry import Registered
from callgate.events.bus import Bus, Listener, Subscription
from callgate.policy.decide import Decision, Rulebook
from callgate.sessions.conversations import Conversations, user_words_of
from callgate.sessions.live import SessionTurns

if TYPE_CHECKING:
    from callgate.core.settings_state import SettingsState
    from callgate.dispatch.permission.budgets import BudgetForecast

# What its methods take and return is imported from here; the dispatcher's modules are its own.
__all__ = ["Performer", "Registered", "Resumed", "RunningCall", "Runtime", "Stop"]


class Resumed(msgspec.Struct, frozen=True):
    session: Session
    calls: Mapping[str, asyncio.Task[ToolResult]]
    """What a person had been asked about when its process died, by call id: each runs once,
    as soon as it is allowed."""


class Runtime:
    def __init__(
        self,
        dispatcher: ToolDispatcher,
        bus: Bus,
        conversations: Conversations,
        settings_state: Callable[[str], SettingsState],
    ) -> None:
        """`settings_state`: by what the calls in a workspace are decided."""
        self.dispatcher = dispatcher
        self.conversations = conversations
        self.turns = SessionTurns(conversations)
        self.settings_state = settings_state
        self._bus = bus
        self._confirmations = dispatcher.authority.confirmations
        self._early_answers = EarlyAnswers(dispatcher.run, dispatcher.running)
        self.call_promptly = self._early_answers.run
        """`call`, for a caller who does not wait for the end of work that is being stopped."""
        self.fetch_artifacts: Callable[[str], Awaitable[None]] | None = None
        """Brings what the calls of a session put aside on other servers; None: there are none."""

    @property
    def is_traced(self) -> bool:
        """Whether the spans of callers are of interest: telemetry is on."""
        return self.dispatcher.trace is not None

    def register(self, factory: ToolFactory) -> None:
        self.dispatcher.register(factory)

    def tools(self, session: Session) -> list[Registered]:
        """The tools that a session may see."""
        return self.dispatcher.registry.listed(session)

    def all_tools(self, session: Session) -> list[tuple[Registered, str | None]]:
        """Every registered tool, and why the session does not see it."""
        registry = self.dispatcher.registry
        return [(tool, registry.unusable_because(tool, session)) for tool in registry.of(session)]

    def find_tool(self, name: str, session: Session | None = None) -> Registered | None:
        """A tool of everyone, or one that the session was given; visible or not."""
        return self.dispatcher.registry.find(name, session)

    def registered(self) -> tuple[Registered, ...]:
        """The tools of everyone."""
        return tuple(self.dispatcher.registry)

    def listen_tools(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function whenever a tool came, went or changed, in whichever thread that
        happens; returns the function that ends it."""
        return self.dispatcher.registry.listen(listener)

    def policies(self, workspace: str) -> Rulebook:
        """The rules that decide about calls in a workspace."""
        return self.dispatcher.authority.policies(workspace)

    def offer_environment(self, session_id: str, offered: Offered) -> Callable[[], None]:
        """Have the calls of a session use the files and terminals of its client; returns the
        function that ends it."""
        environments = self.dispatcher.environments
        environments.offer(session_id, offered)
        return lambda: environments.withdraw(session_id)

    def call(self, call: ToolCall) -> Coroutine[Any, Any, ToolResult]:
        return self.dispatcher.run(call)

    def call_performed(
        self, call: ToolCall, performer: Performer
    ) -> Coroutine[Any, Any, ToolResult]:
        """`call`, judged and recorded here, and run by somebody else."""
        return self.dispatcher.run(call, performer=performer)

    def begin(self, call: ToolCall) -> ToolResult | Coroutine[Any, Any, ToolResult]:
        """`call_promptly` as far as it needs no wait: its result, or what to await for that."""
        return self._early_answers.begin(call)

    async def call_all(self, calls: Iterable[ToolCall]) -> list[ToolResult]:
        """Side by side, promptly; the results in the order of the calls."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.call_promptly(call)) for call in calls]
        return [task.result() for task in tasks]

    def in_flight(self) -> list[RunningCall]:
        """The calls of this process that have not ended."""
        return list(self.dispatcher.running)

    def find(self, call_id: str) -> RunningCall | None:
        """A call of this process that has not ended."""
        return self.dispatcher.running.find(call_id)

    def refuse(self, call: ToolCall, error: ToolError) -> ToolResult:
        """Answer and record a call whose wire was so wrong that it cannot be run."""
        return self.dispatcher.refuse(call, error)

    async def cancel(self, call_id: str) -> bool:
        return await self.dispatcher.cancel(call_id)

    async def cancel_promptly(self, call_id: str) -> bool:
        """The same, without a wait for work that does not listen."""
        return await self._early_answers.cancel(call_id)

    def give_up(self, call_id: str, error: ToolError) -> ToolResult:
        """What to answer to a caller who can wait for a call no longer, and why."""
        return early_result(self.dispatcher.running, call_id, error)

    async def cancel_session(self, session_id: str) -> None:
        await self.dispatcher.cancel_session_tools(session_id)

    async def resume(self, session_id: str) -> Resumed:
        """Take a session over from a process that is gone, and go on with its open questions.

        `SessionNotFound`, or `SessionLocked` while another living process has it.
        """
        session, snapshot = await self.conversations.resume(session_id)
        self.dispatcher.authority.grants.load(session, snapshot.grants)
        await self._load_facts(session, snapshot.session.labels)
        if self.fetch_artifacts is not None:
            await self.fetch_artifacts(session_id)
        calls = {
            each.call_id: self.dispatcher.running.start_task(self._go_on(session, each))
            for each in snapshot.confirmations
        }
        return Resumed(session, calls)

    def clear_label(self, session: Session, label: Label) -> bool:
        """A person says that what the session read no longer counts; False if it read none such."""
        return self.dispatcher.authority.flows.clear(session, label)

    async def _load_facts(self, session: Session, labels: Mapping[str, str]) -> None:
        """What the guard has to know of a conversation that began in another process."""
        stored = await self.conversations.stored(session)
        messages = (
            (user_words_of(each.body), msgspec.convert(each.body, Message)) for each in stored
        )
        loaded = self.dispatcher.registry.names.everyone  # nothing is started to ask for labels
        tool_labels = {name: tool.output_labels for name, tool in loaded.items()}
        self.dispatcher.authority.flows.load(session, labels, messages, tool_labels)

    async def _go_on(self, session: Session, stored: StoredConfirmation) -> ToolResult:
        call = questions.read_call(stored, session)
        result = await self.dispatcher.run(call, questions.read_question(stored))
        if result.error is None or result.error.reason != LEFT_OPEN:
            message = Message(role="user", content=[result.block(call.shown_id)])
            await self.conversations.say(session, message)
        return result

    async def delete_session(self, session_id: str) -> None:
        """Delete a closed session with its workers, and what their calls put aside.

        `SessionLocked` while a living process has it."""
        from callgate.sessions.deleting import delete_session, family_of  # lazy: rare  # noqa: PLC0415

        store = await self.store()
        family = await family_of(store, session_id)
        await delete_session(store, session_id, family, self.dispatcher.artifacts)

    async def close_session(self, session: Session, why: Stop = Stop.CANCEL) -> None:
        await self.dispatcher.close_session(session, why)

    def explain(self, call: ToolCall, *, by_agent: bool = False) -> tuple[Subject, Decision]:
        """What would be decided about a call, or about one that an agent with a hook runs itself.
        Raises the `ToolError` it would end in."""
        return self.dispatcher.examine(call, by_agent=by_agent)

    async def forecast_budgets(
        self, call: ToolCall, subject: Subject, decision: Decision
    ) -> BudgetForecast:
        """What the budgets would make of a decision, and how much of them is used."""
        from callgate.dispatch.permission.budgets import (  # lazy: few have budgets  # noqa: PLC0415
            BudgetForecast,
            forecast,
        )

        if not decision.budgets:
            return BudgetForecast(decision)
        guard = self.policies(call.session.workspace).user.guard
        return await forecast(call, subject, decision, guard, await self.store())

    def attach(
        self, confirmer: Confirmer | None, session_id: str | None = None
    ) -> AbstractContextManager[None]:
        """Someone is there to answer questions, of one session or of all."""
        return self._confirmations.attach(confirmer, session_id)

    def ask_elsewhere(self, has_person: Elsewhere) -> Callable[[], None]:
        """Where nobody is here to be asked, look whether somebody is at another server; returns
        the function that ends it."""
        self._confirmations.elsewhere = has_person

        def end() -> None:
            self._confirmations.elsewhere = None

        return end

    async def open_confirmations(self, session_id: str | None = None) -> list[Confirmation]:
        """The questions that wait for an answer, of every process."""
        return await self._confirmations.open(session_id)

    async def answer(self, confirmation_id: str, answer: Answer) -> Receipt:
        """The first answer wins. `KeyError` if there is no such question."""
        return await self._confirmations.answer(confirmation_id, answer)

    async def store(self) -> Store:
        """What is kept, to read. Raises the `StoreError` for which there is none."""
        return await self.conversations.store()

    def events(
        self, *, session_id: str | None = None, types: Collection[str] | None = None
    ) -> Subscription:
        return self._bus.subscribe(session_id=session_id, types=types)

    def listen(self, listener: Listener, session_id: str | None = None) -> Callable[[], None]:
        """Call a function at each event of this process, or of one session; returns the function
        that ends it."""
        return self._bus.listen(listener, session_id)

    def is_recordable(self) -> bool:
        """Whether calls with effects can be written down, so that they may run."""
        return self.dispatcher.is_recordable()

    async def drain(self) -> None:
        """Take no more calls beside those of turns under way, and give back the sessions in which
        nothing happens. Another process may resume these at once."""
        running = self.dispatcher.running
        running.draining = True
        idle = self.turns.withdraw_idle({each.call.session.id for each in running})
        await asyncio.gather(*map(self.conversations.release, idle))

    async def give_back(self, session: Session) -> bool:
        """Let another process have a session; False while something is under way in it."""
        if any(each.call.session.id == session.id for each in self.dispatcher.running):
            return False
        if not self.turns.withdraw_if_idle(session.id):
            return False
        await self.conversations.release(session)
        return True

    def unfinished(self) -> int:
        """How many calls and turns would be cut short by an end now. Those that wait for a
        person are not among them: a question outlives the process."""
        running, asked = self.dispatcher.running, self._confirmations.asked()
        calls = [each for each in running if each.call.id not in asked]
        with_calls = {each.call.session.id for each in running}
        turns = [each for each in self.turns.under_way() if each.session.id not in with_calls]
        return len(calls) + len(turns)

    async def close(self) -> None:
        await self.dispatcher.close()
        await self._early_answers.close()
