"""Calls of one session of an agent behind the proxy, with their questions and open approvals."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, Handover, ToolCall, ToolResult
from callgate.core.content import ToolUseBlock
from callgate.core.sessions import Session
from callgate.core.tasks import TaskSet, start_task
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.features.agents.proxy.agents import Dependencies
from callgate.features.agents.proxy.messages import AGENT_ACTION, CardUpdates, JudgedTool, absolute
from callgate.features.agents.proxy.runners import AgentWork
from callgate.features.editor import editor
from callgate.features.editor.cards import Cards
from callgate.features.editor.contents import kind_of, locations_of, title_of
from callgate.features.editor.peer import EditorPeer
from callgate.protocol.acp.updates import SESSION_UPDATE, SessionUpdate, ToolFields, Update
from callgate.protocol.strict_json import Unsendable
from callgate.runtime import Registered

_HANDED_OVER = "The agent had it done by callgate."


class _Approved(msgspec.Struct):
    work: AgentWork
    judged: JudgedTool
    told_by: set[str]
    """The reporters of the call: the agent's "hook", its "question", or both, each once."""


class Approvals:
    """Approved calls that the agent runs itself and whose end it has not reported yet."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._open: dict[str, _Approved] = {}

    def begin(
        self, tool_call_id: str, work: AgentWork, judged: JudgedTool, told_by: str = "question"
    ) -> None:
        """Add an approved call."""
        self.end(tool_call_id, success=True)
        self._open[tool_call_id] = _Approved(work, judged, {told_by})

    def end(
        self,
        tool_call_id: str,
        *,
        success: bool,
        how: str | None = None,
        is_done_by_agent: bool = True,
    ) -> None:
        """End an approved call. `is_done_by_agent` False: callgate does the work instead."""
        approved = self._open.pop(tool_call_id, None)
        if approved is not None:
            summary = "The agent did it." if success else "The agent failed to do it."
            approved.work.end(
                success=success, how=how or summary, is_done_by_agent=is_done_by_agent
            )

    def end_all(self, how: str, *, success: bool = False) -> None:
        for id in list(self._open):
            self.end(id, success=success, how=how)

    def find_told(self, id: str | None, judged: JudgedTool, told_by: str) -> str | None:
        """Return the id of an approval from the other reporter (hook or question) of this call.

        The approval then counts for both. The ids and the calls must match, not only the ids.
        """
        for key, approved in self._open.items():
            if told_by not in approved.told_by and _is_same(key, approved.judged, id, judged):
                approved.told_by.add(told_by)
                return key
        return None

    def covers_write(self, path: str, content: str) -> bool:
        """Return whether an approval covers exactly this write.

        The approval is then used up: its call ends and frees the slot that the write may need.
        """
        where = absolute(path, self._workspace)
        for id, approved in self._open.items():
            arguments = approved.judged.arguments
            if arguments.get("path") == where and approved.work.becomes == content:
                self.end(id, success=True, how=_HANDED_OVER, is_done_by_agent=False)
                return True
        self._hand_over("path", where)
        return False

    def covers_command(self, arguments: dict[str, Any]) -> bool:
        for id, approved in self._open.items():
            if approved.judged == ("shell", arguments):
                self.end(id, success=True, how=_HANDED_OVER, is_done_by_agent=False)
                return True
        return False

    def _hand_over(self, key: str, value: str) -> None:
        """End the approvals for a file that the agent is about to change differently."""
        for id, approved in list(self._open.items()):
            if approved.judged.arguments.get(key) == value:
                self.end(id, success=False, how="The agent requested a different change instead.")


_NOTE = re.compile(
    r"(?: \[(?:in|current working directory) [^\[\]\n]*\])?(?: \([^()\n]*\))?",
)
"""The directory and description that Gemini CLI and Qwen Code append to a command. Any other text
could be a second command."""


def _is_same(key: str, known: JudgedTool, id: str | None, judged: JudgedTool) -> bool:
    """Return whether two reports are about the same call.

    One of them may be unclear (`agent_action`). It must then have the same id, or contain the
    complete command of the other.
    """
    if known == judged:
        return True
    if AGENT_ACTION not in (known.tool, judged.tool):
        return ids_match(key, id) and _is_same_edit(known, judged)
    if ids_match(key, id):
        return True
    unclear, clear = (known, judged) if known.tool == AGENT_ACTION else (judged, known)
    command = clear.arguments.get("command")
    title = unclear.arguments.get("title")
    if not isinstance(command, str) or not isinstance(title, str):
        return False
    return title.startswith(command) and _NOTE.fullmatch(title, len(command)) is not None


def _is_same_edit(one: JudgedTool, other: JudgedTool) -> bool:
    """Return whether one report has a file's complete new text, and the other its change."""
    path = one.arguments.get("path")
    tools = {one.tool, other.tool}
    return tools == {"write_file", "patch_file"} and path == other.arguments.get("path")


