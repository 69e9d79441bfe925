"""The interface of a runtime. Surfaces translate a wire into these calls and decide nothing.

    Runtime.tools        registry: all tools, and the ones that a session sees
    Runtime.calls        run, refuse and cancel calls
    Runtime.sessions     sessions and their turns, events, and the store for reading
    Runtime.permission   decisions, questions to approvers, and the labels of the guard

Surfaces import no module of the dispatcher. This module exports the types of its methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.calls import ToolCall, ToolResult
from callgate.core.content import Label, Message
from callgate.core.errors import ToolError
from callgate.core.local.environment import Offered
from callgate.core.sessions import Session
from callgate.core.stored import StoredConfirmation
from callgate.core.stores import Store
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.early_answers import EarlyAnswers, early_result
from callgate.dispatch.journal import LEFT_OPEN
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.asking import Elsewhere
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Confirmer, Receipt
from callgate.dispatch.permission.grants import Grant
from callgate.dispatch.running import RunningCall, Stop
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tools.registry import Registered
from callgate.events.bus import Bus, Listener, Subscription
from callgate.policy.decisions import Decision
from callgate.policy.rules import Outcome
from callgate.sessions.conversations import Conversations, user_words_of
from callgate.sessions.session_turns import SessionTurns

if TYPE_CHECKING:
    from callgate.core.sessions import SettingsState

__all__ = ["Calls", "Registered", "Resumed", "RunningCall", "Runtime", "Stop"]


class Resumed(msgspec.Struct, frozen=True):
    session: Session
    calls: Mapping[str, asyncio.Task[ToolResult]]
    """The calls whose questions were open when the process died, by call id. Each runs once, as
    soon as it is allowed.
    """


class Calls:
    """Calls of this process: run, refuse, find and cancel them."""

    def __init__(self, dispatcher: ToolDispatcher, early_answers: EarlyAnswers) -> None:
        self._dispatcher = dispatcher
        self._early_answers = early_answers
        self.run_promptly = early_answers.run
        """Like `run`, for a caller that does not wait for the end of work that is being stopped."""

    @property
    def is_traced(self) -> bool:
        """Whether telemetry is on, so that the spans of callers are used."""
        return self._dispatcher.trace is not None

    @property
    def is_closing(self) -> bool:
        """Whether the runtime is shutting down and starts no more calls."""
        return self._dispatcher.running.closing

    def is_recordable(self) -> bool:
        """Whether calls with effects can be recorded, so that they may run."""
        return self._dispatcher.is_recordable()

    def run(self, call: ToolCall) -> Coroutine[Any, Any, ToolResult]:
        return self._dispatcher.run(call)

    def begin(self, call: ToolCall) -> ToolResult | Coroutine[Any, Any, ToolResult]:
        """Start `run_promptly`. Return its result if it needs no wait, otherwise an awaitable."""
        return self._early_answers.begin(call)

    def refuse(self, call: ToolCall, error: ToolError) -> ToolResult:
        """Record and answer a call that cannot run, because its request is malformed."""
        return self._dispatcher.refuse(call, error)

    def in_flight(self) -> list[RunningCall]:
        """Return the calls of this process that have not ended."""
        return list(self._dispatcher.running)

    def find(self, call_id: str) -> RunningCall | None:
        """Return a call of this process that has not ended."""
        return self._dispatcher.running.find(call_id)

    async def cancel(self, call_id: str) -> bool:
        return await self._dispatcher.cancel(call_id)

    async def cancel_promptly(self, call_id: str) -> bool:
        """Like `cancel`, without waiting for work that does not react."""
        return await self._early_answers.cancel(call_id)

    def give_up(self, call_id: str, error: ToolError) -> ToolResult:
        """Return the result for a caller that stops waiting for a call."""
        return early_result(self._dispatcher.running, call_id, error)


class Sessions:
    """Sessions with their turns and events, and the store."""

    def __init__(self, dispatcher: ToolDispatcher, bus: Bus, conversations: Conversations) -> None:
        self.conversations = conversations
        self.turns = SessionTurns(conversations)
        self.fetch_artifacts: Callable[[str], Awaitable[None]] | None = None
        """Fetches artifacts of a session's calls from other servers; None: there are none."""
        self._dispatcher = dispatcher
        self._authority = dispatcher.authority
        self._running = dispatcher.running
        self._bus = bus

    async def store(self) -> Store:
        """Return the store, for reading. Raises a `StoreError` if there is none."""
        return await self.conversations.store()

    def events(
        self, *, session_id: str | None = None, types: Collection[str] | None = None
    ) -> Subscription:
        return self._bus.subscribe(session_id=session_id, types=types)

    def listen(self, listener: Listener, session_id: str | None = None) -> Callable[[], None]:
        """Call a function at each event, of one session or all. Return the unsubscribe function."""
        return self._bus.listen(listener, session_id)

    def offer_environment(self, session_id: str, offered: Offered) -> Callable[[], None]:
        """Let the calls of a session use files and terminals of its client.

        Return a function that ends this.
        """
        environments = self._dispatcher.environments
        environments.offer(session_id, offered)
        return lambda: environments.withdraw(session_id)

    def note_label(self, session: Session, label: Label, cause: str) -> None:
        """Note a label whose content comes with the next prompt of the user."""
        self._authority.flows.note(session, label, cause)

    async def resume(self, session_id: str) -> Resumed:
        """Take over a session from a dead process, and continue with its open questions.

        Raises `SessionNotFound`, or `SessionLocked` while another living process owns it.
        """
        session, snapshot = await self.conversations.resume(session_id)
        self._authority.grants.load(session, snapshot.grants)
        await self._load_facts(session, snapshot.session.labels)
        if self.fetch_artifacts is not None:
            await self.fetch_artifacts(session_id)
        calls = {
            each.call_id: self._running.start_task(self._go_on(session, each))
            for each in snapshot.confirmations
        }
        return Resumed(session, calls)

    async def _load_facts(self, session: Session, labels: Mapping[str, str]) -> None:
        """Load the guard's facts about a conversation that began in another process."""
        stored = await self.conversations.stored(session)
        messages = (
            (user_words_of(each.body), msgspec.convert(each.body, Message)) for each in stored
        )
        # Only loaded tools: reading labels must not start a source.
        loaded = self._dispatcher.registry.names.everyone
        tool_labels = {name: tool.output_labels for name, tool in loaded.items()}
        self._authority.flows.load(session, labels, messages, tool_labels)

    async def _go_on(self, session: Session, stored: StoredConfirmation) -> ToolResult:
        call = questions.read_call(stored, session)
        result = await self._dispatcher.run(call, questions.read_question(stored))
        if result.error is None or result.error.reason != LEFT_OPEN:
            message = Message(role="user", content=[result.block(call.shown_id)])
            await self.conversations.say(session, message)
        return result

    async def cancel(self, session_id: str) -> None:
        """Stop every call of a session, and wait until each has ended."""
        await self._dispatcher.cancel_session_tools(session_id)

    async def close(self, session: Session, why: Stop = Stop.CANCEL) -> None:
        await self._dispatcher.close_session(session, why)

    async def delete(self, session_id: str) -> None:
        """Delete a closed session with its workers and the artifacts of their calls.

        Raises `SessionLocked` while a living process owns it.
        """
        from callgate.sessions.artifacts import delete_session, family_of  # lazy: rare  # noqa: PLC0415

        store = await self.store()
        family = await family_of(store, session_id)
        await delete_session(store, session_id, family, self._dispatcher.artifacts)

    async def drain(self) -> None:
        """Refuse new calls, except for running turns, and release the idle sessions.

        Other processes can resume these immediately.
        """
        self._running.draining = True
        idle = self.turns.withdraw_idle({each.call.session.id for each in self._running})
        await asyncio.gather(*map(self.conversations.release, idle))

    async def give_back(self, session: Session) -> bool:
        """Release a session for other processes; False while it has a running call or turn."""
        if any(each.call.session.id == session.id for each in self._running):
            return False
        if not self.turns.withdraw_if_idle(session.id):
            return False
        await self.conversations.release(session)
        return True

    def unfinished(self) -> int:
        """Return how many calls and turns an end now would interrupt.

        Calls that wait for approval do not count: a question outlives the process.
        """
        pending = self._authority.confirmations.asked()
        calls = [each for each in self._running if each.call.id not in pending]
        with_calls = {each.call.session.id for each in self._running}
        turns = [each for each in self.turns.active() if each.session.id not in with_calls]
        return len(calls) + len(turns)


