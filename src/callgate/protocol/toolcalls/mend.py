"""Read one document that is nearly JSON, if it has only one possible meaning.

Accepted, with a note: extra or missing commas between brackets, lines or members, comments, single
and typographic quotes, bare keys, `=` for `:`, Python's literals, raw control characters, escapes
that JSON lacks, lone surrogates, unusual space. Everything else is `Broken`.

A document that stops before its end is returned up to there, marked `cut`: the reader never closes
a string, number or object itself. Time is linear in the text.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from callgate.protocol.strict_json import MAX_DIGITS, MAX_KEYS
from callgate.protocol.toolcalls.values import MAX_DEPTH, Broken, Document, Note, Rule, Shortcut

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
    '"': '"',
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_read_number = msgspec.json.Decoder().decode

_RULE_TEXTS: dict[Rule, str] = {
    "comma": "a comma is missing or one too many",
    "comment": "comments are not JSON",
    "quotes": "texts need double quotes",
    "bare_key": "keys need double quotes",
    "equals_sign": "a colon separates key and value",
    "python_literal": "JSON writes true, false and null",
    "control_character": "a control character in a text must be escaped",
    "escape": "JSON has no such escape",
    "surrogate": "half a surrogate pair was replaced",
    "space": "JSON has no such space",
}


class Cut(Exception):
    """The text ends, or a fence closes, before the end of the document."""


class Tokens:
    """A position in a text, and the tokens that can be read there."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start
        self.depth = 0
        """Number of open brackets."""
        self.begun = False
        """Whether a token was read that only JSON has."""
        self.forgiven = self.requoted = 0
        """Number of repairs, and number of repaired quotes."""
        self.found = Document(start)

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
        if word.end() == len(text):  # more may follow
            raise Cut
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
        pieces: list[str] = []
        while True:
            found = _PIECES[closing].match(text, self.at)
            assert found is not None
            pieces.append(found[0])
            self.at = found.end()
            if self.at == len(text):
                raise Cut
            if text[self.at] == closing:
                break
            pieces.append(self.escape())
        literal = "".join(pieces)
        if not quote.isascii() and '"' in text[start : self.at]:
            self.refuse("syntax", "two kinds of quotes are mixed")
        if _CONTROL.search(text, start, self.at):
            self.note("control_character")
        self.at += 1
        return self.whole_pairs(literal) if _SURROGATE.search(literal) else literal

    def escape(self) -> str:
        text = self.text
        char = text[self.at + 1 : self.at + 2]
        if not char:
            raise Cut
        if char == "u":
            digits = _HEX.match(text, self.at + 2)
            if digits is None:
                if self.at + 6 > len(text):
                    raise Cut
                self.refuse("syntax", "an escape has four hexadecimal digits")
            self.at = digits.end()
            return chr(int(digits[0], 16))
        if char in _ESCAPES:
            self.at += 2
            return _ESCAPES[char]
        self.note("escape")
        self.at += 2
        # \d is literal, in a pattern or a path; \' is an escape of other languages.
        return f"\\{char}" if char.isalnum() else char

    def whole_pairs(self, text: str) -> str:
        """Join two escapes that form one character; a single half is replaced."""
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if joined.count("\ufffd") != text.count("\ufffd"):
            self.note("surrogate")
        return joined

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
                        raise Cut
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
            raise Cut
        return self.text[self.at]

    def note(self, rule: Rule) -> None:
        self.forgiven += 1
        self.requoted += rule == "quotes"
        if rule not in self.found.notes:
            self.found.notes[rule] = Note(rule, _RULE_TEXTS[rule], self.at)

    def refuse(self, rule: Rule, message: str) -> NoReturn:
        raise Broken(rule, message, self.at, begun=self.begun, depth=self.depth)


_PLACED = 3
"""Maximum depth of a container whose position is recorded: no call is deeper."""
_LISTS = 2
"""Maximum depth of a list of calls. Its valid parts are read fast."""


def read(text: str, start: int, shortcut: Shortcut | None = None) -> Document:
    """Return the object or list that begins here. Raises `Broken`."""
    reader = _Reader(text, start, shortcut or Shortcut(text))
    found = reader.found
    try:
        found.value = reader.opened()
        reader.fill(found.value)
        found.end = reader.at
        found.around = reader.forgiven > reader.within_calls
    except Cut:
        found.cut = True
        found.end = reader.at if text.startswith("```", reader.at) else len(text)
    return found


class _Reader(Tokens):
    def __init__(self, text: str, start: int, shortcut: Shortcut) -> None:
        super().__init__(text, start)
        self.shortcut = shortcut
        self.within_calls = 0
        """Number of repairs within calls."""

    def opened(self) -> dict[str, Any] | list[Any]:
        if self.depth == MAX_DEPTH:
            self.begun = True
            self.refuse("depth", f"nested deeper than {MAX_DEPTH}")
        self.depth += 1
        return {} if self.text[self.at] == "{" else []

    def fill(self, container: dict[str, Any] | list[Any]) -> None:
        """Read up to the closing bracket. Each value is available as soon as it is read."""
        start = self.at
        closing = "}" if type(container) is dict else "]"
        self.at += 1
        before, ended = "", self.at  # the last character of the previous item, and its position
        while True:
            commas, broken_line = self.between()
            char = self.peek()
            if char == closing:
                if commas:
                    self.note("comma")
                break
            if commas != bool(before):
                # A space separates members; in "a""b" there may be a quotation mark in a text.
                is_apart = broken_line or (closing == "}" and char == '"' and self.at > ended)
                if not commas and before not in "]}" and not is_apart:
                    self.refuse("syntax", "a comma is missing")
                self.note("comma")
            if isinstance(container, dict):
                self.member(container)
            else:
                self.item(container, char)
            before, ended = self.text[self.at - 1], self.at
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
            forgiven, requoted = self.forgiven, self.requoted
            self.fill(child)
            if self.depth == _LISTS and self.forgiven > forgiven:
                self.within_calls += self.forgiven - forgiven
                self.found.mended.add(id(child))
                if self.requoted > requoted:
                    self.found.requoted.add(id(child))
        else:
            items.append(self.scalar(char))
            self.begun = True

    def clean(self) -> tuple[Any, int] | None:
        return self.shortcut.read(self.at, MAX_DEPTH - self.depth)

    def between(self) -> tuple[int, bool]:
        """Skip space, comments and commas. Returns the count of commas, and if a line ended."""
        start, commas = self.at, 0
        self.between_tokens()
        while self.text.startswith(",", self.at):
            commas += 1
            self.at += 1
            self.between_tokens()
        return commas, self.text.find("\n", start, self.at) >= 0
