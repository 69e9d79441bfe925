"""Reads one document that is nearly JSON, where it can mean only one thing.

Forgiven, with a note: commas too many or left out between brackets or lines, comments, single
and typographic quotes, bare keys, `=` for `:`, Python's literals, raw control characters,
escapes that JSON does not have, lone surrogates, unusual space. All else is `Broken`.

A document that stops before its end is returned as it is, marked `cut`: no string, number or
object is ever closed on behalf of who wrote it. Time is linear in what is read.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec

from callgate.protocol import strict_json
from callgate.protocol.strict_json import MAX_DIGITS, MAX_KEYS
from callgate.protocol.toolcalls.values import MAX_DEPTH, Note, Rule

_SPACE = re.compile(r"[ \t\n\r]*")
_ODD_SPACE = re.compile(r"[\s\ufeff]+")
_COMMENT = re.compile(r"(?:#|//)[^\n]*|/\*.*?\*/", re.DOTALL)
_BARE_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_WORD = re.compile(r"[\w$+.-]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ENDLESS = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_CLOSING = {'"': '"', "'": "'", "“": "”", "‘": "’"}
_PIECES = {quote: re.compile(rf"[^{quote}\\]*") for quote in _CLOSING.values()}
_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|\\.|[\[{]|[\]}]', re.DOTALL)
_PLACED = 3
"""How deep a container may stand for its place to be kept: no call stands deeper."""
_LISTS = 2
"""How deep a list of calls may stand. What is clean in it is read quickly."""
_read_number = msgspec.json.Decoder().decode

_SAID: dict[Rule, str] = {
    "comma": "a comma is missing or one too many",
    "comment": "comments are not JSON",
    "quotes": "texts stand in double quotes",
    "bare_key": "keys stand in double quotes",
    "equals_sign": "a colon stands between key and value",
    "python_literal": "JSON writes true, false and null",
    "control_character": "a control character in a text is to be escaped",
    "escape": "JSON has no such escape",
    "surrogate": "half a surrogate pair was replaced",
    "space": "JSON has no such space",
}


class Broken(Exception):
    """What is there cannot be read. `at` is where reading stopped."""

    def __init__(self, rule: Rule, message: str, at: int, *, begun: bool, depth: int) -> None:
        super().__init__(message)
        self.rule = rule
        self.at = at
        self.begun = begun
        """Some of it was read: it was meant as JSON, and is not just a bracket in prose."""
        self.depth = depth
        """How many brackets are open."""


class Document:
    """What was read. Mutable only while it is read."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.value: Any = None
        self.notes: dict[Rule, Note] = {}
        """The first of each rule."""
        self.starts: dict[int, int] = {}
        """Where each closed container begins, by its identity; only those near the top."""
        self.cut = False
        self.duplicate: int | None = None
        """Where a key stands for the second time."""


class _Cut(Exception):
    """The text ends, or a fence closes, before the document does."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_extent = json.JSONDecoder(parse_constant=_no_constant).raw_decode


class Shortcut:
    """Reads what has nothing to mend in it, by a reader that is quick unless it fails.

    A failure takes time in proportion to the whole text, so after a few it is not tried again.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._failures_left = 16

    def read(self, start: int, max_depth: int = MAX_DEPTH) -> tuple[Any, int] | None:
        """What begins here and where it ends."""
        if not self._failures_left:
            return None
        try:
            _, end = _extent(self.text, start)
            return strict_json.loads(self.text[start:end], max_depth=max_depth), end
        except (ValueError, RecursionError):
            self._failures_left -= 1
            return None


def read(text: str, start: int, shortcut: Shortcut | None = None) -> Document:
    """The object or list that begins here; raises `Broken`."""
    reader = _Reader(text, start, shortcut or Shortcut(text))
    found = reader.found
    try:
        found.value = reader.opened()
        reader.fill(found.value)
        found.end = reader.at
    except _Cut:
        found.cut = True
        found.end = reader.at if text.startswith("```", reader.at) else len(text)
    return found


def skip(text: str, at: int, depth: int) -> int:
    """Where so many open brackets are closed again; the end of the text if they are not."""
    for found in _BRACKETS.finditer(text, at):
        bracket = found[0]
        if bracket in ("{", "["):
            depth += 1
        elif bracket in ("}", "]"):
            depth -= 1
            if depth <= 0:
                return found.end()
    return len(text)