class Permission:
    """Decisions about calls, questions to approvers, and the labels that the guard checks."""

    def __init__(
        self,
        dispatcher: ToolDispatcher,
        settings_state: Callable[[str], SettingsState],
    ) -> None:
        self.settings_state = settings_state
        """Returns the state of the settings for a workspace."""
        self.rules = dispatcher.authority.policies
        """Returns the rules for calls in a workspace."""
        self._dispatcher = dispatcher
        self._authority = dispatcher.authority
        self._confirmations = dispatcher.authority.confirmations

    # Decisions.

    def explain(self, call: ToolCall) -> tuple[Subject, Decision]:
        """Return the decision about a call without running it, or raise its `ToolError`."""
        return self._dispatcher.examine(call)

    async def is_contained(self, call: ToolCall, *, reads_only: bool) -> bool:
        """Whether a command of a third-party agent runs in our sandbox and reaches no host without
        approval. `reads_only`: the command also only reads, and needs no approval itself."""
        return await self._dispatcher.is_contained(call, reads_only=reads_only)

    def allow_once(self, call: ToolCall) -> None:
        """Allow the next call with exactly these arguments without approval.

        Has no effect for a call that needs none, or that is refused.
        """
        try:
            subject, decision = self.explain(call)
        except ToolError:
            return
        if decision.outcome is Outcome.ASK:  # otherwise no call would use the grant
            grant = Grant(tool=call.tool, arguments_sha256=subject.checked.sha256, uses=1)
            self._authority.grants.add(call.session, grant)

    # Questions.

    def attach(
        self, confirmer: Confirmer | None, session_id: str | None = None
    ) -> AbstractContextManager[None]:
        """Register an approver for the questions of one session or of all."""
        return self._confirmations.attach(confirmer, session_id)

    def ask_elsewhere(self, has_person: Elsewhere) -> Callable[[], None]:
        """Set the search for approvers at other servers. Return a function to unset it."""
        self._confirmations.elsewhere = has_person

        def end() -> None:
            self._confirmations.elsewhere = None

        return end

    async def open_confirmations(self, session_id: str | None = None) -> list[Confirmation]:
        """Return the open questions of all processes."""
        return await self._confirmations.open(session_id)

    async def answer(self, confirmation_id: str, answer: Answer) -> Receipt:
        """Answer a question; the first answer wins. Raises `KeyError` for an unknown question."""
        return await self._confirmations.answer(confirmation_id, answer)

    # Labels.

    def labels(self, session: Session) -> Mapping[Label, str]:
        """Return the labels of a session, each with the first call that read such content."""
        return self._authority.flows.labels(session)

    def assume(self, session: Session, words: str, labels: Collection[Label]) -> Callable[[], None]:
        """Decide as if the user had written these words, and the session had read such content.

        Return a function that ends this.
        """
        flows = self._authority.flows
        flows.tell(session, words)
        flows.assume(session, labels)
        return lambda: flows.forget(session.id)

    def clear_label(self, session: Session, label: Label) -> bool:
        """Clear a label of the session, for a person; False if it does not have the label."""
        return self._authority.flows.clear(session, label)


class Runtime:
    def __init__(
        self,
        dispatcher: ToolDispatcher,
        bus: Bus,
        conversations: Conversations,
        settings_state: Callable[[str], SettingsState],
    ) -> None:
        """`settings_state` returns the state of the settings for a workspace."""
        self._dispatcher = dispatcher
        self._early_answers = EarlyAnswers(dispatcher.run, dispatcher.running)
        self.tools = dispatcher.registry
        self.calls = Calls(dispatcher, self._early_answers)
        self.sessions = Sessions(dispatcher, bus, conversations)
        self.permission = Permission(dispatcher, settings_state)
        # Programs use these names through `Gate.runtime`.
        self.conversations = conversations
        self.events = self.sessions.events
        self.open_confirmations = self.permission.open_confirmations
        self.answer = self.permission.answer

    async def close(self) -> None:
        """Refuse new calls, and stop the running ones."""
        await self._dispatcher.close()
        await self._early_answers.close()
