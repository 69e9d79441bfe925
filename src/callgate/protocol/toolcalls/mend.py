"""Reads one document that is nearly JSON, where it can mean only one thing.

Forgiven, with a note: commas too many or left out between brackets, lines or members, comments,
single and typographic quotes, bare keys, `=` for `:`, Python's literals, raw control characters,
escapes that JSON does not have, lone surrogates, unusual space. All else is `Broken`.

A document that stops before its end is returned as it is, marked `cut`: no string, number or
object is ever closed on behalf of who wrote it. Time is linear in what is read.
"""

from __future__ import annotations

from typing import Any

from callgate.protocol.strict_json import MAX_KEYS
from callgate.protocol.toolcalls.documents import Document
from callgate.protocol.toolcalls.shortcut import Shortcut
from callgate.protocol.toolcalls.tokens import Cut, Tokens
from callgate.protocol.toolcalls.values import MAX_DEPTH

_PLACED = 3
"""How deep a container may stand for its place to be kept: no call stands deeper."""
_LISTS = 2
"""How deep a list of calls may stand. What is clean in it is read quickly."""


def read(text: str, start: int, shortcut: Shortcut | None = None) -> Document:
    """The object or list that begins here; raises `Broken`."""
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
        """How often something was forgiven within calls."""

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
        before, ended = "", self.at  # the last character of the item before, and where it is
        while True:
            commas, broken_line = self.between()
            char = self.peek()
            if char == closing:
                if commas:
                    self.note("comma")
                break
            if commas != bool(before):
                # Between members a space is enough; "a""b" may be a quotation mark in a text.
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
        """Pass over space, comments and commas: how many commas, and whether a line ended."""
        start, commas = self.at, 0
        self.between_tokens()
        while self.text.startswith(",", self.at):
            commas += 1
            self.at += 1
            self.between_tokens()
        return commas, self.text.find("\n", start, self.at) >= 0