class _Reader:
    def __init__(self, text: str, start: int, shortcut: Shortcut) -> None:
        self.text = text
        self.at = start
        self.shortcut = shortcut
        self.depth = 0
        self.begun = False
        self.found = Document(start)

    def opened(self) -> dict[str, Any] | list[Any]:
        if self.depth == MAX_DEPTH:
            self.begun = True
            self.refuse("depth", f"nested deeper than {MAX_DEPTH}")
        self.depth += 1
        return {} if self.text[self.at] == "{" else []

    def fill(self, container: dict[str, Any] | list[Any]) -> None:
        """Read up to the closing bracket. What is inside is there as soon as it is read."""
        start = self.at
        closing = "}" if type(container) is dict else "]"
        self.at += 1
        before = ""  # the last character of the item before
        while True:
            commas, broken_line = self.between()
            char = self.peek()
            if char == closing:
                if commas:
                    self.note("comma")
                break
            if commas != bool(before):
                if not commas and before not in "]}" and not broken_line:
                    self.refuse("syntax", "a comma is missing")
                self.note("comma")
            if isinstance(container, dict):
                self.member(container)
            else:
                self.item(container, char)
            before = self.text[self.at - 1]
        self.at += 1
        self.begun = True
        if self.depth <= _PLACED:
            self.found.starts[id(container)] = start
        self.depth -= 1

    def member(self, members: dict[str, Any]) -> None:
        start = self.at
        key = self.key()
        self.between_tokens()
        sign = self.peek()
        if sign not in ":=":
            self.refuse("syntax", "a colon is missing")
        if sign == "=":
            self.note("equals_sign")
        self.at += 1
        self.begun = True
        self.between_tokens()
        char = self.peek()
        if key in members:
            if self.found.duplicate is None:
                self.found.duplicate = start
            members = {}
        elif len(members) == MAX_KEYS:
            self.refuse("keys", f"an object has more than {MAX_KEYS} keys")
        if char in "{[":
            child = members[key] = self.opened()
            self.fill(child)
        else:
            members[key] = self.scalar(char)

    def item(self, items: list[Any], char: str) -> None:
        if self.depth <= _LISTS and char in "{[" and (clean := self.clean()):
            items.append(clean[0])
            self.found.starts[id(clean[0])], self.at = self.at, clean[1]
            self.begun = True
        elif char in "{[":
            child = self.opened()
            items.append(child)
            self.fill(child)
        else:
            items.append(self.scalar(char))
            self.begun = True

    def clean(self) -> tuple[Any, int] | None:
        return self.shortcut.read(self.at, MAX_DEPTH - self.depth)

    def key(self) -> str:
        char = self.text[self.at]
        if char in _CLOSING:
            return self.string(char)
        bare = _BARE_KEY.match(self.text, self.at)
        if bare is None:
            self.refuse("syntax", "a key is missing")
        self.note("bare_key")
        self.at = bare.end()
        return bare[0]

    def scalar(self, char: str) -> Any:
        if char in _CLOSING:
            return self.string(char)
        text, start = self.text, self.at
        word = _WORD.match(text, start)
        if word is None:
            self.refuse("syntax", "a value is missing")
        if word.end() == len(text):  # it may go on
            raise _Cut
        written = word[0]
        if written in _LITERALS:
            if written[0].isupper():
                self.note("python_literal")
            self.at = word.end()
            return _LITERALS[written]
        if _NUMBER.fullmatch(written):
            value = self.number(written)
            self.at = word.end()
            return value
        return self.refuse_word(written)

    def refuse_word(self, written: str) -> NoReturn:
        if _ENDLESS.fullmatch(written):
            self.begun = True
            self.refuse("number", "JSON has no such number")
        self.refuse("syntax", "a value is not JSON")

    def number(self, written: str) -> int | float:
        try:
            if written.lstrip("-").isdigit() and len(written.lstrip("-")) > MAX_DIGITS:
                raise ValueError
            value: int | float = _read_number(written)
        except ValueError:
            self.begun = True
            self.refuse("number", "a number is out of range")
        return value

    def string(self, quote: str) -> str:
        text, start = self.text, self.at
        closing = _CLOSING[quote]
        if quote != '"':
            self.note("quotes")
        self.at += 1
        parts: list[str] = []
        while True:
            found = _PIECES[closing].match(text, self.at)
            assert found is not None
            parts.append(found[0])
            self.at = found.end()
            if self.at == len(text):
                raise _Cut
            if text[self.at] == closing:
                break
            parts.append(self.escape())
        whole = "".join(parts)
        if not quote.isascii() and '"' in text[start : self.at]:
            self.refuse("syntax", "two kinds of quotes are mixed")
        if _CONTROL.search(text, start, self.at):
            self.note("control_character")
        self.at += 1
        return self.whole_pairs(whole) if _SURROGATE.search(whole) else whole

    def escape(self) -> str:
        text = self.text
        char = text[self.at + 1 : self.at + 2]
        if not char:
            raise _Cut
        if char == "u":
            digits = _HEX.match(text, self.at + 2)
            if digits is None:
                if self.at + 6 > len(text):
                    raise _Cut
                self.refuse("syntax", "an escape has four hexadecimal digits")
            self.at = digits.end()
            return chr(int(digits[0], 16))
        if char in _ESCAPES:
            self.at += 2
            return _ESCAPES[char]
        self.note("escape")
        self.at += 2
        # \d was meant as it stands, in a pattern or a path; \' is what other languages write.
        return f"\\{char}" if char.isalnum() else char

    def whole_pairs(self, text: str) -> str:
        """Two escapes that are one character become it; a half alone is replaced."""
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if joined.count("\ufffd") != text.count("\ufffd"):
            self.note("surrogate")
        return joined

    def between(self) -> tuple[int, bool]:
        """Pass over space, comments and commas: how many commas, and whether a line ended."""
        start, commas = self.at, 0
        self.between_tokens()
        while self.text.startswith(",", self.at):
            commas += 1
            self.at += 1
            self.between_tokens()
        return commas, self.text.find("\n", start, self.at) >= 0

    def between_tokens(self) -> None:
        text = self.text
        while True:
            space = _SPACE.match(text, self.at)
            assert space is not None
            self.at = space.end()
            char = text[self.at : self.at + 1]
            if char and char in "/#":
                comment = _COMMENT.match(text, self.at)
                if comment is None:
                    if text.startswith("/*", self.at) or self.at + 1 == len(text):
                        raise _Cut
                    self.refuse("syntax", "a value is not JSON")
                self.note("comment")
                self.at = comment.end()
            elif char and (odd := _ODD_SPACE.match(text, self.at)):
                self.note("space")
                self.at = odd.end()
            else:
                return

    def peek(self) -> str:
        if self.at == len(self.text) or self.text.startswith("```", self.at):
            raise _Cut
        return self.text[self.at]

    def note(self, rule: Rule) -> None:
        if rule not in self.found.notes:
            self.found.notes[rule] = Note(rule, _SAID[rule], self.at)

    def refuse(self, rule: Rule, message: str) -> NoReturn:
        raise Broken(rule, message, self.at, begun=self.begun, depth=self.depth)
