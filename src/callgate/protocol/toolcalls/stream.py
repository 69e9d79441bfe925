"""Calls while the text arrives: each is returned as soon as its own object closes.

    head  ->  between  <->  inside a call        anything unexpected -> waiting
    up to [   , or ]        brackets, strings    (for the end of the text)

`push` returns calls early only while the text so far has the documented form; a text that needs
repair waits for `finish`, which returns the result of `parse` for the whole text. That result is
final: a document may still turn out to be truncated, in need of repair, or refused. So only calls
without effects may run before it.

`shown` returns text that the user may read before that: messages as they are written, and words
before the first document. It never causes a call.

Time is linear in the length of the text for any sizes of chunks, and the stream stores no more of
it than `parse` would read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from callgate.protocol import strict_json
from callgate.protocol.toolcalls import find
from callgate.protocol.toolcalls.find import Prose
from callgate.protocol.toolcalls.parse import Unfit, judge, parse, too_long
from callgate.protocol.toolcalls.preview import BEFORE, SHOWN_TYPE, STRING, Preview, is_silent
from callgate.protocol.toolcalls.values import (
    MAX_BYTES,
    MAX_DEPTH,
    TYPES,
    ContentDelta,
    FoundCall,
    Parsed,
)

_WS = r"[ \t\r\n]*"
_HEAD = re.compile(rf'\s*\ufeff*\s*(?:```(?:json)?)?\s*\{{{_WS}"toolCalls"{_WS}:{_WS}\[')
_TAIL = re.compile(rf"{_WS}\]{_WS}\}}{_WS}(?:```)?{_WS}")
_LONGEST_HEAD = _LONGEST_TAIL = 256
_SPACE = re.compile(_WS)
_COMMA = re.compile(rf"{_WS},")
_FLAT = re.compile(rf'[^"{{}}\[\]]*(?:"{STRING.pattern}"[^"{{}}\[\]]*)*', re.DOTALL)
"""Text that opens and closes no bracket, with whole strings."""


def _nested(levels: int) -> str:
    """Build a pattern for text between two brackets, with nested brackets up to some levels."""
    inner = rf"(?:[{{\[]{_nested(levels - 1)}[}}\]]{_FLAT.pattern})*" if levels else ""
    return _FLAT.pattern + inner


_COMPLETE_CALL = re.compile(rf"\{{{_nested(4)}\}}", re.DOTALL)
"""A complete call of limited depth."""
_AROUND = 2
"""Bracket levels around a call."""

_State = Literal["head", "between", "call", "tail", "waiting"]


class CallStream:
    """One reply as it arrives."""

    def __init__(
        self,
        *,
        strict: bool = False,
        types: Collection[str] = TYPES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._strict = strict
        self._types = types
        self._max_bytes = max_bytes
        self._room = max_bytes
        self._chunks: list[str] = []
        self._state: _State = "head"
        self._head = ""
        self._tail = ""
        self._comma = False
        """Whether a comma must come before the next call."""
        self._call: list[str] = []
        """The pieces of the incomplete call that were examined."""
        self._unread: list[str] = []
        """The pieces after them: without a closing brace they cannot end it."""
        self._depth = 0
        self._in_string = self._escaped = False
        """Whether the examined pieces end in a string, and with the backslash of an escape."""
        self._calls: list[FoundCall] = []
        self._count = 0
        self._mended = False
        """Whether something was repaired: calls are then not returned early, but texts are
        visible."""
        self._ids: set[str] = set()
        self._ended = False
        self._before = 0
        """Minimum characters before this call has visible text."""
        self._preview: Preview | None = None
        self._prose: Prose | None = None if strict else Prose()
        self._shown: list[ContentDelta] = []

    def push(self, chunk: str) -> list[FoundCall]:
        """Add the next piece of the text. Returns the calls that it completes, in order."""
        self._room -= len(chunk) if chunk.isascii() else len(chunk.encode(errors="surrogatepass"))
        if self._room < 0:
            self._chunks.clear()
            self._wait()
            return []
        self._chunks.append(chunk)
        if self._state == "call":
            if self._before > 0:
                self._before -= len(chunk)
                if self._before <= 0:
                    self._start_showing("".join((*self._call, *self._unread, chunk)), 0)
            elif self._preview is not None:
                self._show(self._preview, chunk)
            if "}" not in chunk:
                self._unread.append(chunk)
                return []
            chunk = "".join(self._unread) + chunk
            self._unread.clear()
        elif self._prose is not None:
            self._show_words(self._prose, chunk)
        return self._read(chunk)

    def shown(self) -> list[ContentDelta]:
        """Return the text that became visible since the previous call.

        The joined texts of a call are a prefix of the text of the finished call. The joined other
        texts are a prefix of `Parsed.text`.
        """
        shown, self._shown = self._shown, []
        return shown

    def finish(self) -> Parsed:
        """End the text. Returns all calls, and its errors."""
        if self._room < 0:
            return too_long(self._max_bytes)
        if self._state == "tail" and _TAIL.fullmatch(self._tail):
            return Parsed(calls=tuple(self._calls))
        return parse(
            "".join(self._chunks),
            strict=self._strict,
            types=self._types,
            max_bytes=self._max_bytes,
        )

    def _read(self, chunk: str) -> list[FoundCall]:
        before = len(self._calls)
        at = 0
        while at < len(chunk):
            if self._state == "call":
                at = self._pass_call(chunk, at)
            elif self._state == "between":
                at = self._pass_between(chunk, at)
            elif self._state == "head":
                at = self._pass_head(chunk)
            else:
                if self._state == "tail":
                    self._pass_tail(chunk[at:])
                break
        return self._calls[before:]

    def _start_showing(self, call: str, at: int) -> None:
        if SHOWN_TYPE in self._types and not is_silent(call, at):
            self._preview = Preview(strict=self._strict)
            self._show(self._preview, call, at)

    def _show(self, preview: Preview, piece: str, at: int = 0) -> None:
        text = preview.feed(piece, at)
        if text:
            self._shown.append(ContentDelta(self._count, text))
        if preview.over:
            self._preview = None

    def _show_words(self, prose: Prose, piece: str) -> None:
        words = prose.feed(piece)
        if words:
            self._shown.append(ContentDelta(None, words))
        if prose.over:
            self._prose = None

    def _wait(self) -> None:
        self._state = "waiting"
        self._preview = self._prose = None
        self._call.clear()
        self._unread.clear()

    def _pass_head(self, chunk: str) -> int:
        before = len(self._head)
        self._head += chunk[: _LONGEST_HEAD + 1]
        if "[" in chunk and (head := _HEAD.match(self._head)):
            self._state = "between"
            return head.end() - before
        if "[" in chunk or len(self._head) > _LONGEST_HEAD:
            self._state = "waiting"
        return len(chunk)

    def _pass_between(self, chunk: str, at: int) -> int:
        if self._comma and (comma := _COMMA.match(chunk, at)):
            self._comma = False
            at = comma.end()
        space = _SPACE.match(chunk, at)
        assert space is not None
        at = space.end()
        if at == len(chunk):
            return at
        if chunk[at] == "{" and not self._comma:
            self._state, self._depth = "call", 0
            self._before = BEFORE - (len(chunk) - at)
            if self._before <= 0:
                self._start_showing(chunk, at)
        elif chunk[at] == "]" and (self._comma or not self._count):
            self._state = "tail"
        else:  # not a call
            self._wait()
        return at

    def _pass_call(self, chunk: str, at: int) -> int:
        if chunk.find("}", at) < 0:
            self._unread.append(chunk[at:])
            return len(chunk)
        if not self._call and (match := _COMPLETE_CALL.match(chunk, at)):  # most calls, at once
            self._close(match[0])
            return match.end()
        start = at
        while at < len(chunk):
            if self._in_string:
                at = self._pass_string(chunk, at)
                continue
            flat = _FLAT.match(chunk, at)
            assert flat is not None
            at = flat.end()
            if at == len(chunk):
                break
            char = chunk[at]
            at += 1
            if char == '"':  # a string that does not end in this chunk
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    self._close("".join((*self._call, chunk[start:at])))
                    return at
        self._call.append(chunk[start:])
        return at

    def _pass_string(self, chunk: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            at += 1
        piece = STRING.match(chunk, at)
        assert piece is not None
        at = piece.end()
        if at < len(chunk):
            if chunk[at] == '"':
                self._in_string = False
            else:  # a backslash, with its escaped character in the next chunk
                self._escaped = True
        return at + 1

    def _close(self, text: str) -> None:
        """Handle a complete call."""
        self._call.clear()
        self._preview, self._before = None, 0
        self._state, self._comma = "between", True
        index = self._count
        self._count += 1
        call = find.read_call(text, self._types, index)
        if call is None:
            try:
                value = strict_json.loads(text, max_depth=MAX_DEPTH - _AROUND)
                call, filled = judge(value, self._types, index, strict=self._strict)
            except strict_json.StrictJsonError:
                return self._wait()
            except Unfit:
                return None
            self._mended |= bool(filled)
        if self._mended:
            return None
        if call.id in self._ids or (self._ended and call.type == "end_turn" and not self._strict):
            return None
        self._ended |= call.type == "end_turn"
        self._ids.add(call.id)
        self._calls.append(call)
        return None

    def _pass_tail(self, chunk: str) -> None:
        self._tail += chunk[: _LONGEST_TAIL + 1]
        if len(self._tail) > _LONGEST_TAIL or len(self._calls) < self._count:
            self._wait()
