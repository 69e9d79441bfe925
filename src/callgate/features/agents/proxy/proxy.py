"""Routing of messages between an editor and the agent behind the proxy.

    from the editor   initialize             the agent's answer; callgate adds files, terminals
                      session/new, load ...  opens a callgate session in addition to the agent's
                      session/prompt         forwarded; changes during the turn are recorded
                      session/cancel         forwarded; questions and calls are withdrawn
    from the agent    files, terminals, permission   `sessions`
                      session/update                 forwarded, and used for later questions
    other messages    forwarded if `messages` lists them, else refused or dropped

Messages stay in order: a task that waits for an answer continues before the next message of the
same peer is processed (`EditorPeer`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, Handover, ToolCall
from callgate.core.errors import ToolError
from callgate.core.sessions import Root
from callgate.core.stores import StoreError
from callgate.core.tasks import TaskSet
from callgate.dispatch.permission.question_building import client_of
from callgate.features.agents.hooks.events import HookEvent
from callgate.features.agents.known import KNOWN
from callgate.features.agents.proxy import messages
from callgate.features.agents.proxy.agents import (
    AgentLocation,
    Agents,
    Dependencies,
    Handlers,
    ProxiedAgent,
)
from callgate.features.agents.proxy.messages import guarded
from callgate.features.agents.proxy.runners import AGENT_TURN, AgentTurn
from callgate.features.agents.proxy.sessions import HANDLERS, ProxiedSession
from callgate.features.editor.editor_sessions import is_directory
from callgate.features.editor.peer import EditorPeer
from callgate.protocol.acp.client_requests import CANCELLED, PERMISSION, session_id_of
from callgate.protocol.acp.updates import SESSION_UPDATE
from callgate.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Request,
    RpcError,
    shown,
)
from callgate.protocol.strict_json import Unsendable
from callgate.sandbox.dry_runs.manifests import Before, observe
from callgate.tools import shell_results
from callgate.workspace import executed_later

OPENS = frozenset({"session/new", "session/load", "session/resume", "session/fork"})
ENDS = frozenset({"session/close", "session/delete"})
REPORT_S = 5.0
"""Time limit for recording the changes of the last turns before the shutdown."""
_MOST_EARLY = 100
_MOST_ENTRIES, _MOST_SECONDS = 20_000, 0.5
"""Limits of the search for changes in a workspace, before and after a turn."""

_log = logging.getLogger("callgate.acp")


class Proxy:
    def __init__(
        self,
        dependencies: Dependencies,
        editor: EditorPeer,
        editor_name: str | None,
        make_agents: Callable[[Handlers], Agents],
    ) -> None:
        self._dependencies = dependencies
        self._editor = editor
        self._client = client_of(os.getppid(), editor_name)
        self._editor_name = "acp" if editor_name is None else f"acp {shown(editor_name, 40)}"
        self._name = dependencies.name
        self._agents = make_agents(Handlers(self._answer_agent, self._note_agent, self._ended))
        self._sessions: dict[str, tuple[ProxiedAgent, ProxiedSession]] = {}
        self._opening: list[tuple[ProxiedAgent, list[dict[str, Any]]]] = []
        """Pending requests that open a session, each with the updates for unknown sessions."""
        self._tasks = TaskSet(_log, "the work of the proxy failed")

    async def initialize(self, params: Any) -> Any:
        """Initialize the agent, and return its answer for the editor."""
        answer = await self._agents.greet(params)
        answer = guarded(answer)
        info = answer.get("agentInfo") if isinstance(answer, dict) else None
        name = info.get("name") if isinstance(info, dict) else None
        if isinstance(name, str) and name:
            self._name = shown(name, 80)
        _log.info("the agent is %s", self._name)
        return answer

    async def close(self) -> None:
        """End every session, then the agent, after the editor has disconnected."""
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(session.stop() for _, session in sessions))
        await self._tasks.wait(REPORT_S)  # the reports on the last turns come first
        closing = asyncio.gather(*(each.close() for _, each in sessions), return_exceptions=True)
        await asyncio.gather(self._agents.close(), closing)
        await self._tasks.wait(REPORT_S)
        await self._dependencies.close()

    def find_session(self, event: HookEvent) -> ProxiedSession | None:
        """Return the session of a hook event: by its id, or the only one in its directory."""
        found = self._sessions.get(event.session)
        if found is not None:
            return found[1]
        here = event.cwd and os.path.realpath(event.cwd)
        sessions = [each for _, each in self._sessions.values()]
        in_directory = [each for each in sessions if each.session.workspace == here]
        return in_directory[0] if len(in_directory) == 1 else None

    # From the editor

    async def answer(self, method: str, params: Any, request: Request) -> Any:
        """Return the result of an editor's request. Raises `RpcError`."""
        try:
            if method in OPENS:
                return await self._open(method, params)
            if method == "session/prompt":
                return await self._prompt(params)
            if not messages.passes_from_editor(method, is_request=True):
                raise _unknown("editor", method)
            agent = self._agent_of(params)
            answer = await agent.request(method, params)
        except (ToolError, StoreError) as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from error
        if method == "authenticate":
            self._agents.logged_in(params)
        if method in ENDS:
            await self._let_go(session_id_of(params))
        return answer

    def noted(self, method: str, params: Any) -> None:
        """Process a notification of the editor."""
        if not messages.passes_from_editor(method, is_request=False):
            _drop("editor", method)
            return
        id = session_id_of(params)
        found = None if id is None else self._sessions.get(id)
        if method == "session/cancel" and found is not None:
            found[1].cancel()
            self._expect_end(*found)
        for agent in self._agents.every() if found is None else [found[0]]:
            agent.notify(method, params)

    async def _open(self, method: str, params: Any) -> Any:
        location = _location(params)
        agent = await self._agents.at(location)
        session = await self._session(location, agent)
        known = session_id_of(params)
        opening: tuple[ProxiedAgent, list[dict[str, Any]]] = (agent, [])
        self._opening.append(opening)
        try:
            if known is not None and method != "session/fork":  # updates come before the answer
                self._hold(known, agent, session)
            answer = await agent.request(method, params)
            id = known if method in ("session/load", "session/resume") else session_id_of(answer)
            if id is None:
                raise RpcError(INTERNAL_ERROR, "the agent's answer contains no session id")
            self._hold(id, agent, session)
        except BaseException:
            if known is not None and self._is_held(known, session):
                del self._sessions[known]
            self._tasks.start(session.close())
            raise
        finally:
            self._opening.remove(opening)
        for early in opening[1]:
            if session_id_of(early) == id:
                session.updated(early)
        return answer

    async def _session(self, location: AgentLocation, agent: ProxiedAgent) -> ProxiedSession:
        sessions = self._dependencies.sessions
        session = await sessions.open(
            location.workspace,
            self._dependencies.mode,
            title=self._name,
            roots=location.roots,
            client=self._client,
        )
        name = self._name.lower()
        lenient = any(each.missing_is_empty and each.name in name for each in KNOWN.values())
        return ProxiedSession(
            session,
            self._dependencies,
            self._editor,
            self._editor_name,
            runs_in=agent.runs_in,
            missing_is_empty=lenient,
        )

    def _hold(self, id: str, agent: ProxiedAgent, session: ProxiedSession) -> None:
        if self._is_held(id, session):
            return
        if id in self._sessions:
            raise RpcError(INVALID_PARAMS, f"session {shown(id)} is already open")
        session.calls.id = id
        self._sessions[id] = agent, session
        _log.info("session %s of the agent is %s", shown(id), session.session.id)

    def _is_held(self, id: str, session: ProxiedSession) -> bool:
        return id in self._sessions and self._sessions[id][1] is session

    async def _prompt(self, params: Any) -> Any:
        id = session_id_of(params)
        if id is None or id not in self._sessions:
            raise RpcError(INVALID_PARAMS, f"session not found: {shown(id or '')}")
        agent, session = self._sessions[id]
        workspace = session.session.workspace
        session.prompts += 1
        self._dependencies.runtime.sessions.conversations.hear(
            session.session, messages.words_of(params)
        )
        try:
            began = executed_later.now()
            before = await observe(workspace, most=_MOST_ENTRIES, seconds=_MOST_SECONDS)
            session.calls.changed.clear()
            return await self._pass_prompt(agent, session, params, before, began)
        finally:
            session.prompts -= 1

    async def _pass_prompt(
        self, agent: ProxiedAgent, session: ProxiedSession, params: Any, before: Before, began: int
    ) -> Any:
        try:
            return await agent.request("session/prompt", params)
        except asyncio.CancelledError:  # the agent may not support the cancellation of requests
            agent.notify("session/cancel", {"sessionId": session.calls.id})
            session.cancel()
            raise
        finally:
            session.turn_ended()
            self._tasks.start(self._report(session, before, began))

    def _expect_end(self, agent: ProxiedAgent, session: ProxiedSession) -> None:
        """Kill the agent if its turn does not end soon after a cancel."""

        def look() -> None:
            if turn == session.turn and session.prompts:
                agent.kill("it did not end its turn after a cancel")

        turn = session.turn
        if session.prompts:
            asyncio.get_running_loop().call_later(self._dependencies.cancel_patience_s, look)

    async def _report(self, session: ProxiedSession, before: Before, began: int) -> None:
        """Record the changes of a turn that no callgate call made."""
        await session.settled(REPORT_S)
        seen = await before.changes()
        ours = session.calls.changed
        observed = msgspec.structs.replace(
            seen,
            **{
                kind: tuple(each for each in getattr(seen, kind) if each not in ours)
                for kind in ("created", "changed", "deleted")
            },
        )
        workspace = session.session.workspace
        more = (root.path for root in session.session.extra_roots if root.writable)
        left = await asyncio.to_thread(executed_later.search, (workspace, *more), began)
        left = left.below((os.path.realpath(workspace),))
        left = msgspec.structs.replace(
            left,
            files=tuple(path for path in left.files if path not in ours),
            pipelines=tuple(path for path in left.pipelines if path not in ours),
        )
        if not observed and not left:
            return
        remarks = await asyncio.to_thread(shell_results.remarks, observed, workspace)
        remarks += [f"[{line}]" for line in left.lines()]
        metadata = {"observed": observed.as_metadata()}
        report = Handover(lambda _: AgentTurn(observed.files, metadata, remarks))
        arguments = {"agent": self._name, "changes": len(observed.files)}
        await self._dependencies.runtime.calls.run(
            ToolCall(
                tool=AGENT_TURN,
                arguments=arguments,
                session=session.session,
                caller=CallerKind.AGENT,
                handover=report,
            )
        )

    async def _let_go(self, id: str | None) -> None:
        found = None if id is None else self._sessions.pop(id, None)
        if found is not None:
            await found[1].close()

    def _agent_of(self, params: Any) -> ProxiedAgent:
        id = session_id_of(params)
        found = self._sessions.get(id) if id is not None else None
        if found is not None:
            return found[0]
        return self._agents.usual()

    # From the agent

    async def _answer_agent(
        self, agent: ProxiedAgent, method: str, params: Any, request: Request
    ) -> Any:
        """Return the result of an agent's request. Raises `RpcError`."""
        handler = HANDLERS.get(method)
        if handler is None and not self._passes(method, is_request=True):
            raise _unknown("agent", method)
        if handler is None and messages.opens_program(params):
            raise RpcError(INVALID_PARAMS, "the URL of a question must be http or https")
        session = self._session_of(agent, params)
        if handler is None and (session is not None or session_id_of(params) is None):
            return await self._editor.request(method, params)
        if handler is None or session is None:
            named = shown(session_id_of(params) or "")
            raise RpcError(INVALID_PARAMS, f"session not found: {named}")
        if method != PERMISSION:
            return await handler(session, params)
        try:
            return await handler(session, params)
        except RpcError:
            raise
        except Exception:  # some agents treat an error as approval
            _log.exception("a question of the agent could not be processed")
            return CANCELLED

    def _note_agent(self, agent: ProxiedAgent, method: str, params: Any) -> None:
        """Process a notification of the agent."""
        session = self._session_of(agent, params)
        if method == SESSION_UPDATE:
            if not messages.is_update(params):
                _drop("agent", f"{method} of an unknown kind")
            elif session is not None:
                session.updated(params)
            else:
                self._early_update(agent, params)
        elif not self._passes(method, is_request=False):
            _drop("agent", method)
        elif session is None and session_id_of(params) is not None:
            _drop("agent", f"{method} for another session")
        else:
            with suppress(Unsendable):
                self._editor.notify(method, params)

    def _early_update(self, agent: ProxiedAgent, params: dict[str, Any]) -> None:
        """Store an update of a session whose opening request the agent has not answered yet."""
        opening = [updates for opener, updates in self._opening if opener is agent]
        if not opening:
            _drop("agent", f"{SESSION_UPDATE} for another session")
        for updates in opening:
            if len(updates) < _MOST_EARLY:
                updates.append(params)

    def _passes(self, method: str, *, is_request: bool) -> bool:
        extensions = self._dependencies.extensions
        return messages.passes_from_agent(method, extensions, is_request=is_request)

    def _session_of(self, agent: ProxiedAgent, params: Any) -> ProxiedSession | None:
        """Return the session of a message, if it belongs to this agent."""
        id = session_id_of(params)
        found = None if id is None else self._sessions.get(id)
        return found[1] if found is not None and found[0] is agent else None

    def _ended(self, agent: ProxiedAgent) -> None:
        """End the sessions of an agent that has ended."""
        for id, (owner, session) in list(self._sessions.items()):
            if owner is agent:
                del self._sessions[id]
                self._tasks.start(session.close())


def _unknown(sender: str, method: str) -> RpcError:
    _log.warning("refused: the proxy does not forward %s from the %s", shown(method), sender)
    return RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(method)}")


def _drop(sender: str, message: str) -> None:
    _log.warning("dropped: the proxy does not forward %s from the %s", shown(message), sender)


def _location(params: Any) -> AgentLocation:
    """Return the directories of a session. Raises `RpcError`."""
    given = params if isinstance(params, dict) else {}
    cwd, more = given.get("cwd"), given.get("additionalDirectories") or []
    if not isinstance(more, list):
        raise RpcError(INVALID_PARAMS, "additionalDirectories must be a list")
    for each in (cwd, *more):
        if not isinstance(each, str) or not is_directory(each):
            named = shown(str(each), 200)
            raise RpcError(INVALID_PARAMS, f"{named!r} is not an absolute path of a directory")
    return AgentLocation(
        os.path.abspath(str(cwd)), tuple(Root(path, writable=True) for path in more)
    )
