"""Text of a call for the user, visible while the call is still being written.

    {"type": "send_chat", ..., "parameters": {..., "content": "Hello, wor
                                                               ^ from here on, as it arrives

Text is returned early only if no later input can change its meaning: the type came before the
parameters, and the text outside of strings is unambiguous so far. Other text comes with the
finished call. Text that was returned early is always a prefix of the text of that call.
"""

from __future__ import annotations

import json
import re

SHOWN_TYPE = "send_chat"
_PARAMETER = "content"
"""Parameter with the visible text."""
BEFORE = len('{"type":"send_chat","parameters":{"content":"')
"""Minimum characters of a call before its visible text."""

STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
"""Content of a string, up to its end or to an incomplete escape."""
_GAP = re.compile(r"[ \t\r\n0-9A-Za-z.+-]*")
"""Text without separators: space, numbers, literals."""
_NESTED = re.compile(
    rf'[ \t\r\n0-9A-Za-z.+,:-]*(?:"{STRING.pattern}"[ \t\r\n0-9A-Za-z.+,:-]*)*', re.DOTALL
)
_WS = r"[ \t\r\n]*"
_PLAIN = rf'"(?:id|operation|priority)"{_WS}:{_WS}(?:"[^"\\]*"|[0-9.]+){_WS}'
_TYPE = rf'\{{{_WS}(?:{_PLAIN},{_WS})*"type"{_WS}:{_WS}"'
_OTHER_TYPE = re.compile(rf'{_TYPE}(?!{SHOWN_TYPE}")\w+"')
_USUAL = re.compile(
    rf'{_TYPE}{SHOWN_TYPE}"{_WS}(?:,{_WS}{_PLAIN})*,{_WS}"parameters"{_WS}:{_WS}'
    rf'\{{{_WS}"{_PARAMETER}"{_WS}:{_WS}"'
)
"""The usual beginning of a call before its text."""
_LONGEST_HEAD = 512
_ESCAPES = (
    r'\\(?:["\\/bfnrt]|u(?:[0-9abcefABCEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2}'
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_LEGIBLE = {
    # Tolerant mode permits a raw line break in a text, as a line break.
    False: re.compile(rf'[^"\\\ud800-\udfff]*(?:{_ESCAPES}[^"\\\ud800-\udfff]*)*'),
    True: re.compile(rf'[^"\\\ud800-\udfff\x00-\x1f]*(?:{_ESCAPES}[^"\\\ud800-\udfff\x00-\x1f]*)*'),
}
_PLAIN_TEXT = re.compile(r'[^"\\\ud800-\udfff\x00-\x1f]+')
_CUT_ESCAPE = re.compile(
    r"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?))?\Z"
)
_unescape = json.JSONDecoder(strict=False).decode


def is_silent(text: str, at: int) -> bool:
    """Whether the call that begins here has no visible text, which is the usual case."""
    return _OTHER_TYPE.match(text, at) is not None


def _is_short(text: str, at: int) -> bool:
    """Whether the call that begins here is too short for visible text."""
    if len(text) - at > _LONGEST_HEAD or "\\" in text:
        return False
    key = text.find('"parameters"', at)
    return key < 0 or text.count('"', key) < 5  # two for each key, and one at the start of a text


class Preview:
    """The visible text of one call as it arrives, from its opening brace on."""

    def __init__(self, *, strict: bool) -> None:
        self.over = False
        """Whether the rest of this call has no visible text."""
        self._legible = _LEGIBLE[strict]
        self._plain = _PLAIN_TEXT.fullmatch
        self._head = ""
        """All text so far, if it is too short for visible text."""
        self._depth = 0
        self._last = ""
        """The separator, bracket or quotation mark before this position."""
        self._key = ""
        self._is_shown_type = False
        """Known after the type was read."""
        self._inside = False
        """Whether the position is in the parameters."""
        self._string = ""
        """Role of the unfinished string: `key`, `type`, `shown`, `other`."""
        self._raw: list[str] = []
        self._escaped = False
        self._cut_escape = ""
        """An incomplete escape."""

    def feed(self, piece: str, at: int = 0) -> str:
        """Add the next piece of the call. Returns the text that becomes visible."""
        if self._string == "shown":
            # Most pieces of a long text contain neither its end nor an escape.
            return piece if not self._cut_escape and self._plain(piece) else self._show(piece, at)
        if not self._last:
            if self._head:
                piece, at = self._head + piece[at:], 0
            if _is_short(piece, at):
                self._head = piece[at:]
                return ""
            usual = _USUAL.match(piece, at)
            if usual:
                self._string = "shown"
                return self._show(piece, usual.end())
        while at < len(piece) and not self.over:
            pass_next = self._pass_string if self._string else self._pass_structure
            at = pass_next(piece, at)
            if self._string == "shown":
                return self._show(piece, at)
        return ""

    def _show(self, piece: str, at: int) -> str:
        if self._cut_escape:
            piece, at = self._cut_escape + piece[at:], 0
        legible = self._legible.match(piece, at)
        assert legible is not None
        end = legible.end()
        self._cut_escape = ""
        if end < len(piece):
            if _CUT_ESCAPE.match(piece, end):
                self._cut_escape = piece[end:]
            else:  # the end of the string, or uncertain text
                self.over = True
        shown = legible[0]
        return _unescape(f'"{shown}"') if "\\" in shown else shown

    def _pass_string(self, piece: str, at: int) -> int:
        start = at
        if self._escaped:
            self._escaped = False
            at += 1
        found = STRING.match(piece, at)
        assert found is not None
        at = found.end()
        closed = at < len(piece) and piece[at] == '"'
        if at < len(piece) and not closed:  # a backslash without its escaped character
            self._escaped = True
            at += 1
        if self._string != "other":
            self._raw.append(piece[start:at])
        if closed:
            self._close_string()
            at += 1
        return at

    def _close_string(self) -> None:
        text, role = "".join(self._raw), self._string
        self._raw.clear()
        self._string = ""
        self._last = '"'
        if "\\" in text:
            try:
                text = _unescape(f'"{text}"')
            except ValueError:
                self.over = True
                return
        if role == "key":
            self._key = text
        elif role == "type":
            self._is_shown_type = text == SHOWN_TYPE
            self.over = not self._is_shown_type

    def _pass_structure(self, piece: str, at: int) -> int:
        near = self._at_members()
        gap = (_GAP if near else _NESTED).match(piece, at)
        assert gap is not None
        if near and not gap[0].isspace() and gap[0]:
            self._last = "0"
        at = gap.end()
        if at == len(piece):
            return at
        char = piece[at]
        if char == '"':
            self._string = self._role() if near else "other"
        elif char in "{[":
            self._open(char, near)
        elif char in "}]":
            self._depth -= 1
            self.over = self._depth < 1 + self._inside  # there is only one object of parameters
        elif char == ":":
            self.over = near and self._last != '"'
        elif char != ",":
            self.over = True
        self._last = char
        return at + 1

    def _at_members(self) -> bool:
        """Whether the position is directly in the call or in its parameters."""
        return self._depth == 1 + self._inside

    def _role(self) -> str:
        if self._last in ("{", ","):
            return "key"
        if self._last != ":":
            self.over = True
        elif self._inside:
            return "shown" if self._key == _PARAMETER else "other"
        elif self._key == "type":
            return "type"
        return "other"

    def _open(self, char: str, near: bool) -> None:
        if near and self._last != ":":
            self.over = True
        elif near and not self._inside and self._key == "parameters":
            self._inside = char == "{" and self._is_shown_type
            self.over = not self._inside
        self._depth += 1
