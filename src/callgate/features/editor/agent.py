"""The agent of an editor: handles its requests, and owns its open sessions.

    new, load, resume, fork ---> EditorSession ---prompt, cancel, set_mode, ...---> close, delete

A request for a session that is not open here is refused. So is a request for a session that is
being opened or closed. Sessions are concurrent; a question in one does not block the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from functools import partial, singledispatchmethod
from typing import Any

import msgspec

from callgate.core.content import Message
from callgate.core.errors import ToolError
from callgate.core.events import OUTPUT_DELTA, Event
from callgate.core.ids import session_id
from callgate.core.ops import Fork
from callgate.core.sessions import Mode, Root, Session
from callgate.core.stored import StoredSession
from callgate.core.stores import SessionLocked, SessionNotFound, StoreError
from callgate.core.tasks import start_task
from callgate.core.turns import fair_turns
from callgate.dispatch.permission.question_building import client_of
from callgate.features.editor import contents, turns
from callgate.features.editor.cards import replayed
from callgate.features.editor.contents import iso, refused, sendable, session_title
from callgate.features.editor.editor_sessions import Dependencies, EditorSession, is_directory
from callgate.features.editor.peer import EditorPeer
from callgate.features.editor.stdio import SETTINGS_METHOD
from callgate.protocol.acp.initialize import Initialize, Received, read_params
from callgate.protocol.acp.requests import (
    Authenticate,
    Cancel,
    CloseSession,
    ConfigOptionSet,
    DeleteSession,
    ForkSession,
    ListSessions,
    LoadSession,
    Logout,
    McpServer,
    NewSession,
    Prompt,
    Prompted,
    ResumeSession,
    SessionInfo,
    SessionList,
    SessionMade,
    SessionOpened,
    SetConfigOption,
    SetMode,
    find_notification,
    find_request,
)
from callgate.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, Request, RpcError, shown
from callgate.sessions.conversations import chosen_model

_PAGE = 50
_PAUSE = 64
"""Number of replayed updates between two waits for the client to read them."""
_log = logging.getLogger("callgate.acp")


class AcpAgent:
    def __init__(self, dependencies: Dependencies, peer: EditorPeer, client: Initialize) -> None:
        self._dependencies = dependencies
        self._peer = peer
        self._client = client.capabilities
        info = client.client_info
        self._editor = client_of(os.getppid(), None if info is None else info.name)
        self._name = "acp" if info is None else f"acp {shown(info.name, 40)}"
        self._sessions: dict[str, EditorSession] = {}
        self._workers: dict[str, EditorSession] = {}
        """The editor session of each sub-agent session."""
        self._changing: set[str] = set()
        """Sessions that are being opened, closed or deleted."""
        self._stop_listening = dependencies.runtime.sessions.listen(self._happened)

    async def answer(self, method: str, params: Any, request: Request) -> Any:
        """Return the result of a request. Raises `RpcError`."""
        wanted = find_request(method, unstable=self._dependencies.unstable)
        # `Initialize` was answered before the agent existed
        if wanted is None or wanted is Initialize:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(method)}")
        read = read_params(wanted, params)
        try:
            return await self._perform(read)
        except SessionLocked as error:
            raise RpcError(INTERNAL_ERROR, str(error), {"reason": "locked"}) from error
        except SessionNotFound as error:
            raise refused(f"session not found: {shown(error.session)}") from error
        except StoreError as error:
            raise RpcError(INTERNAL_ERROR, str(error), {"reason": "store"}) from error
        except ToolError as error:
            raise refused(error.message) from error

    @singledispatchmethod
    async def _perform(self, request: Received) -> Any:
        """Perform a request; the registered methods below handle one type each."""
        raise NotImplementedError(type(request).__name__)

    def noted(self, method: str, params: Any) -> None:
        """Handle a notification. Unknown notifications are ignored."""
        wanted = find_notification(method)
        if wanted is None:
            _log.debug("ignored: %s", shown(method))
            return
        try:
            notification: Received = read_params(wanted, params)
        except RpcError as error:
            _log.warning("%s: %s", method, error.message)
            return
        if isinstance(notification, Cancel) and notification.session_id not in self._changing:
            editor_session = self._sessions.get(notification.session_id)
            if editor_session is not None:
                editor_session.cancel()

    async def close(self) -> None:
        """Stop every turn and close every session, because the client has disconnected."""
        self._stop_listening()
        # cancel all first, before the wait for any of them
        for editor_session in self._sessions.values():
            editor_session.cancel()
        await asyncio.gather(*map(self._let_go, list(self._sessions)))
        await self._dependencies.close()

    def _happened(self, event: Event) -> None:
        editor_session = self._sessions.get(event.session_id) or self._workers.get(event.session_id)
        if editor_session is not None:
            # a turn progresses even while many messages of the editor are handled
            if event.type != OUTPUT_DELTA:
                fair_turns().note_light()
            editor_session.happened(event)

    # Signing in

    @_perform.register
    async def _authenticate(self, request: Authenticate) -> None:
        if request.method_id != SETTINGS_METHOD:
            raise refused("there is no such sign-in method")
        await turns.open_agent(self._dependencies, self._dependencies.model)

    @_perform.register
    async def _logout(self, request: Logout) -> None:
        await asyncio.to_thread(self._dependencies.forget_key)
        self._dependencies.sessions.forget_agents()

    # Sessions

    @_perform.register
    async def _new(self, request: NewSession) -> SessionMade:
        roots = self._roots(request.cwd, request.additional_directories)
        sessions, servers = self._dependencies.sessions, await self._mcp(request.mcp_servers)
        editor_session = self._hold(
            await self._to_end(sessions.open(request.cwd, self._dependencies.mode, roots=roots)),
            servers,
        )
        session = editor_session.session
        return SessionMade(session_id=session.id, **self._opened(editor_session))

    @_perform.register
    async def _load(self, request: LoadSession) -> SessionOpened:
        with self._alone(request.session_id):
            editor_session = await self._take(request)
            try:
                await self._replay(editor_session.session, editor_session)
            except BaseException:
                await self._let_go(editor_session.session.id)
                raise
            return SessionOpened(**self._opened(editor_session))

    @_perform.register
    async def _resume(self, request: ResumeSession) -> SessionOpened:
        with self._alone(request.session_id):
            return SessionOpened(**self._opened(await self._take(request)))

    @_perform.register
    async def _fork(self, request: ForkSession) -> SessionMade:
        await self._stored(request.session_id)
        new = session_id()
        await self._dependencies.runtime.sessions.conversations.flush()
        store = await self._dependencies.runtime.sessions.store()
        await store.commit(Fork(session=request.session_id, new=new, at=time.time()))
        editor_session = await self._take(msgspec.structs.replace(request, session_id=new))
        return SessionMade(session_id=new, **self._opened(editor_session))

    async def _take(self, request: LoadSession | ResumeSession | ForkSession) -> EditorSession:
        """Open a stored session."""
        id = request.session_id
        roots = self._roots(request.cwd, request.additional_directories)
        if id in self._sessions:
            raise refused(f"session {shown(id)} is already open")
        chosen = chosen_model(await self._stored(id))
        servers = await self._mcp(request.mcp_servers)
        editor_session = self._hold(
            await self._to_end(self._taken(id, request.cwd, roots)), servers
        )
        if chosen in self._dependencies.models:  # unless the settings have changed
            editor_session.model = chosen
        return editor_session

    async def _taken(self, id: str, cwd: str, roots: tuple[Root, ...]) -> Session:
        session = await self._dependencies.sessions.take(id, cwd, roots)
        mode = contents.nearest(self._dependencies.modes, session.mode)
        if mode is not session.mode:  # the settings have changed
            await self._dependencies.runtime.sessions.conversations.set_mode(session, mode)
        return session

    async def _to_end(self, opening: Coroutine[Any, Any, Session]) -> Session:
        """Return the opened session. If the request is cancelled, close the session again, because
        a half-open session would stay locked without an owner.
        """
        work = start_task(opening)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            if not work.cancelled() and work.exception() is None:
                await self._dependencies.sessions.close(work.result().id)
            raise

    @contextmanager
    def _alone(self, id: str) -> Iterator[None]:
        """Exclude other requests for a session within the context."""
        self._ensure_settled(id)
        self._changing.add(id)
        try:
            yield
        finally:
            self._changing.discard(id)

    def _ensure_settled(self, id: str) -> None:
        if id in self._changing:
            raise refused(f"session {shown(id)} is being opened or closed")

    async def _stored(self, id: str) -> StoredSession:
        """Return the stored session of a user. Raises `SessionNotFound` for all others."""
        if not id.isascii() or not id.isprintable():
            raise SessionNotFound(id)
        stored = await (await self._dependencies.runtime.sessions.store()).get_session(id)
        if stored.parent is not None:
            raise SessionNotFound(id)
        return stored

    async def _mcp(self, wanted: Sequence[McpServer] | None) -> Callable[[EditorSession], None]:
        """Return a function that starts MCP servers in a session. The function does not await, so
        that a concurrent close of the agent cannot miss the session.
        """
        if not wanted:
            return lambda editor_session: None
        open_servers = await self._dependencies.mcp()
        return lambda editor_session: editor_session.bring(open_servers, wanted)

    def _hold(self, session: Session, bring: Callable[[EditorSession], None]) -> EditorSession:
        def adopt(worker: str) -> None:
            self._workers[worker] = editor_session

        session.client = self._editor
        editor_session = EditorSession(
            session, self._dependencies, self._peer, self._client, self._name, adopt
        )
        self._sessions[session.id] = editor_session
        bring(editor_session)
        _log.info("session %s in %s", session.id, sendable(session.workspace))
        return editor_session

    def _opened(self, editor_session: EditorSession) -> dict[str, Any]:
        """Return the answer's fields about a session. The session's commands follow the answer,
        because the client does not know the session before it.
        """
        asyncio.get_running_loop().call_soon(editor_session.tell_commands)
        return editor_session.opened()

    async def _replay(self, session: Session, editor_session: EditorSession) -> None:
        find = partial(self._dependencies.runtime.tools.find, session=session)
        sent = 0
        async for update in replayed(self._messages(session), session, find):
            editor_session.tell(update)
            sent += 1
            if sent % _PAUSE == 0:
                await self._peer.drained()

    async def _messages(self, session: Session) -> AsyncIterator[Message]:
        store, seen = await self._dependencies.runtime.sessions.store(), 0
        while page := await store.read_messages(session.id, seen):
            seen += len(page)
            for each in page:
                yield msgspec.convert(each.body, Message)

    @_perform.register
    async def _list(self, request: ListSessions) -> SessionList:
        cwd = request.cwd
        if cwd is not None:
            if not cwd.startswith("/"):
                raise refused("cwd must be absolute")
            cwd = os.path.abspath(cwd)  # the stored form: some editors add a slash
        await self._dependencies.runtime.sessions.conversations.flush()
        store = await self._dependencies.runtime.sessions.store()
        try:
            page = await store.list_sessions(cwd, cursor=request.cursor, limit=_PAGE)
        except ValueError:
            raise refused("the cursor is invalid") from None
        granted = self._dependencies.roots()
        return SessionList(
            sessions=[_info(each, granted) for each in page.sessions], next_cursor=page.cursor
        )

    @_perform.register
    async def _delete(self, request: DeleteSession) -> None:
        with self._alone(request.session_id):
            await self._let_go(request.session_id)
            try:
                await self._stored(request.session_id)
            except SessionNotFound:
                return
            await self._dependencies.runtime.sessions.delete(request.session_id)

    @_perform.register
    async def _close(self, request: CloseSession) -> None:
        self._of(request.session_id)
        with self._alone(request.session_id):
            await self._let_go(request.session_id)

    async def _let_go(self, id: str) -> None:
        editor_session = self._sessions.pop(id, None)
        if editor_session is None:
            return
        await editor_session.stop()  # otherwise a starting prompt would open it again
        await self._dependencies.sessions.close(id)
        await editor_session.close()
        self._workers = {
            key: each for key, each in self._workers.items() if each is not editor_session
        }
        _log.info("session %s closed", id)

    def _roots(self, cwd: str, more: list[str] | None) -> tuple[Root, ...]:
        """Return the additional directories that a client names."""
        for each in (cwd, *(more or ())):
            if not is_directory(each):
                raise refused(f"{shown(each, 200)!r} is not an absolute path of a directory")
        return tuple(Root(path, writable=True) for path in more or ())

    def _of(self, id: str) -> EditorSession:
        self._ensure_settled(id)
        editor_session = self._sessions.get(id)
        if editor_session is None:
            raise refused(f"session not found: {shown(id)}")
        return editor_session

    # Requests within a session

    @_perform.register
    async def _prompt(self, request: Prompt) -> Prompted:
        return await turns.prompt(self._dependencies, self._of(request.session_id), request)

    @_perform.register
    async def _set_mode(self, request: SetMode) -> None:
        await self._change_mode(self._of(request.session_id), request.mode_id)

    @_perform.register
    async def _set_config_option(self, request: SetConfigOption) -> ConfigOptionSet:
        editor_session, value = self._of(request.session_id), request.value
        if request.config_id == contents.MODE:
            await self._change_mode(editor_session, value)
        elif request.config_id == contents.MODEL and editor_session.model is not None:
            if value not in (
                editor_session.model,
                self._dependencies.model,
                *self._dependencies.models,
            ):
                raise refused("there is no such model")
            agent = await turns.open_agent(self._dependencies, str(value))
            editor_session.model, editor_session.telling.window = (
                str(value),
                agent.model.context_tokens,
            )
            await self._dependencies.runtime.sessions.conversations.set_model(
                editor_session.session, str(value)
            )
        else:
            raise refused(f"there is no option {shown(request.config_id)}")
        return ConfigOptionSet(config_options=editor_session.options())

    async def _change_mode(self, editor_session: EditorSession, wanted: object) -> None:
        mode = next((each for each in self._dependencies.modes if each == wanted), None)
        if mode is None:
            raise refused(
                f"there is no mode {shown(str(wanted))}: {_named(self._dependencies.modes)}"
            )
        await self._dependencies.runtime.sessions.conversations.set_mode(
            editor_session.session, mode
        )


def _named(modes: tuple[Mode, ...]) -> str:
    return ", ".join(modes)


def _info(stored: StoredSession, granted: tuple[Root, ...]) -> SessionInfo:
    more = [sendable(root.path) for root in stored.extra_roots if root not in granted]
    return SessionInfo(
        session_id=stored.id,
        cwd=sendable(stored.workspace),
        additional_directories=more,
        title=session_title(stored.title),
        updated_at=iso(stored.updated_at),
    )
