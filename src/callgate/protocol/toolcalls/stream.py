"""The same calls while the text arrives: each is there the moment its own object closes.

    head  ->  between  <->  inside a call        anything unexpected -> waiting
    up to [   , or ]        brackets, strings    (for the end of the text)

`push` gives calls early only as long as everything so far is in the form asked for; what has
to be mended waits for `finish`, which gives what `parse` gives for the whole text. That is the
last word: a document may still turn out to be cut, to be mended or to be refused. So only
calls without effects may run before it.

Time is linear in the text whatever the size of its chunks, and no more of it is kept than
`parse` would read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from callgate.protocol import strict_json
from callgate.protocol.toolcalls.judge import Unfit, judge
from callgate.protocol.toolcalls.parse import parse, too_long
from callgate.protocol.toolcalls.values import MAX_BYTES, MAX_DEPTH, TYPES, FoundCall, Parsed

_HEAD = re.compile(r'[\s\ufeff]*(?:```(?:json)?)?\s*\{\s*"toolCalls"\s*:\s*\[')
_LONGEST_HEAD = 256
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_FLAT = re.compile(rf'[^"{{}}\[\]]*+(?:"{_STRING.pattern}"[^"{{}}\[\]]*+)*+', re.DOTALL)
"""What opens and closes nothing, whole strings included."""
_AROUND = 2
"""Levels around a call."""

_State = Literal["head", "between", "call", "string", "waiting"]


def _inside(chunk: str) -> bool:
    """Whether a string goes on behind this chunk: most chunks of a long text."""
    return '"' not in chunk and "\\" not in chunk


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
        self._comma = False
        """The next thing between calls is a comma."""
        self._call: list[str] = []
        """The pieces of the call that is not closed yet, up to the chunk before this one."""
        self._from = 0
        """Where that call goes on in this chunk."""
        self._depth = 0
        self._escaped = False
        """The last chunk ended with the backslash of an escape."""
        self._count = 0
        self._ids: set[str] = set()
        self._ended = False

    def push(self, chunk: str) -> list[FoundCall]:
        """Take the next piece of the text; the calls that it completes, in order."""
        if self._room < 0 or not chunk:
            return []
        self._room -= len(chunk) if chunk.isascii() else len(chunk.encode(errors="surrogatepass"))
        if self._room < 0:
            self._chunks.clear()
            self._wait()
            return []
        self._chunks.append(chunk)
        if self._state == "string" and not self._escaped and _inside(chunk):
            self._call.append(chunk)
            return []
        calls: list[FoundCall] = []
        at = self._from = 0
        while at < len(chunk) and self._state != "waiting":
            if self._state == "string":
                at = self._pass_string(chunk, at)
            elif self._state == "call":
                at = self._pass_structure(chunk, at, calls)
            elif self._state == "between":
                at = self._pass_between(chunk, at)
            else:
                at = self._pass_head(chunk)
        if self._state in ("call", "string"):
            self._call.append(chunk[self._from :])
        return calls

    def finish(self) -> Parsed:
        """The text has ended: all calls, and what is wrong with it."""
        if self._room < 0:
            return too_long(self._max_bytes)
        return parse(
            "".join(self._chunks),
            strict=self._strict,
            types=self._types,
            max_bytes=self._max_bytes,
        )

    def _wait(self) -> None:
        self._state = "waiting"
        self._call.clear()

    def _pass_head(self, chunk: str) -> int:
        before = len(self._head)
        self._head += chunk[: _LONGEST_HEAD + 1]
        if "[" in chunk and (head := _HEAD.match(self._head)):
            self._state = "between"
            return head.end() - before
        if "[" in chunk or len(self._head) > _LONGEST_HEAD:
            self._wait()
        return len(chunk)

    def _pass_between(self, chunk: str, at: int) -> int:
        space = _SPACE.match(chunk, at)
        assert space is not None
        at = space.end()
        if at == len(chunk):
            return at
        if chunk[at] == "," and self._comma:
            self._comma = False
        elif chunk[at] == "{" and not self._comma:
            self._state, self._depth, self._from = "call", 0, at
            return at
        else:  # the end of the list, or something else than a call
            self._wait()
        return at + 1

    def _pass_string(self, chunk: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            at += 1
        piece = _STRING.match(chunk, at)
        assert piece is not None
        at = piece.end()
        if at < len(chunk):
            if chunk[at] == '"':
                self._state = "call"
            else:  # a backslash, and what it escapes is in the next chunk
                self._escaped = True
        return at + 1

    def _pass_structure(self, chunk: str, at: int, calls: list[FoundCall]) -> int:
        flat = _FLAT.match(chunk, at)
        assert flat is not None
        at = flat.end()
        if at == len(chunk):
            return at
        char = chunk[at]
        at += 1
        if char == '"':  # one that does not end in this chunk
            self._state = "string"
        elif char in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            if not self._depth:
                self._call.append(chunk[self._from : at])
                self._close(calls)
        return at

    def _close(self, calls: list[FoundCall]) -> None:
        text = "".join(self._call)
        self._call.clear()
        self._state, self._comma = "between", True
        index = self._count
        self._count += 1
        try:
            value = strict_json.loads(text, max_depth=MAX_DEPTH - _AROUND)
            call, filled = judge(value, self._types, index, strict=self._strict)
        except strict_json.StrictJsonError:
            return self._wait()
        except Unfit:
            return None
        if filled:
            return self._wait()
        if call.id in self._ids or (self._ended and call.type == "end_turn" and not self._strict):
            return None
        self._ended |= call.type == "end_turn"
        self._ids.add(call.id)
        calls.append(call)
        return None
