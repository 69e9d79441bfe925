"""The calls of one session of an agent behind the proxy, and the questions about them.

A question is shown on a card in the editor: the agent's own, if the agent has one for the call
and no other question is open on it, else one of ours, which ends with the call. Title, kind and
content of the question are ours; the agent cannot change its card until the answer has come.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, Runner, ToolCall
from callgate.core.content import ToolUseBlock
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.core.task_sets import TaskSet, start_task
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.protocol.acp.updates import SessionUpdate, Update
from callgate.protocol.acp.values import SESSION_UPDATE, ToolFields
from callgate.protocol.ndjson import Unsendable
from callgate.runtime import Registered
from callgate.surfaces.acp import permissions
from callgate.surfaces.acp.cards import Cards
from callgate.surfaces.acp.contents import kind_of, locations_of, title_of
from callgate.surfaces.acp.peer import Peer
from callgate.surfaces.acp_proxy.dependencies import Dependencies
from callgate.surfaces.acp_proxy.judging import AGENT_ACTION
from callgate.surfaces.acp_proxy.updates import CardUpdates

_LONGEST_CALL_S = 3_600.0
_UNKNOWN_ACTION = "The agent wants to do something that callgate cannot identify"

_log = logging.getLogger("callgate.acp")


class SessionCalls:
    def __init__(
        self, session: Session, dependencies: Dependencies, editor: Peer, editor_name: str
    ) -> None:
        self.session = session
        self.id = ""
        """What the agent and the editor call the session, once the agent has said so."""
        self.changed: set[str] = set()
        """Files that calls of this turn changed here."""
        self.tasks = TaskSet(_log, "the work for an agent failed")
        self._runtime = dependencies.runtime
        self._longest_arguments = dependencies.longest_arguments
        self._editor, self._editor_name = editor, editor_name
        self.updates = CardUpdates(self._send_update)
        self._cards = Cards(session, self.find, self._tell)
        self._agent_cards: dict[str, str] = {}
        """By the id of a call: the agent's own card for what it is about."""
        self._given = ExitStack()
        self._given.enter_context(self._runtime.attach(self._confirm, session.id))

    def make(
        self,
        tool: str,
        arguments: dict[str, Any],
        runner: Runner | None = None,
        card: str | None = None,
        external_id: str | None = None,
    ) -> ToolCall:
        """`card`: that of the agent, by its id for what the call is about."""
        call = ToolCall(
            tool=tool,
            arguments=arguments,
            session=self.session,
            caller=CallerKind.AGENT,
            external_id=external_id or card,
            timeout_s=_LONGEST_CALL_S,
            runner=runner,
        )
        if card:
            self._agent_cards[call.id] = card
        return call

    async def complete(self, call: ToolCall) -> ToolResult:
        """Run a call to its end; where it was asked about, its card ends with it."""
        result = await self._runtime.call(call)
        self.changed.update(result.files_modified or ())
        self._agent_cards.pop(call.id, None)
        self._cards.finished(result.block(call.shown_id), result.value)  # if it has one of ours
        return result

    async def started(
        self, event: asyncio.Event, running: asyncio.Task[ToolResult], call: ToolCall
    ) -> None:
        """Wait until a call has started or ended. Whoever asked for it may give up before."""
        starting = start_task(event.wait())
        try:
            await asyncio.wait([starting, running], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._withdraw(call.id)
            raise
        finally:
            starting.cancel()

    def find(self, name: str) -> Registered | None:
        return self._runtime.find_tool(name, self.session)

    def cancel(self) -> None:
        """Withdraw every question and stop every call of the session."""
        if any(each.call.session.id == self.session.id for each in self._runtime.in_flight()):
            self.tasks.start(self._runtime.cancel_session(self.session.id))

    async def close(self) -> None:
        """End what runs, and ask nothing more."""
        self._cards.close("The session was closed.")
        await self._runtime.cancel_session(self.session.id)
        self._given.close()

    def _withdraw(self, call_id: str) -> None:
        async def cancel() -> None:
            await self._runtime.cancel_promptly(call_id)

        self.tasks.start(cancel())

    async def _confirm(self, question: Confirmation) -> Answer:
        """Put a question to the person at the editor."""
        arguments = dict(question.arguments)
        tool = self.find(question.tool)
        is_unknown = question.tool == AGENT_ACTION
        title = _UNKNOWN_ACTION if is_unknown else title_of(question.tool, arguments)
        card = self._agent_cards.get(question.call_id)
        if card is None or self.updates.has_question(card):
            card = question.tool_use_id
            self.updates.add_own(card)
            self._cards.started(ToolUseBlock(id=card, name=question.tool, input=arguments))
        fields = ToolFields(
            tool_call_id=card,
            title=title,
            name=question.tool,
            kind=kind_of(tool),
            status="pending",
            content=permissions.content_of(question, self._longest_arguments),
            locations=locations_of(tool, arguments, self.session.workspace),
            raw_input=arguments,
        )
        with self.updates.question(card):
            return await permissions.ask(
                self._editor,
                self.id,
                msgspec.structs.replace(question, session_id=self.id),
                fields,
                lambda: self._withdraw(question.call_id),
                self._editor_name,
            )

    def _send_update(self, params: dict[str, Any]) -> None:
        with suppress(Unsendable):
            self._editor.notify(SESSION_UPDATE, params)

    def _tell(self, update: Update) -> None:
        self._editor.notify(SESSION_UPDATE, SessionUpdate(session_id=self.id, update=update))
