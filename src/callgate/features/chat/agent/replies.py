"""A model's reply: its text and calls are parsed while it arrives, and its calls run in this order:

    outputs        immediately, at their position in the reply
    no effects     concurrently, as soon as each is parsed
    with effects   after the reply is complete: one after another, by priority
    sub-agents     after the reply is complete, concurrently: their calls may have effects

A call without effects does not overtake an earlier call with effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import MessageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.errors import ToolCancelled, ToolError, ToolParseError
from callgate.core.ids import EXTERNAL_ID
from callgate.core.models import Reply
from callgate.core.sessions import Session
from callgate.core.tasks import start_task
from callgate.dispatch.journal import LEFT_OPEN
from callgate.features.chat.agent.outputs import (
    Outputs,
    Wanted,
    from_found,
    from_reply,
    in_order,
    uses,
)
from callgate.features.chat.agent.prompts import result_block
from callgate.protocol import strict_json
from callgate.protocol.toolcalls.find import document_start, is_attempt, is_wrapped, unfenced
from callgate.protocol.toolcalls.parse import parse
from callgate.protocol.toolcalls.stream import CallStream
from callgate.protocol.toolcalls.values import FoundCall, Parsed, error_text, note_text
from callgate.runtime import Runtime
from callgate.sessions.shows import SPAWN_AGENT, Finished, Screen, Started

Done = Callable[[ToolResultBlock], None]
_Running = asyncio.Task[ToolResultBlock | None]
"""A running call. Its result is None if the call stays open."""


class LeftOpen(Exception):
    """The runtime shuts down while a call waits for approval. The turn continues when it is
    resumed.
    """


class Batch:
    def __init__(
        self,
        runtime: Runtime,
        session: Session,
        caller: CallerKind,
        outputs: Outputs,
        screen: Screen,
        *,
        room: int,
        parent: str | None = None,
    ) -> None:
        """`room` is the number of calls that may run; `parent` is the event that they follow."""
        self._calls = runtime.calls
        self._find_tool = runtime.tools.find
        self._session = session
        self._caller = caller
        self._outputs = outputs
        self._screen = screen
        self._room = room
        self.parent = parent
        self._holding = False
        """Whether a call waits for the end of the reply; later calls wait too."""
        self._tasks: dict[str, _Running] = {}
        self._results: dict[str, ToolResultBlock] = {}
        self._untold: list[ToolResultBlock] = []
        self.refused = 0
        """Number of calls refused by the limits of the turn."""

    @property
    def ran(self) -> int:
        return len(self._tasks)

    def has_failed(self, wanted: Sequence[Wanted]) -> bool:
        """Whether one of these calls was refused, invalid or failed. Outputs do not count."""
        some = (self._results.get(each.use.id) for each in wanted if not each.is_output)
        return any(result is not None and result.is_error for result in some)

    def offer(self, wanted: Wanted, *, shown: int = 0) -> None:
        """Start a call during the reply if its order permits. The user has already seen the first
        `shown` characters of an output.
        """
        if wanted.is_output:
            self._answer(self._outputs.show(wanted, shown=shown))
        elif self._holding or wanted.problem is not None or self._must_wait(wanted):
            self._holding = True
        elif self._room > 0:
            self._start(wanted)

    async def finish(self, wanted: Sequence[Wanted], done: Done) -> None:
        """Run the calls of a complete reply that have not run yet.

        `done` receives each result as soon as it exists. A cancellation stops the running calls
        and refuses the others, so that every call has a result.
        """
        ordered = in_order(wanted)
        try:
            for each in ordered:
                self._tell(done)
                if each.use.id not in self._tasks and each.use.id not in self._results:
                    await self._run(each)
            await self._ended()
        except asyncio.CancelledError:
            await self._stop()
            for each in ordered:
                if each.use.id not in self._tasks and each.use.id not in self._results:
                    self._refuse(each, ToolCancelled())
            raise
        finally:
            self._tell(done)
        if any(_is_left_open(task) for task in self._tasks.values()):
            raise LeftOpen

    async def void(self) -> None:
        """Stop the calls of a reply that was discarded."""
        await self._stop()

    async def _run(self, wanted: Wanted) -> None:
        if wanted.is_output:
            self._answer(self._outputs.show(wanted))
        elif wanted.problem is not None:
            self._refuse(wanted, ToolParseError(wanted.problem))
        elif self._room <= 0:
            self.refused += 1
            self._refuse(wanted, ToolCancelled(_NO_ROOM, reason="turn_limit"))
            await asyncio.sleep(0)  # yields to other sessions: a reply may have thousands of calls
        elif self._has_effects(wanted):
            await self._ended()
            self._start(wanted)
            await self._ended()
        else:
            self._start(wanted)

    def _start(self, wanted: Wanted) -> None:
        self._room -= 1
        self._screen(Started(wanted.use))
        work = self._dispatched(self._call(wanted))
        self._tasks[wanted.use.id] = start_task(work)

    async def _dispatched(self, call: ToolCall) -> ToolResultBlock | None:
        result = await self._calls.run(call)
        if result.error is not None and result.error.reason == LEFT_OPEN:
            return None
        block = result_block(result, call.id)
        self._screen(Finished(block, result.value))
        return block

    def _refuse(self, wanted: Wanted, error: ToolError) -> None:
        self._screen(Started(wanted.use))
        block = self._calls.refuse(self._call(wanted), error).block(wanted.use.id)
        self._screen(Finished(block))
        self._answer(block)

    def _answer(self, result: ToolResultBlock) -> None:
        self._results[result.tool_use_id] = result
        self._untold.append(result)

    def _call(self, wanted: Wanted) -> ToolCall:
        use = wanted.use
        external = use.external_id
        return ToolCall(
            id=use.id,
            external_id=external if external and EXTERNAL_ID.match(external) else None,
            tool=use.name,
            arguments=use.input,
            session=self._session,
            caller=self._caller,
            turn_id=self._session.turn_id,
            parent_event_id=self.parent,
            repaired=wanted.repaired,
        )

    def _has_effects(self, wanted: Wanted) -> bool:
        tool = self._find_tool(wanted.use.name, self._session)
        return tool is not None and tool.has_effects

    def _must_wait(self, wanted: Wanted) -> bool:
        """Whether the call must wait for the end of the reply, because its effect cannot be undone
        if the reply is discarded.
        """
        tool = self._find_tool(wanted.use.name, self._session)
        return tool is not None and (tool.has_effects or tool.name == SPAWN_AGENT)

    async def _ended(self) -> None:
        """Wait for the end of all started calls."""
        running = [task for task in self._tasks.values() if not task.done()]
        if running:
            await asyncio.wait(running)

    async def _stop(self) -> None:
        running = [id for id, task in self._tasks.items() if not task.done()]
        await asyncio.gather(*map(self._calls.cancel, running))
        await self._ended()

    def _tell(self, done: Done) -> None:
        for id, task in self._tasks.items():
            if task.done() and id not in self._results and (block := task.result()) is not None:
                self._answer(block)
        untold, self._untold = self._untold, []
        for result in untold:
            done(result)


_NO_ROOM = "Not run: this turn has reached its limit of calls."


def _is_left_open(task: _Running) -> bool:
    return not task.cancelled() and task.exception() is None and task.result() is None


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A complete reply."""

    content: list[MessageBlock]
    """The blocks for the conversation."""
    wanted: list[Wanted]
    ends: bool
    """Whether the reply ends the turn after its calls have run."""
    complaints: tuple[str, ...] = ()
    """Parse errors, which are reported to the model."""
    lost: bool = False
    """Whether a call was lost: one call is unreadable and others are not, or there is no call at
    all.
    """
    diagnostics: tuple[str, ...] = ()


