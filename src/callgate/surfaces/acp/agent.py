"""The agent that an editor works with: each of its requests, and the sessions it has open.

    new, load, resume, fork ---> Held ---prompt, cancel, set_mode, ...---> close, delete

A request that names a session which is not open here is refused, and so is one about a session
that is being opened or closed at that moment. Sessions work side by side; a question in one holds
up no other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from callgate.core.errors import ToolError
from callgate.core.events import Event
from callgate.core.ids import session_id
from callgate.core.messages import Message
from callgate.core.ops import Fork
from callgate.core.sessions import Mode, Root, Session
from callgate.core.stored import StoredSession
from callgate.core.stores import SessionLocked, SessionNotFound, StoreError
from callgate.dispatch.clients import client_of
from callgate.protocol.acp.initialize import Initialize
from callgate.protocol.acp.reading import Received, read_params
from callgate.protocol.acp.requests import (
    NOTIFICATIONS,
    REQUESTS,
    UNSTABLE,
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
)
from callgate.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, Request, RpcError, shown
from callgate.sessions.conversations import chosen_model
from callgate.surfaces.acp import options, turns
from callgate.surfaces.acp.contents import iso, sendable, session_title
from callgate.surfaces.acp.greeting import SETTINGS_METHOD
from callgate.surfaces.acp.held import Held, is_directory
from callgate.surfaces.acp.parts import Parts
from callgate.surfaces.acp.peer import Peer
from callgate.surfaces.acp.prompts import refused
from callgate.surfaces.acp.replay import replayed

_PAGE = 50
_PAUSE = 64
"""Updates of a replay between two looks at whether the client reads them."""
_log = logging.getLogger("callgate.acp")


class AcpAgent:
    def __init__(self, parts: Parts, peer: Peer, client: Initialize) -> None:
        self._parts = parts
        self._peer = peer
        self._client = client.capabilities
        info = client.client_info
        self._editor = client_of(os.getppid(), None if info is None else info.name)
        self._name = "acp" if info is None else f"acp {shown(info.name, 40)}"
        self._held: dict[str, Held] = {}
        self._workers: dict[str, Held] = {}
        """By the session that works for one of ours."""
        self._changing: set[str] = set()
        """Sessions that are being opened, closed or deleted."""
        self._stop_listening = parts.runtime.listen(self._happened)
        self._methods: Mapping[str, Callable[[Any], Awaitable[Any]]] = {
            "authenticate": self._authenticate,
            "logout": self._logout,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/delete": self._delete,
            "session/close": self._close,
            "session/prompt": self._prompt,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_config_option,
            "session/fork": self._fork,
        }
        self._known = {**REQUESTS, **(UNSTABLE if parts.unstable else {})}

    async def answer(self, method: str, params: Any, request: Request) -> Any:
        """The result of a request. Raises `RpcError`."""
        wanted = self._known.get(method)
        if wanted is None or method not in self._methods:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(method)}")
        asked = read_params(wanted, params)
        try:
            return await self._methods[method](asked)
        except SessionLocked as error:
            raise RpcError(INTERNAL_ERROR, str(error), {"reason": "locked"}) from error
        except SessionNotFound as error:
            raise refused(f"session not found: {shown(error.session)}") from error
        except StoreError as error:
            raise RpcError(INTERNAL_ERROR, str(error), {"reason": "store"}) from error
        except ToolError as error:
            raise refused(error.message) from error

    def noted(self, method: str, params: Any) -> None:
        """A notification; one that is not known is ignored."""
        wanted = NOTIFICATIONS.get(method)
        if wanted is None:
            _log.debug("ignored: %s", shown(method))
            return
        try:
            told: Received = read_params(wanted, params)
        except RpcError as error:
            _log.warning("%s: %s", method, error.message)
            return
        if isinstance(told, Cancel) and told.session_id not in self._changing:
            held = self._held.get(told.session_id)
            if held is not None:
                held.cancel()

    async def close(self) -> None:
        """The client has gone: stop every turn and let go of everything."""
        self._stop_listening()
        for held in self._held.values():  # nobody goes on while another is waited for
            held.cancel()
        await asyncio.gather(*map(self._let_go, list(self._held)))
        await self._parts.close()

    def _happened(self, event: Event) -> None:
        held = self._held.get(event.session_id) or self._workers.get(event.session_id)
        if held is not None:
            held.happened(event)

    # Signing in

    async def _authenticate(self, asked: Authenticate) -> None:
        if asked.method_id != SETTINGS_METHOD:
            raise refused("there is no such method to sign in by")
        await turns.open_agent(self._parts, self._parts.model)

    async def _logout(self, asked: Logout) -> None:
        await asyncio.to_thread(self._parts.forget_key)
        self._parts.sessions.forget_agents()

    # Sessions

    async def _new(self, asked: NewSession) -> SessionMade:
        roots = self._places(asked.cwd, asked.additional_directories)
        sessions, servers = self._parts.sessions, await self._mcp(asked.mcp_servers)
        held = self._hold(
            await self._whole(sessions.open(asked.cwd, self._parts.mode, roots=roots)), servers
        )
        made = held.session
        return SessionMade(session_id=made.id, **self._opened(held))

    async def _load(self, asked: LoadSession) -> SessionOpened:
        with self._alone(asked.session_id):
            held = await self._take(asked)
            try:
                await self._replay(held.session, held)
            except BaseException:
                await self._let_go(held.session.id)
                raise
            return SessionOpened(**self._opened(held))

    async def _resume(self, asked: ResumeSession) -> SessionOpened:
        with self._alone(asked.session_id):
            return SessionOpened(**self._opened(await self._take(asked)))

    async def _fork(self, asked: ForkSession) -> SessionMade:
        await self._stored(asked.session_id)
        new = session_id()
        await self._parts.runtime.conversations.flush()
        store = await self._parts.runtime.store()
        await store.commit(Fork(session=asked.session_id, new=new, at=time.time()))
        held = await self._take(msgspec.structs.replace(asked, session_id=new))
        return SessionMade(session_id=new, **self._opened(held))

    async def _take(self, asked: LoadSession | ResumeSession | ForkSession) -> Held:
        """Open a session that was kept."""
        id = asked.session_id
        roots = self._places(asked.cwd, asked.additional_directories)
        if id in self._held:
            raise refused(f"session {shown(id)} is open already")
        chosen = chosen_model(await self._stored(id))
        servers = await self._mcp(asked.mcp_servers)
        held = self._hold(await self._whole(self._taken(id, asked.cwd, roots)), servers)
        if chosen in self._parts.models:  # or the settings were other ones
            held.model = chosen
        return held

    async def _taken(self, id: str, cwd: str, roots: tuple[Root, ...]) -> Session:
        session = await self._parts.sessions.take(id, cwd, roots)
        mode = options.nearest(self._parts.modes, session.mode)
        if mode is not session.mode:  # the settings were other ones
            await self._parts.runtime.conversations.set_mode(session, mode)
        return session

    async def _whole(self, opening: Coroutine[Any, Any, Session]) -> Session:
        """The session that is opened. If nobody wants it any more, it is closed again: half
        open, it would be locked and belong to nobody."""
        work = asyncio.get_running_loop().create_task(opening)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            if not work.cancelled() and work.exception() is None:
                await self._parts.sessions.close(work.result().id)
            raise

    @contextmanager
    def _alone(self, id: str) -> Iterator[None]:
        """Nothing else is done with a session meanwhile."""
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
        """A session of a person's. `SessionNotFound` for any other."""
        if not id.isascii() or not id.isprintable():
            raise SessionNotFound(id)
        stored = await (await self._parts.runtime.store()).get_session(id)
        if stored.parent is not None:
            raise SessionNotFound(id)
        return stored

    async def _mcp(self, wanted: Sequence[McpServer] | None) -> Callable[[Held], None]:
        """What brings MCP servers into a session. Nothing is awaited there: an agent that is
        closed meanwhile would not know of them."""
        if not wanted:
            return lambda held: None
        open_servers = await self._parts.mcp()
        return lambda held: held.bring(open_servers, wanted)

    def _hold(self, session: Session, bring: Callable[[Held], None]) -> Held:
        def adopt(worker: str) -> None:
            self._workers[worker] = held

        session.client = self._editor
        held = Held(session, self._parts, self._peer, self._client, self._name, adopt)
        self._held[session.id] = held
        bring(held)
        _log.info("session %s in %s", session.id, sendable(session.workspace))
        return held

    def _opened(self, held: Held) -> dict[str, Any]:
        """What an answer says of a session; its commands follow when that is on its way, as
        the client may not know the session before."""
        asyncio.get_running_loop().call_soon(held.tell_commands)
        return held.opened()

    async def _replay(self, session: Session, held: Held) -> None:
        find = partial(self._parts.runtime.dispatcher.registry.find, session=session)
        told = 0
        async for update in replayed(self._messages(session), session, find):
            held.tell(update)
            told += 1
            if told % _PAUSE == 0:
                await self._peer.drained()

    async def _messages(self, session: Session) -> AsyncIterator[Message]:
        store, seen = await self._parts.runtime.store(), 0
        while page := await store.read_messages(session.id, seen):
            seen += len(page)
            for each in page:
                yield msgspec.convert(each.body, Message)

    async def _list(self, asked: ListSessions) -> SessionList:
        cwd = asked.cwd
        if cwd is not None:
            if not cwd.startswith("/"):
                raise refused("cwd has to be absolute")
            cwd = os.path.abspath(cwd)  # as it is kept: some editors end it with a slash
        await self._parts.runtime.conversations.flush()
        store = await self._parts.runtime.store()
        try:
            page = await store.list_sessions(cwd, cursor=asked.cursor, limit=_PAGE)
        except ValueError:
            raise refused("this cursor is not one of ours") from None
        granted = self._parts.roots()
        return SessionList(
            sessions=[_info(each, granted) for each in page.sessions], next_cursor=page.cursor
        )

    async def _delete(self, asked: DeleteSession) -> None:
        with self._alone(asked.session_id):
            await self._let_go(asked.session_id)
            try:
                await self._stored(asked.session_id)
            except SessionNotFound:
                return
            await self._parts.runtime.delete_session(asked.session_id)

    async def _close(self, asked: CloseSession) -> None:
        self._of(asked.session_id)
        with self._alone(asked.session_id):
            await self._let_go(asked.session_id)

    async def _let_go(self, id: str) -> None:
        held = self._held.pop(id, None)
        if held is None:
            return
        await held.stop()  # or a prompt that is about to begin would open it once more
        await self._parts.sessions.close(id)
        await held.close()
        self._workers = {key: each for key, each in self._workers.items() if each is not held}
        _log.info("session %s closed", id)

    def _places(self, cwd: str, more: list[str] | None) -> tuple[Root, ...]:
        """The directories that a client names beside the one to work in."""
        for each in (cwd, *(more or ())):
            if not is_directory(each):
                raise refused(f"{shown(each, 200)!r} is not an absolute path of a directory")
        return tuple(Root(path, writable=True) for path in more or ())

    def _of(self, id: str) -> Held:
        self._ensure_settled(id)
        held = self._held.get(id)
        if held is None:
            raise refused(f"session not found: {shown(id)}")
        return held

    # What happens in one

    async def _prompt(self, asked: Prompt) -> Prompted:
        return await turns.prompt(self._parts, self._of(asked.session_id), asked)

    async def _set_mode(self, asked: SetMode) -> None:
        await self._change_mode(self._of(asked.session_id), asked.mode_id)

    async def _set_config_option(self, asked: SetConfigOption) -> ConfigOptionSet:
        held, value = self._of(asked.session_id), asked.value
        if asked.config_id == options.MODE:
            await self._change_mode(held, value)
        elif asked.config_id == options.MODEL and held.model is not None:
            if value not in (held.model, self._parts.model, *self._parts.models):
                raise refused("there is no such model to choose")
            agent = await turns.open_agent(self._parts, str(value))
            held.model, held.telling.window = str(value), agent.model.context_tokens
            await self._parts.runtime.conversations.set_model(held.session, str(value))
        else:
            raise refused(f"there is no option {shown(asked.config_id)}")
        return ConfigOptionSet(config_options=held.options())

    async def _change_mode(self, held: Held, wanted: object) -> None:
        mode = next((each for each in self._parts.modes if each == wanted), None)
        if mode is None:
            raise refused(f"there is no mode {shown(str(wanted))}: {_named(self._parts.modes)}")
        await self._parts.runtime.conversations.set_mode(held.session, mode)


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
