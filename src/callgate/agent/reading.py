"""A model's reply as it arrives: shown, and read as the calls it wants."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from callgate.agent.batch import Batch
from callgate.agent.outputs import Outputs
from callgate.agent.wanted import Wanted, from_found, from_reply, uses
from callgate.core.content import TextBlock, ToolUseBlock
from callgate.core.messages import MessageBlock
from callgate.core.models import Reply
from callgate.protocol import strict_json
from callgate.protocol.toolcalls.find import document_start, is_attempt, is_wrapped, unfenced
from callgate.protocol.toolcalls.parse import parse
from callgate.protocol.toolcalls.stream import CallStream
from callgate.protocol.toolcalls.values import FoundCall, Parsed, error_text, note_text


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply."""

    content: list[MessageBlock]
    """What the conversation keeps of it."""
    wanted: list[Wanted]
    ends: bool
    """It is the last of its turn, once its calls have run."""
    complaints: tuple[str, ...] = ()
    """What could not be read; the model is told."""
    lost: bool = False
    """A call is among what could not be read, beside others that could; or there is none at all."""
    diagnostics: tuple[str, ...] = ()


class Reading(Protocol):
    """One attempt at a reply."""

    batch: Batch

    def text(self, piece: str) -> None: ...
    def so_far(self) -> str:
        """What the user has seen of it."""
        ...

    def finish(self, reply: Reply) -> Read: ...


class NativeReading:
    """Text is what the model says; its calls come beside it. A small model may write them into
    its text all the same."""

    def __init__(self, outputs: Outputs, batch: Batch, types: Collection[str]) -> None:
        """`types` of calls that are looked for in the text."""
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
                self._outputs.void("The reply is another one than was shown.")
                seen = ""
            self._outputs.chat(text, shown=len(seen))
        ends = not wanted or any(each.use.name == "end_turn" for each in wanted)
        return Read(content=content, wanted=wanted, ends=ends)

    def _written(self, text: str) -> Read | None:
        """A call in a fence or a tag: read and marked, or answered. Other JSON is words here."""
        start = document_start(text) if self._types else None
        if start is None or not is_wrapped(text, start):
            return None
        parsed = parse(text, types=self._types)
        if all(error.rule == "no_calls" for error in parsed.errors) and not parsed.calls:
            return None
        wanted = [msgspec.structs.replace(from_found(call), repaired=True) for call in parsed.calls]
        self._outputs.void("The reply is a call.")
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
    """The text is the calls, and what they show is all that the user sees."""

    def __init__(self, outputs: Outputs, batch: Batch, types: Collection[str]) -> None:
        self.batch = batch
        self._outputs = outputs
        self._stream = CallStream(types=types)
        self._received = False
        """Some of the text."""
        self._early: dict[int, Wanted] = {}
        """By their place in the text."""
        self._texts: list[str] = []
        """What the user saw whole."""
        self._shown: dict[int | None, list[str]] = {}
        """What the user saw of texts that were not complete, by their place; None: of prose."""

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
        """How many characters of a text the user has seen, now that it is complete."""
        return sum(map(len, self._shown.pop(index, ())))

    def _last_word(self, found: FoundCall) -> Wanted:
        """The call as the whole text has it; under its id if it was known before."""
        wanted, early = from_found(found), self._early.get(found.index)
        if early is None or (early.use.name, early.use.input) != (found.type, found.parameters):
            return wanted
        return msgspec.structs.replace(wanted, use=early.use)

    def finish(self, reply: Reply) -> Read:
        text = "".join(b.text for b in reply.message.content if isinstance(b, TextBlock))
        if not self._received:  # a server that sends all of it at the end
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
    """A document without calls: nothing is left to do, but the model is told of it first."""
    notes = (*diagnostics, _IMPLICIT)
    return Read(
        content=content, wanted=[], ends=True, complaints=(_EMPTY,), lost=True, diagnostics=notes
    )


def _is_prose(text: str, parsed: Parsed) -> bool:
    """Words for the user, rather than an attempt at calls."""
    if not parsed.text or any(error.rule != "no_calls" for error in parsed.errors):
        return False
    if "toolCalls" in text or is_attempt(text):
        return False
    try:
        strict_json.loads(unfenced(text))
    except strict_json.StrictJsonError:
        return True
    return False