class Reading(Protocol):
    """One attempt at a reply."""

    batch: Batch

    def text(self, piece: str) -> None: ...
    def so_far(self) -> str:
        """Return the text that the user has seen."""
        ...

    def finish(self, reply: Reply) -> Read: ...


class NativeReading:
    """Reads a reply with native calls: its text is chat. A small model may still write calls into
    its text.
    """

    def __init__(self, outputs: Outputs, batch: Batch, types: Collection[str]) -> None:
        """`types` are the calls that are recognized in the text."""
        self.batch = batch
        self._outputs = outputs
        self._types = types
        self._texts: list[str] = []

    def text(self, piece: str) -> None:
        self._texts.append(piece)
        self._outputs.piece(piece)

    def so_far(self) -> str:
        return "".join(self._texts)

    def finish(self, reply: Reply) -> Read:
        wanted = from_reply(reply)
        ours = iter(uses(wanted))
        content = [
            next(ours) if isinstance(block, ToolUseBlock) else block
            for block in reply.message.content
        ]
        text = "".join(block.text for block in content if isinstance(block, TextBlock))
        if not wanted and (written := self._written(text)) is not None:
            return written
        if text.strip():
            seen = self.so_far()
            if not text.startswith(seen):
                self._outputs.void("The final reply differs from the streamed text.")
                seen = ""
            self._outputs.chat(text, shown=len(seen))
        ends = not wanted or any(each.use.name == "end_turn" for each in wanted)
        return Read(content=content, wanted=wanted, ends=ends)

    def _written(self, text: str) -> Read | None:
        """Parse calls in a fence or a tag, and mark them as repaired. All other JSON is chat."""
        start = document_start(text) if self._types else None
        if start is None or not is_wrapped(text, start):
            return None
        parsed = parse(text, types=self._types)
        if all(error.rule == "no_calls" for error in parsed.errors) and not parsed.calls:
            return None
        wanted = [msgspec.structs.replace(from_found(call), repaired=True) for call in parsed.calls]
        self._outputs.void("The text of the reply is a call.")
        if parsed.text and wanted:
            self._outputs.chat(parsed.text)
        ends = any(each.use.name == "end_turn" for each in wanted)
        return Read(
            content=list(uses(wanted)) or [TextBlock(text)],
            wanted=wanted,
            ends=ends,
            complaints=tuple(map(error_text, parsed.errors)),
            lost=bool(wanted and parsed.errors),
            diagnostics=tuple(map(note_text, parsed.diagnostics)),
        )


