"""One session as an editor works in it: its cards, its model, its prompts and cancels."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from callgate.agent.shows import Delegated, Finished, Started
from callgate.core.content import ToolResultBlock, ToolUseBlock
from callgate.core.environment import Offered
from callgate.core.events import CALLED, COMPLETED, OUTPUT_DELTA, TERMINAL, Event
from callgate.core.sessions import Session
from callgate.core.task_sets import TaskSet
from callgate.core.turns import fair_turns
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.protocol.acp.initialize import ClientCapabilities
from callgate.protocol.acp.requests import McpServer
from callgate.protocol.acp.updates import (
    AvailableCommands,
    Command,
    CommandInput,
    ConfigOptions,
    CurrentMode,
    SessionUpdate,
    ToolCall,
    ToolCallUpdate,
    Update,
)
from callgate.protocol.acp.values import SESSION_UPDATE, ToolFields
from callgate.protocol.ndjson import Unsendable
from callgate.runtime import Registered
from callgate.sessions.session_turn import SessionTurn
from callgate.surfaces.acp import options, permissions
from callgate.surfaces.acp.cards import Cards
from callgate.surfaces.acp.contents import kind_of, locations_of
from callgate.surfaces.acp.dependencies import Dependencies, OpenServers, Servers
from callgate.surfaces.acp.editor import EditorFiles, EditorTerminals
from callgate.surfaces.acp.peer import Peer
from callgate.surfaces.acp.telling import Telling

_HINT = CommandInput(hint="additional context (optional)")
_WORKER = "sub-agent: "
_PATIENCE_S = 5.0
"""How long a prompt that was cancelled may take until it is known whether it had begun."""
_IN_FLIGHT_S = 0.05
"""How long a cancelled prompt is not answered: further cancels of it may be on their way."""
_BARE: dict[str, Any] = {"name": None, "raw_input": None, "content": [], "meta": None}
_log = logging.getLogger("callgate.acp")


class EditorSession:
    def __init__(
        self,
        session: Session,
        dependencies: Dependencies,
        peer: Peer,
        client: ClientCapabilities,
        name: str,
        adopted: Callable[[str], None],
    ) -> None:
        """`name` is the editor's, under which its answers are recorded; `adopted` hears of each
        session that works for this one and has asked something."""
        self.session = session
        self.model = dependencies.model
        self._dependencies = dependencies
        self._peer = peer
        self._name = name
        self._find = partial(dependencies.runtime.find_tool, session=session)
        self.cards = Cards(session, self._find, self.tell, shows_output=client.shows_output)
        self.telling = Telling(
            self.cards, client, self.tell, self._mode_changed, self._worker_shows
        )
        self._delegated: set[str] = set()
        """The calls of sub-agents whose result is shown when they end."""
        self._adopted = adopted
        self._servers: Servers | None = None
        self._notes: list[str] = []
        """What the user is to be told as soon as that can be."""
        self._is_known = False
        """The editor knows that there is such a session."""
        self._shows_notices = client.shows_notices
        self._turns = dependencies.runtime.turns
        self._latched_until = 0.0
        self._answering = 0
        """Prompts that have begun and are not answered."""
        self._tasks = TaskSet(_log, "work for an editor failed")
        self._given = ExitStack()
        self._given.enter_context(dependencies.runtime.attach(self._confirm, session.id))
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
            withdraw = self._dependencies.runtime.offer_environment(id, Offered(files, terminals))
            self._given.callback(withdraw)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)

    def bring(self, open_servers: OpenServers, wanted: Sequence[McpServer]) -> None:
        """Have MCP servers in this session, as long as it is held."""
        self._servers = open_servers(self.session, wanted, self._note)

    async def settled(self, turn: SessionTurn) -> bool:
        """Wait a little for MCP servers that are being started; False if the turn that waits
        for them was cancelled."""
        if self._servers is not None and not turn.is_cancelled:
            await self._servers.settled()
        return not turn.is_cancelled

    async def close(self) -> None:
        """Nothing more is told or asked of this session, and what it brought has ended."""
        self._given.close()
        self.cards.close("The session was closed.")
        if self._servers is not None:
            await self._servers.close()

    # What the editor is told

    def tell(self, update: Update) -> None:
        try:
            self._notify(update)
        except Unsendable as error:
            _log.warning("an update of %s cannot be sent whole: %s", self.session.id, error)
            if isinstance(update, ToolCall | ToolCallUpdate):  # a card without it has no end
                self._notify(msgspec.structs.replace(update, **_BARE))

    def _notify(self, update: Update) -> None:
        self._peer.notify(SESSION_UPDATE, SessionUpdate(session_id=self.session.id, update=update))

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._tell_notes()

    def _tell_notes(self) -> None:
        """An editor that shows no notices is told in words, which only a prompt may be answered
        with."""
        if self._is_known and (self._shows_notices or self.is_busy):
            notes, self._notes = self._notes, []
            for note in notes:
                self.telling.advise(note)

    def tell_commands(self) -> None:
        """What can be asked for with a slash, as it is now."""
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
        """What the answers to new, load and resume say of a session."""
        dependencies, mode = self._dependencies, self.session.mode
        return {"modes": options.modes(dependencies.modes, mode), "config_options": self.options()}

    def options(self) -> list[Any]:
        dependencies = self._dependencies
        return options.config_options(
            dependencies.modes, self.session.mode, dependencies.models, self.model
        )

    def _mode_changed(self) -> None:
        self.tell(CurrentMode(current_mode_id=self.session.mode))
        self.tell(ConfigOptions(config_options=self.options()))

    def happened(self, event: Event) -> None:
        """An event of this session, or of one that works for it."""
        if event.session_id == self.session.id:
            self.telling.happened(event)
        else:
            self._worker_did(event)

    def _worker_shows(self, show: Delegated) -> None:
        """Of what a sub-agent does, changes of files have a card, and what a person is asked."""
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
        elif event.type in TERMINAL and id not in self._delegated:  # a call that a tool makes
            failed = event.type != COMPLETED or event.payload.get("success") is False
            self.cards.finished(ToolResultBlock(tool_use_id=id, content=[], is_error=failed))

    # What the person is asked

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
            content=permissions.content_of(question, self._dependencies.longest_arguments),
            locations=locations_of(tool, arguments, self.session.workspace),
            raw_input=arguments,
        )
        return await permissions.ask(
            self._peer, self.session.id, question, fields, self._cancel_turn, self._name
        )

    # Prompts and cancels

    @property
    def is_busy(self) -> bool:
        return self._turns.running(self.session.id) is not None

    def reserve_turn(self) -> SessionTurn | None:
        """A prompt has come: its turn. None if a cancel was quicker."""
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
            await fair_turns().pause()  # behind input that was read and not parsed yet
            await self._peer.taken()

    def cancel(self) -> None:
        """Stop the prompt in progress; without one, the next prompt that comes soon."""
        if self.is_busy:
            self._cancel_turn()
        elif not self._answering:
            self._latched_until = _now() + self._dependencies.latch_s

    def _cancel_turn(self) -> None:
        self._turns.cancel(self.session.id)

    async def stop(self) -> None:
        """Cancel the prompt under way, and wait for its end. One that has not begun yet may wait
        for something else, and will not begin."""
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
