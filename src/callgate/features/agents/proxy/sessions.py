"""One session of an agent behind the proxy: the agent's requests become callgate calls.

    fs/read_text_file, fs/write_text_file   read_file, write_file
    terminal/create                         shell; other requests return its output and its end
    session/request_permission              the tool of the question, run by the agent itself

The approval of the agent's question covers its next request for the file or the command, if it is
exactly the one in the question. The dispatcher decides before anything is executed. Any failure is
a refusal.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from callgate.core.calls import Handover, ToolCall, ToolResult
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Session
from callgate.core.tasks import TaskSet
from callgate.features.agents.hooks.agent_tools import Translated
from callgate.features.agents.hooks.events import HookEvent, Verdict
from callgate.features.agents.proxy import calls, messages
from callgate.features.agents.proxy.agents import Dependencies
from callgate.features.agents.proxy.calls import Approvals, SessionCalls
from callgate.features.agents.proxy.messages import with_texts
from callgate.features.agents.proxy.runners import (
    MOST_TERMINALS,
    AgentWork,
    ExactRead,
    Terminal,
    TerminalRun,
    bad_variable,
    environment,
    shell_arguments,
)
from callgate.features.editor.peer import EditorPeer
from callgate.protocol.acp import client_requests as wire
from callgate.protocol.acp.client_requests import (
    CreateTerminal,
    PermissionRequest,
    ReadTextFile,
    ToolState,
    WriteTextFile,
)
from callgate.protocol.acp.initialize import read_params
from callgate.protocol.acp.updates import RESOURCE_NOT_FOUND
from callgate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError, shown

_MOST_STATES = 200
"""Maximum number of remembered tool calls of the agent."""
_LARGEST_STATE = 256 * 1024
"""Maximum size of a remembered tool call in bytes."""
_MISSING = "file_not_found"
SWITCH_TITLE = "The agent asks about its own mode"
_LONGEST_TITLE = 200
_RECORD_S = 5.0
"""Time limit for the history of approved work when a session closes."""

_log = logging.getLogger("callgate.acp")


class ProxiedSession:
    def __init__(
        self,
        session: Session,
        dependencies: Dependencies,
        editor: EditorPeer,
        editor_name: str,
        *,
        runs_in: str,
        missing_is_empty: bool,
    ) -> None:
        """`runs_in`: location of the work that the agent does itself, for approvers.

        `missing_is_empty`: the agent treats an error about a missing file as a failure.
        """
        self.session = session
        self.calls = SessionCalls(session, dependencies, editor, editor_name)
        self._dependencies = dependencies
        self._runtime = dependencies.runtime
        self._editor = editor
        self._runs_in, self._missing_is_empty = runs_in, missing_is_empty
        self.prompts = 0
        """Number of running prompts."""
        self.turn = 0
        """Number of ended turns."""
        self._states: dict[str, ToolState] = {}
        self._approvals = Approvals(session.workspace)
        self._terminals: dict[str, Terminal] = {}
        self._numbers = itertools.count(1)
        self._agent_work = TaskSet(_log, "the record of an agent's work failed")
        self._approved_work = TaskSet()
        """The approved part of `_agent_work`."""

    async def close(self) -> None:
        """Stop all calls of the session, and close it."""
        await self.stop()
        await self.calls.close()
        await self._dependencies.sessions.close(self.session.id)

    async def stop(self) -> None:
        """Stop every call, after the changes of approved work are in the history."""
        self._approvals.end_all("The turn was cancelled.")
        await self._approved_work.wait(_RECORD_S)
        self.calls.cancel()

    def cancel(self) -> None:
        """Withdraw every question and stop every call of the session."""
        self._approvals.end_all("The turn was cancelled.")
        self.calls.cancel()

    def turn_ended(self) -> None:
        """End the approved work without a report: it has ended with the agent's turn."""
        self.turn += 1
        self._approvals.end_all("The agent's turn ended.", success=True)

    async def settled(self, limit_s: float) -> None:
        """Wait until the agent's own work is recorded."""
        await self._agent_work.wait(limit_s)

    # Updates of the agent

    def updated(self, params: dict[str, Any]) -> None:
        """Store an update for a later question, and forward it."""
        self._learn(params["update"])
        self.calls.updates.pass_on(with_texts(params, self._terminal_text))

    def _learn(self, update: Any) -> None:
        state = wire.tool_state_of(update)
        if state is None:
            return
        id = state["toolCallId"]
        known = self._states.pop(id, None)
        if wire.has_ended(state):  # no question about it follows
            success = not wire.has_failed(state)
            self._approvals.end(id, success=success, how=messages.output_of(state) or "")
            return
        learnt = messages.merged(known, state)
        if len(msgspec.json.encode(learnt)) <= _LARGEST_STATE:
            self._states[id] = learnt
        if len(self._states) > _MOST_STATES:
            del self._states[next(iter(self._states))]

    def _terminal_text(self, terminal_id: str, tool_call_id: str) -> str | None:
        """Return the output of a callgate terminal for its card; None for other terminals."""
        terminal = self._terminals.get(terminal_id)
        if terminal is None:
            return None
        terminal.tool_call_id = tool_call_id
        return terminal.text

    # Requests of the agent

    async def permission(self, params: Any) -> Any:
        """Check a question of the agent by callgate's policy, with approval if necessary."""
        request = read_params(PermissionRequest, params)
        state = messages.merged(self._states.get(request.tool_call_id), request.tool_call)
        if messages.is_plain_switch(state):  # the person must see the agent's own options
            return await self._ask_about_mode(request, state, params)
        judged = messages.read(state, self.session.workspace)
        card = request.tool_call_id
        if self._approvals.find_told(card, judged, "question") is not None:
            return request.answer(allow=True)
        result = await self._ask(judged, card, card)
        if result is not None and _is_unclear(result) and judged.tool != messages.AGENT_ACTION:
            result = await self._ask(messages.unknown(state), card, card)
        if result is None:
            return request.answer(allow=True)
        assert result.error is not None
        if result.error.error_class is ToolErrorClass.CANCELLED:
            return wire.CANCELLED
        return request.answer(allow=False)

    async def _ask_about_mode(
        self, request: PermissionRequest, state: ToolState, params: dict[str, Any]
    ) -> Any:
        """Forward a question about the agent's mode, with its options and callgate's title."""
        updates, card = self.calls.updates, request.tool_call_id
        if not card or updates.has_question(card):
            raise RpcError(INVALID_PARAMS, "a question about the mode needs a separate tool call")
        shown_call = {
            "toolCallId": card,
            "title": f"{SWITCH_TITLE}: {shown(str(state.get('title', '')), _LONGEST_TITLE)}",
            "kind": messages.SWITCH_MODE,
            "status": "pending",
            "content": state.get("content") or [],
            "locations": [],
            "rawInput": state.get("rawInput") or {},
        }
        with updates.question(card):
            return await self._editor.request(wire.PERMISSION, {**params, "toolCall": shown_call})

    async def _ask(
        self,
        judged: messages.JudgedTool,
        tool_call_id: str,
        card: str | None,
        told_by: str = "question",
    ) -> ToolResult | None:
        """Return None if the agent may run the call, else the result of the refused call.

        An allowed call stays open until the agent has run it. `card` is the agent's own card.
        """
        tool = self.calls.find(judged.tool)
        if tool is None:  # such as a tool from a missing package
            unknown = messages.unknown(dict(judged.arguments))
            return await self._ask(unknown, tool_call_id, card, told_by)
        work = AgentWork(tool.definition)
        handover = Handover(lambda _: work, self._runs_in, takes_slot=False)
        call = self.calls.make(judged.tool, judged.arguments, handover, card, tool_call_id or None)
        running = self._agent_work.start(self.calls.complete(call))
        await self.calls.started(work.started, running, call)
        if not work.started.is_set():
            return running.result()
        self._approvals.begin(tool_call_id, work, judged, told_by)
        self._approved_work.add(running)
        return None

    # Events of the agent's hook

    async def hook_called(self, event: HookEvent, call: Translated) -> Verdict:
        """Check a call that the agent's hook reports, once for the hook and the question."""
        if call.undecided:  # the agent asks its own question about it
            return Verdict(allowed=True, undecided=True)
        judged = messages.of_hook(call, self.session.workspace)
        known = self._approvals.find_told(event.use_id, judged, "hook")
        if known is not None:
            why = self._dependencies.refusal(self.session, judged.tool, judged.arguments)
            if why is None:
                return Verdict(allowed=True)
            self._approvals.end(known, success=False, how=f"Refused: {why}")
            return Verdict(allowed=False, reason=f"callgate: {why}")
        id = event.use_id or f"hook_{next(self._numbers)}"
        result = await self._ask(judged, id, self._card_of(event.use_id), "hook")
        if result is None:
            return Verdict(allowed=True)
        assert result.error is not None
        return Verdict(allowed=False, reason=f"callgate: {result.error.message}")

    def hook_ended(self, event: HookEvent) -> None:
        """End a call after the hook's report. A call without an id ends with its turn instead."""
        if event.use_id is not None:
            self._approvals.end(event.use_id, success=not event.failed)

    def _card_of(self, use_id: str | None) -> str | None:
        """Return the agent's own card of a call, if it has announced one."""
        if use_id is None:
            return None
        return next((id for id in self._states if calls.ids_match(id, use_id)), None)

    async def read_file(self, params: Any) -> Any:
        request = read_params(ReadTextFile, params)
        line = max(request.line or 1, 1)
        reading = ExactRead(line, request.limit)
        arguments: dict[str, Any] = {"path": request.path}
        if line > 1:
            arguments["offset"] = line
        if request.limit:
            arguments["limit"] = request.limit
        call = self.calls.make("read_file", arguments, Handover(lambda _: reading))
        result = await self.calls.complete(call)
        if result.error is None:
            return wire.FileContent(content=reading.text)
        if result.error.reason == _MISSING:
            if self._missing_is_empty:
                return wire.FileContent(content="")
            raise RpcError(RESOURCE_NOT_FOUND, result.error.message)
        raise _refusal(result)

    async def write_file(self, params: Any) -> Any:
        request = read_params(WriteTextFile, params)
        arguments = {"path": request.path, "content": request.content}
        if self._approvals.covers_write(request.path, request.content):
            self._dependencies.grant_once(self.session, "write_file", arguments)
        result = await self.calls.complete(self.calls.make("write_file", arguments))
        if result.error is not None:
            raise _refusal(result)
        return {}

    async def create_terminal(self, params: Any) -> Any:
        request = read_params(CreateTerminal, params)
        if len(self._terminals) >= MOST_TERMINALS:
            raise RpcError(INVALID_PARAMS, f"{MOST_TERMINALS} terminals are open: release one")
        if (name := bad_variable(request)) is not None:
            raise RpcError(INVALID_PARAMS, f"{shown(name)} is not a valid variable name")
        arguments = shell_arguments(request, self.session.workspace)
        if self._approvals.covers_command(arguments):
            self._dependencies.grant_once(self.session, "shell", arguments)
        terminal = Terminal(f"term_{next(self._numbers)}", request.output_byte_limit)
        run = TerminalRun(terminal, environment(request))
        call = self.calls.make("shell", arguments, Handover(lambda _: run, takes_slot=False))
        terminal.call_id = call.id
        self._terminals[terminal.id] = terminal
        running = self.calls.tasks.start(self._in_terminal(call, terminal))
        try:
            await self.calls.started(terminal.started, running, call)
            if not terminal.started.is_set():
                raise _refusal(running.result())
        except BaseException:
            self._terminals.pop(terminal.id, None)
            raise
        return wire.TerminalCreated(terminal_id=terminal.id)

    async def _in_terminal(self, call: ToolCall, terminal: Terminal) -> ToolResult:
        try:
            return await self.calls.complete(call)
        finally:
            terminal.end(None)
            self._show_output(terminal)

    def _show_output(self, terminal: Terminal) -> None:
        """Replace a callgate terminal in a card by its text: the editor has no such terminal."""
        if terminal.tool_call_id is not None:
            content = {"type": "content", "content": {"type": "text", "text": terminal.text}}
            update = {
                "sessionUpdate": "tool_call_update",
                "toolCallId": terminal.tool_call_id,
                "content": [content],
            }
            self.calls.updates.pass_on({"sessionId": self.calls.id, "update": update})

    async def terminal_output(self, params: Any) -> Any:
        return self._terminal(params).state()

    async def wait_for_exit(self, params: Any) -> Any:
        terminal = self._terminal(params)
        await terminal.ended.wait()
        return terminal.exit

    async def kill_terminal(self, params: Any) -> Any:
        await self._stop(self._terminal(params))
        return {}

    async def release_terminal(self, params: Any) -> Any:
        terminal = self._terminal(params)
        await self._stop(terminal)
        self._terminals.pop(terminal.id, None)
        return {}

    async def _stop(self, terminal: Terminal) -> None:
        if not terminal.ended.is_set():
            await self._runtime.calls.cancel_promptly(terminal.call_id)

    def _terminal(self, params: Any) -> Terminal:
        request = read_params(wire.OfTerminal, params)
        terminal = self._terminals.get(request.terminal_id)
        if terminal is None:
            raise RpcError(INVALID_PARAMS, f"terminal not found: {shown(request.terminal_id)}")
        return terminal