def ids_match(one: str, other: str | None) -> bool:
    """Return whether two ids mean the same call: some agents prefix it with the turn."""
    if not other:
        return False
    return one == other or one.endswith(f":{other}") or other.endswith(f":{one}")


_LONGEST_CALL_S = 3_600.0
_UNKNOWN_ACTION = "The agent wants to do something that callgate cannot identify"

_log = logging.getLogger("callgate.acp")


class SessionCalls:
    def __init__(
        self, session: Session, dependencies: Dependencies, editor: EditorPeer, editor_name: str
    ) -> None:
        self.session = session
        self.id = ""
        """The agent's id of the session, which the editor uses as well."""
        self.changed: set[str] = set()
        """Files that callgate's calls of this turn changed."""
        self.tasks = TaskSet(_log, "the work for an agent failed")
        self._runtime = dependencies.runtime
        self._longest_arguments = dependencies.longest_arguments
        self._editor, self._editor_name = editor, editor_name
        self.updates = CardUpdates(self._send_update)
        self._cards = Cards(session, self.find, self._tell)
        self._agent_cards: dict[str, str] = {}
        """Call id -> the agent's own card (ACP tool call) for it."""
        self._given = ExitStack()
        self._given.enter_context(self._runtime.permission.attach(self._confirm, session.id))

    def make(
        self,
        tool: str,
        arguments: dict[str, Any],
        handover: Handover | None = None,
        card: str | None = None,
        external_id: str | None = None,
    ) -> ToolCall:
        """Return a call. `card` is the agent's id of its ACP tool call."""
        call = ToolCall(
            tool=tool,
            arguments=arguments,
            session=self.session,
            caller=CallerKind.AGENT,
            external_id=external_id or card,
            timeout_s=_LONGEST_CALL_S,
            handover=handover,
        )
        if card:
            self._agent_cards[call.id] = card
        return call

    async def complete(self, call: ToolCall) -> ToolResult:
        """Run a call to its end, and finish the card of its question."""
        result = await self._runtime.calls.run(call)
        self.changed.update(result.files_modified or ())
        self._agent_cards.pop(call.id, None)
        self._cards.finished(result.block(call.shown_id), result.value)  # ignored without a card
        return result

    async def started(
        self, event: asyncio.Event, running: asyncio.Task[ToolResult], call: ToolCall
    ) -> None:
        """Wait until a call has started or ended. Cancelling this withdraws the call."""
        starting = start_task(event.wait())
        try:
            await asyncio.wait([starting, running], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._withdraw(call.id)
            raise
        finally:
            starting.cancel()

    def find(self, name: str) -> Registered | None:
        return self._runtime.tools.find(name, self.session)

    def cancel(self) -> None:
        """Withdraw every question and stop every call of the session."""
        if any(each.call.session.id == self.session.id for each in self._runtime.calls.in_flight()):
            self.tasks.start(self._runtime.sessions.cancel(self.session.id))

    async def close(self) -> None:
        """Cancel the session's calls and end its questions."""
        self._cards.close("The session was closed.")
        await self._runtime.sessions.cancel(self.session.id)
        self._given.close()

    def _withdraw(self, call_id: str) -> None:
        async def cancel() -> None:
            await self._runtime.calls.cancel_promptly(call_id)

        self.tasks.start(cancel())

    async def _confirm(self, question: Confirmation) -> Answer:
        """Show a question in the editor."""
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
            content=editor.content_of(question, self._longest_arguments),
            locations=locations_of(tool, arguments, self.session.workspace),
            raw_input=arguments,
        )
        with self.updates.question(card):
            return await editor.ask(
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
