"""One session in an editor: its cards, its model, its prompts and cancels."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from callgate.core.content import ToolResultBlock, ToolUseBlock
from callgate.core.events import CALLED, COMPLETED, OUTPUT_DELTA, TERMINAL, Event
from callgate.core.local.environment import Offered
from callgate.core.sessions import Mode, Root, Session
from callgate.core.tasks import TaskSet
from callgate.core.turns import fair_turns
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.features.chat.live_sessions import LiveSessions
from callgate.features.editor import contents, editor
from callgate.features.editor.cards import Cards, Telling
from callgate.features.editor.contents import kind_of, locations_of
from callgate.features.editor.editor import EditorFiles, EditorTerminals
from callgate.features.editor.peer import EditorPeer
from callgate.protocol.acp.initialize import ClientCapabilities
from callgate.protocol.acp.requests import McpServer
from callgate.protocol.acp.updates import (
    SESSION_UPDATE,
    AvailableCommands,
    Command,
    CommandInput,
    ConfigOptions,
    CurrentMode,
    SessionUpdate,
    ToolCall,
    ToolCallUpdate,
    ToolFields,
    Update,
)
from callgate.protocol.strict_json import Unsendable
from callgate.runtime import Registered, Runtime
from callgate.sessions.session_turns import SessionTurn
from callgate.sessions.shows import Delegated, Finished, Started
from callgate.sources.skills import Skills


class Servers(Protocol):
    """The MCP servers that an editor named for one session, from their start to their end."""

    async def settled(self) -> None:
        """Wait a short time for starting servers."""
        ...

    def hurry(self) -> None:
        """End the waits of `settled`."""
        ...

    async def close(self) -> None: ...


OpenServers = Callable[[Session, Sequence[McpServer], Callable[[str], None]], Servers]
"""Starts MCP servers, and passes on notices for the user."""


class Dependencies(NamedTuple):
    runtime: Runtime
    sessions: LiveSessions
    skills: Skills
    modes: tuple[Mode, ...]
    """Enabled modes, the narrowest first."""
    mode: Mode
    """The initial mode of sessions."""
    model: str | None
    """The default or the requested model."""
    models: list[str]
    """Models of the settings."""
    roots: Callable[[], tuple[Root, ...]]
    """Roots that the settings grant in addition to every workspace."""
    forget_key: Callable[[], None]
    """Deletes the stored key of the default model."""
    latch_s: float
    """Seconds during which a cancel without a turn applies to the next prompt."""
    longest_arguments: int
    """Maximum number of characters of the arguments in a question."""
    unstable: bool
    mcp: Callable[[], Awaitable[OpenServers]]
    """Loads the code that starts MCP servers in a session."""
    close: Callable[[], Awaitable[None]]
    """Closes the runtime."""


_HINT = CommandInput(hint="additional context (optional)")
_WORKER = "sub-agent: "
_PATIENCE_S = 5.0
"""Time limit for a cancelled prompt to end."""
_IN_FLIGHT_S = 0.05
"""Delay of the answer to a cancelled prompt, because further cancels of it may be in flight."""
_BARE: dict[str, Any] = {"name": None, "raw_input": None, "content": [], "meta": None}
_log = logging.getLogger("callgate.acp")


class EditorSession:
    def __init__(
        self,
        session: Session,
        dependencies: Dependencies,
        peer: EditorPeer,
        client: ClientCapabilities,
        name: str,
        adopted: Callable[[str], None],
    ) -> None:
        """`name` is the editor's name in the record of its answers; `adopted` receives each
        sub-agent session that needs cards here.
        """
        self.session = session
        self.model = dependencies.model
        self._dependencies = dependencies
        self._peer = peer
        self._name = name
        self._find = partial(dependencies.runtime.tools.find, session=session)
        self.cards = Cards(session, self._find, self.tell, shows_output=client.shows_output)
        self.telling = Telling(
            self.cards, client, self.tell, self._mode_changed, self._worker_shows
        )
        self._delegated: set[str] = set()
        """Running calls of sub-agents, whose results are shown when they end."""
        self._adopted = adopted
        self._servers: Servers | None = None
        self._notes: list[str] = []
        """Notices for the user that are not sent yet."""
        self._is_known = False
        """Whether the editor knows the session."""
        self._shows_notices = client.shows_notices
        self._turns = dependencies.runtime.sessions.turns
        self._latched_until = 0.0
        self._answering = 0
        """Number of unanswered prompts."""
        self._tasks = TaskSet(_log, "work for an editor failed")
        self._given = ExitStack()
        self._given.enter_context(dependencies.runtime.permission.attach(self._confirm, session.id))
        self._offer(client)

    def _offer(self, client: ClientCapabilities) -> None:
        id, files = self.session.id, None
        if client.reads_files or client.writes_files:
            files = EditorFiles(
                self._peer, id, reads=client.reads_files, writes=client.writes_files
            )
        terminals = None
        if client.has_terminals:
            terminals = EditorTerminals(self._peer, id, self.cards.terminal, self._start_task)
        if files is not None or terminals is not None:
            withdraw = self._dependencies.runtime.sessions.offer_environment(
                id, Offered(files, terminals)
            )
            self._given.callback(withdraw)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)

    def bring(self, open_servers: OpenServers, wanted: Sequence[McpServer]) -> None:
        """Start MCP servers in this session; they run until it is closed."""
        self._servers = open_servers(self.session, wanted, self._note)

    async def settled(self, turn: SessionTurn) -> bool:
        """Wait a short time for starting MCP servers. False if the turn was cancelled."""
        if self._servers is not None and not turn.is_cancelled:
            await self._servers.settled()
        return not turn.is_cancelled

    async def close(self) -> None:
        """Close the cards, the MCP servers and the registrations of this session."""
        self._given.close()
        self.cards.close("The session was closed.")
        if self._servers is not None:
            await self._servers.close()

    # Updates to the editor

    def tell(self, update: Update) -> None:
        try:
            self._notify(update)
        except Unsendable as error:
            _log.warning("an update of %s cannot be sent whole: %s", self.session.id, error)
            # without it, the card would stay open
            if isinstance(update, ToolCall | ToolCallUpdate):
                self._notify(msgspec.structs.replace(update, **_BARE))

    def _notify(self, update: Update) -> None:
        self._peer.notify(SESSION_UPDATE, SessionUpdate(session_id=self.session.id, update=update))

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._tell_notes()

    def _tell_notes(self) -> None:
        """Send the pending notices. An editor without notices gets them as messages, which are
        only allowed during a prompt.
        """
        if self._is_known and (self._shows_notices or self.is_busy):
            notes, self._notes = self._notes, []
            for note in notes:
                self.telling.advise(note)

    def tell_commands(self) -> None:
        """Send the list of slash commands."""
        self._is_known = True
        self._tell_notes()
        skills = self._dependencies.skills.available(self.session)
        commands = [
            Command(name=skill.name, description=skill.description, input=_HINT) for skill in skills
        ]
        tool = Command(
            name="tool",
            description="Make one call yourself, without a model.",
            input=CommandInput(hint='NAME {"argument": "value"}'),
        )
        self.tell(AvailableCommands(available_commands=[*commands, tool]))

    def opened(self) -> dict[str, Any]:
        """Return the fields about the session for the answers to new, load and resume."""
        dependencies, mode = self._dependencies, self.session.mode
        return {"modes": contents.modes(dependencies.modes, mode), "config_options": self.options()}

    def options(self) -> list[Any]:
        dependencies = self._dependencies
        return contents.config_options(
            dependencies.modes, self.session.mode, dependencies.models, self.model
        )

    def _mode_changed(self) -> None:
        self.tell(CurrentMode(current_mode_id=self.session.mode))
        self.tell(ConfigOptions(config_options=self.options()))

    def happened(self, event: Event) -> None:
        """Send the update for an event of this session or its sub-agents."""
        if event.session_id == self.session.id:
            self.telling.happened(event)
        else:
            self._worker_did(event)

    def _worker_shows(self, show: Delegated) -> None:
        """Show the calls of sub-agents that change files. `_confirm` shows their questions."""
        match show.show:
            case Started(use=use):
                self._delegated.add(use.id)
                if _changes_files(self._find(use.name)):
                    self._adopted(show.session)
                    self.cards.started(use, prefix=_WORKER)
            case Finished(result=result, value=value):
                self._delegated.discard(result.tool_use_id)
                self.cards.finished(result, value)

    def _worker_did(self, event: Event) -> None:
        id = str(event.payload.get("tool_use_id"))
        if event.type in (CALLED, OUTPUT_DELTA):
            self.telling.happened(event)
        elif event.type in TERMINAL and id not in self._delegated:  # a call within a tool
            failed = event.type != COMPLETED or event.payload.get("success") is False
            self.cards.finished(ToolResultBlock(tool_use_id=id, content=[], is_error=failed))

    # Approvals

    async def _confirm(self, question: Confirmation) -> Answer:
        prefix = ""
        if question.session_id != self.session.id:
            self._adopted(question.session_id)
            prefix = _WORKER
        arguments = dict(question.arguments)
        use = ToolUseBlock(id=question.tool_use_id, name=question.tool, input=arguments)
        self.cards.started(use, prefix=prefix)
        tool = self._find(question.tool)
        fields = ToolFields(
            tool_call_id=use.id,
            title=self.cards.title(use.id),
            kind=kind_of(tool),
            status="pending",
            content=editor.content_of(question, self._dependencies.longest_arguments),
            locations=locations_of(tool, arguments, self.session.workspace),
            raw_input=arguments,
        )
        return await editor.ask(
            self._peer, self.session.id, question, fields, self._cancel_turn, self._name
        )

    # Prompts and cancels

    @property
    def is_busy(self) -> bool:
        return self._turns.running(self.session.id) is not None

    def reserve_turn(self) -> SessionTurn | None:
        """Reserve the turn of a new prompt. None if a cancel came before it."""
        latched, self._latched_until = _now() < self._latched_until, 0.0
        return None if latched else self._turns.reserve(self.session, stop=self._hurry)

    def _hurry(self) -> bool:
        if self._servers is not None:
            self._servers.hurry()
        return True

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count the cancels that come before a prompt is answered as cancels of this prompt."""
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1

    async def cancels_received(self, turn: SessionTurn) -> None:
        """Keep a cancelled turn open until the further cancels of it have come: an editor may send
        several, and the first of them may end the work immediately."""
        if turn.is_stopped_by_user:
            await asyncio.sleep(_IN_FLIGHT_S)
            await fair_turns().pause()  # after input that is read and not yet parsed
            await self._peer.taken()

    def cancel(self) -> None:
        """Cancel the running prompt; without one, cancel the next prompt that starts soon."""
        if self.is_busy:
            self._cancel_turn()
        elif not self._answering:
            self._latched_until = _now() + self._dependencies.latch_s

    def _cancel_turn(self) -> None:
        self._turns.cancel(self.session.id)

    async def stop(self) -> None:
        """Cancel the running prompt and wait for its end. A prompt that has not started yet will
        not start, so the wait for it is limited.
        """
        turn = self._turns.running(self.session.id)
        if turn is not None:
            turn.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await turn.over()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _changes_files(tool: Registered | None) -> bool:
    return tool is not None and tool.definition.kind in ("edit", "delete", "move")


def is_directory(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path and os.path.isdir(path)