Handler = Callable[[ProxiedSession, Any], Awaitable[Any]]

HANDLERS: dict[str, Handler] = {
    wire.PERMISSION: ProxiedSession.permission,
    wire.READ_FILE: ProxiedSession.read_file,
    wire.WRITE_FILE: ProxiedSession.write_file,
    wire.CREATE_TERMINAL: ProxiedSession.create_terminal,
    wire.TERMINAL_OUTPUT: ProxiedSession.terminal_output,
    wire.WAIT_FOR_EXIT: ProxiedSession.wait_for_exit,
    wire.KILL_TERMINAL: ProxiedSession.kill_terminal,
    wire.RELEASE_TERMINAL: ProxiedSession.release_terminal,
}
"""Requests of an agent that the proxy performs itself."""


def _is_unclear(result: ToolResult) -> bool:
    """Return whether the arguments of a question do not fit its apparent tool."""
    return result.error is not None and result.error.error_class in (
        ToolErrorClass.VALIDATION_ERROR,
        ToolErrorClass.NOT_FOUND,
    )


def _refusal(result: ToolResult) -> RpcError:
    error = result.error
    if error is None:
        return RpcError(INTERNAL_ERROR, "the command did not start")
    data = {"class": str(error.error_class), "reason": error.reason}
    return RpcError(INTERNAL_ERROR, error.message, data)
