"""Words, numbers, texts and what separates them, in a document that is nearly JSON.

Each thing forgiven here leaves a note. No text or number is ever ended on behalf of who wrote
it: where the document stops inside of one, that is `Cut`.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from callgate.protocol.strict_json import MAX_DIGITS
from callgate.protocol.toolcalls.documents import Broken, Document
from callgate.protocol.toolcalls.values import Note, Rule

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
    "quotes": "texts stand in double quotes",
    "bare_key": "keys stand in double quotes",
    "equals_sign": "a colon stands between key and value",
    "python_literal": "JSON writes true, false and null",
    "control_character": "a control character in a text is to be escaped",
    "escape": "JSON has no such escape",
    "surrogate": "half a surrogate pair was replaced",
    "space": "JSON has no such space",
}


class Cut(Exception):
    """The text ends, or a fence closes, before the document does."""


class Tokens:
    """A place in a text, and what can be read there."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start
        self.depth = 0
        """How many brackets are open."""
        self.begun = False
        """Something was read that only JSON has."""
        self.forgiven = self.requoted = 0
        """How often something was forgiven, and how often it was other quotes."""
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
        if word.end() == len(text):  # it may go on
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
        # \d was meant as it stands, in a pattern or a path; \' is what other languages write.
        return f"\\{char}" if char.isalnum() else char

    def whole_pairs(self, text: str) -> str:
        """Two escapes that are one character become it; a half alone is replaced."""
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
