"""Edits of JSON files of other programs that leave everything else as it stands: comments, order,
spaces, and commas before a closing bracket.

    parse -> a tree of spans -> insert or remove text at them

Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

_BLANK = re.compile(r"[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/", re.S)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_PLAIN = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")
_DEEPEST = 64


class NotJson(ValueError):
    """The text is not JSON, with or without comments."""


class Node(msgspec.Struct):
    kind: str
    """`object`, `array` or `value`."""
    start: int
    end: int
    members: list[tuple[str, int, Node]] = []
    """Of an object: key, where the key begins, value."""
    items: list[Node] = []

    def get(self, key: str) -> Node | None:
        return next((value for name, _, value in reversed(self.members) if name == key), None)


def parse(text: str) -> Node:
    """The spans of a document. Raises `NotJson`."""
    reader = _Reader(text)
    reader.blank()
    node = reader.value(0)
    reader.blank()
    if reader.at != len(text):
        raise reader.wrong()
    return node


def value_of(text: str, node: Node) -> Any:
    """A node as data."""
    if node.kind == "object":
        return {key: value_of(text, each) for key, _, each in node.members}
    if node.kind == "array":
        return [value_of(text, each) for each in node.items]
    return json.loads(text[node.start : node.end])


def with_item(text: str, path: Sequence[str], item: Any) -> str:
    """The text with an item at the end of the list at a path, which is made if it is missing.
    Raises `NotJson`, also where something else stands there."""
    if not text.strip():
        text = "{}\n"
    node = parse(text)
    for depth, key in enumerate(path):
        if node.kind != "object":
            raise NotJson(f"{'.'.join(path[:depth]) or 'the document'} is not an object")
        found = node.get(key)
        if found is None:
            value: Any = [item]
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            return _insert(text, node, f"{json.dumps(key)}: ", value, depth + 1)
        node = found
    if node.kind != "array":
        raise NotJson(f"{'.'.join(path)} is not a list")
    return _insert(text, node, "", item, len(path) + 1)


def without_items(text: str, path: Sequence[str], is_ours: Callable[[Any], bool]) -> str:
    """The text without the items of a list for which `is_ours` holds; the same if there are none.
    Raises `NotJson`."""
    while True:
        node: Node | None = parse(text)
        for key in path:
            node = None if node is None or node.kind != "object" else node.get(key)
        if node is None or node.kind != "array":
            return text
        ours = [each for each in node.items if is_ours(value_of(text, each))]
        if not ours:
            return text
        text = _without(text, node, ours[-1])


def _insert(text: str, parent: Node, before: str, value: Any, depth: int) -> str:
    children = [each for _, _, each in parent.members] or parent.items
    unit = _unit(text)
    dumped = json.dumps(value, indent=unit or 2, ensure_ascii=False)
    close = parent.end - 1
    step = unit or "  "
    if not children:
        inner = _indent_at(text, parent.start) + step
        body = before + dumped.replace("\n", "\n" + inner)
        return f"{text[: parent.start + 1]}\n{inner}{body}\n{inner[: -len(step)]}{text[close:]}"
    last = children[-1].end
    after = _past_blank(text, last)
    has_comma = text[after : after + 1] == ","
    inner = _indent_at(text, children[-1].start) if "\n" in text[parent.start : close] else ""
    one_line = "\n" not in text[parent.start : close]
    if one_line:
        body = before + json.dumps(value, ensure_ascii=False)
        return f"{text[:last]}, {body}{text[last:]}"
    body = before + dumped.replace("\n", "\n" + inner)
    at = after + 1 if has_comma else last
    lead = "" if has_comma else ","
    return f"{text[:at]}{lead}\n{inner}{body}{',' if has_comma else ''}{text[at:]}"


def _without(text: str, parent: Node, item: Node) -> str:
    at = parent.items.index(item)
    after = _past_blank(text, item.end)
    if text[after : after + 1] == ",":
        start = parent.items[at - 1].end if at else parent.start + 1
        if at:
            comma = text.index(",", start)
            return text[: comma + 1] + text[after + 1 :]
        return text[:start] + text[after + 1 :]
    start = parent.items[at - 1].end if at else parent.start + 1
    end = item.end if at else parent.end - 1
    return text[:start] + text[end:]


def _past_blank(text: str, at: int) -> int:
    """Where the next token begins, after spaces and comments."""
    while (match := _BLANK.match(text, at)) is not None:
        at = match.end()
    return at


def _indent_at(text: str, at: int) -> str:
    line = text.rfind("\n", 0, at) + 1
    match = re.match(r"[ \t]*", text[line:])
    return match[0] if match else ""


def _unit(text: str) -> str:
    match = re.search(r"\n([ \t]+)\S", text)
    return match[1] if match else ""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def wrong(self) -> NotJson:
        line = self.text.count("\n", 0, self.at) + 1
        return NotJson(f"line {line} is not JSON")

    def blank(self) -> None:
        self.at = _past_blank(self.text, self.at)

    def take(self, letter: str) -> bool:
        if self.text[self.at : self.at + 1] != letter:
            return False
        self.at += 1
        return True

    def value(self, depth: int) -> Node:
        start = self.at
        if depth > _DEEPEST:
            raise self.wrong()
        if self.take("{"):
            members = self._members(depth)
            return Node("object", start, self.at, members)
        if self.take("["):
            items: list[Node] = []
            self._list("]", lambda: items.append(self.value(depth + 1)))
            return Node("array", start, self.at, [], items)
        match = _STRING.match(self.text, self.at) or _PLAIN.match(self.text, self.at)
        if match is None:
            raise self.wrong()
        self.at = match.end()
        return Node("value", start, self.at)

    def _members(self, depth: int) -> list[tuple[str, int, Node]]:
        members: list[tuple[str, int, Node]] = []

        def member() -> None:
            start = self.at
            match = _STRING.match(self.text, start)
            if match is None:
                raise self.wrong()
            self.at = match.end()
            self.blank()
            if not self.take(":"):
                raise self.wrong()
            self.blank()
            members.append((json.loads(match[0]), start, self.value(depth + 1)))

        self._list("}", member)
        return members

    def _list(self, closer: str, one: Callable[[], None]) -> None:
        self.blank()
        while not self.take(closer):
            one()
            self.blank()
            if self.take(","):
                self.blank()
            elif self.text[self.at : self.at + 1] != closer:
                raise self.wrong()