class TextReading:
    """Reads a reply whose text contains the calls. The user sees only the outputs of
    these calls.
    """

    def __init__(self, outputs: Outputs, batch: Batch, types: Collection[str]) -> None:
        self.batch = batch
        self._outputs = outputs
        self._stream = CallStream(types=types)
        self._received = False
        """Whether a part of the text has arrived."""
        self._early: dict[int, Wanted] = {}
        """Calls that were parsed before the end of the reply, by position."""
        self._texts: list[str] = []
        """Complete texts that the user has seen."""
        self._shown: dict[int | None, list[str]] = {}
        """Incomplete texts that the user has seen, by position; None: of prose."""

    def text(self, piece: str) -> None:
        self._received = True
        for found in self._stream.push(piece):
            wanted = self._early[found.index] = from_found(found)
            self._see()
            self.batch.offer(wanted, shown=self._seen(found.index))
            if found.type == "send_chat":
                self._texts.append(f"{found.parameters.get('content')}\n")
        self._see()

    def _see(self) -> None:
        for delta in self._stream.shown():
            self._shown.setdefault(delta.index, []).append(delta.text)
            self._outputs.piece(delta.text)

    def so_far(self) -> str:
        partly = (text for texts in self._shown.values() for text in texts)
        return "".join([*self._texts, *partly])

    def _seen(self, index: int | None) -> int:
        """Return how many characters of a text, now complete, the user has seen."""
        return sum(map(len, self._shown.pop(index, ())))

    def _last_word(self, found: FoundCall) -> Wanted:
        """Return the call of the complete text, with the id of its earlier parse if it is
        unchanged.
        """
        wanted, early = from_found(found), self._early.get(found.index)
        if early is None or (early.use.name, early.use.input) != (found.type, found.parameters):
            return wanted
        return msgspec.structs.replace(wanted, use=early.use)

    def finish(self, reply: Reply) -> Read:
        text = "".join(b.text for b in reply.message.content if isinstance(b, TextBlock))
        if not self._received:  # the server sent the complete text at the end
            self.text(text)
        parsed = self._stream.finish()
        complaints = tuple(map(error_text, parsed.errors))
        diagnostics = tuple(map(note_text, parsed.diagnostics))
        wanted = list(map(self._last_word, parsed.calls))
        if parsed.truncated and not (wanted or complaints):
            complaints = ("Failed to parse JSON: the reply ended before its document did",)
        content: list[MessageBlock] = list(uses(wanted))
        if not wanted:
            content = [TextBlock(text)] if text else []
            if _is_prose(text, parsed):
                complaints = ()
                diagnostics += (_IMPLICIT,)
                self._outputs.chat(parsed.text, shown=self._seen(None))
            elif not text.strip():
                complaints, diagnostics = (), (_IMPLICIT,)
            elif not complaints:
                return _empty(content, diagnostics)
        ends = any(each.use.name == "end_turn" for each in wanted)
        return Read(
            content=content,
            wanted=wanted,
            ends=ends or not (wanted or complaints),
            complaints=complaints,
            lost=bool(wanted) and any(error.rule != "second_end" for error in parsed.errors),
            diagnostics=diagnostics,
        )


_IMPLICIT = "implicit_end_turn: a reply without calls ends the turn"


_EMPTY = "Invalid tool call: the list toolCalls is empty; end_turn ends the turn"


def _empty(content: list[MessageBlock], diagnostics: tuple[str, ...]) -> Read:
    """Return the reading of a document without calls: it ends the turn, after the model was
    notified.
    """
    notes = (*diagnostics, _IMPLICIT)
    return Read(
        content=content, wanted=[], ends=True, complaints=(_EMPTY,), lost=True, diagnostics=notes
    )


def _is_prose(text: str, parsed: Parsed) -> bool:
    """Whether the text is addressed to the user, and not an attempt at calls."""
    if not parsed.text or any(error.rule != "no_calls" for error in parsed.errors):
        return False
    if "toolCalls" in text or is_attempt(text):
        return False
    try:
        strict_json.loads(unfenced(text))
    except strict_json.StrictJsonError:
        return True
    return False
