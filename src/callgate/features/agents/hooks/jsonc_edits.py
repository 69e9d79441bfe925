"""Edits of JSON files that preserve everything else: comments, order, spaces, trailing commas.

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
    """Members of an object: key, start of the key, value."""
    items: list[Node] = []

    def get(self, key: str) -> Node | None:
        return next((value for name, _, value in reversed(self.members) if name == key), None)


def parse(text: str) -> Node:
    """Return the tree of spans of a document. Raises `NotJson`."""
    reader = _Reader(text)
    reader.blank()
    node = reader.value(0)
    reader.blank()
    if reader.at != len(text):
        raise reader.wrong()
    return node


def value_of(text: str, node: Node) -> Any:
    """Return a node as data."""
    if node.kind == "object":
        return {key: value_of(text, each) for key, _, each in node.members}
    if node.kind == "array":
        return [value_of(text, each) for each in node.items]
    return json.loads(text[node.start : node.end])


def with_item(text: str, path: Sequence[str], item: Any) -> str:
    """Append an item to the list at a path; create the list if it is missing.

    Raises `NotJson`, also if the path leads to another kind of value.
    """
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


def with_first_member(text: str, key: str, value: Any) -> str:
    """Add a member at the beginning of a non-empty object."""
    at = parse(text).start + 1
    indent = _unit(text) or "  "
    return f"{text[:at]}\n{indent}{json.dumps(key)}: {json.dumps(value)},{text[at:]}"


def without_items(
    text: str, path: Sequence[str], is_ours: Callable[[Any], bool], inner: str | None = None
) -> str:
    """Remove the items of a list for which `is_ours` is true.

    `inner`: the key of a list in each remaining item, from which such items are removed as well.
    Raises `NotJson`.
    """
    while True:
        node: Node | None = parse(text)
        for key in path:
            node = None if node is None or node.kind != "object" else node.get(key)
        if node is None or node.kind != "array":
            return text
        within = [each.get(inner) for each in node.items if inner is not None]
        lists = [node, *(each for each in within if each is not None and each.kind == "array")]
        ours = [
            (each, item) for each in lists for item in each.items if is_ours(value_of(text, item))
        ]
        if not ours:
            return text
        top_level = [pair for pair in ours if pair[0] is node]
        text = _without(text, *(top_level or ours)[-1])


def _insert(text: str, parent: Node, before: str, value: Any, depth: int) -> str:
    children = [each for _, _, each in parent.members] or parent.items
    unit = _unit(text)
    dumped = json.dumps(value, indent=unit or 2, ensure_ascii=False)
    close = parent.end - 1
    step = unit or "  "
    if not children:
        inner = _indent_at(text, parent.start) + step
        body = before + dumped.replace("\n", "\n" + inner)
        comments = text[parent.start + 1 : close].rstrip()  # comments
        head = text[: parent.start + 1] + comments
        return f"{head}\n{inner}{body}\n{inner[: -len(step)]}{text[close:]}"
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
    """Remove an item and one adjacent comma; adjacent comments stay."""
    at = parent.items.index(item)
    after = _past_blank(text, item.end)
    has_comma = text[after : after + 1] == ","
    start = parent.items[at - 1].end if at else parent.start + 1
    between, tail = text[start : item.start], text[item.end :]
    if at:
        comma = _past_blank(text, start)
        between = text[start:comma] + text[comma + 1 : item.start]
    if has_comma:
        if at:
            start, between = comma + 1, text[comma + 1 : item.start]
        tail = _joined(text[item.end : after], text[after + 1 :])
    elif not at and not _comments(between) and not _comments(text[item.end : parent.end - 1]):
        tail = text[parent.end - 1 :]
    return text[:start] + _joined(between, tail)


def _joined(blank: str, tail: str) -> str:
    """Join the comments between two tokens with the following text."""
    comments = _comments(blank)
    if "//" in comments and not tail.lstrip(" \t\r").startswith("\n"):
        comments += "\n"
    return comments + tail


def _comments(blank: str) -> str:
    """Return the text between two tokens if it contains comments, else ""."""
    return blank.rstrip() if blank.strip() else ""


def _past_blank(text: str, at: int) -> int:
    """Return the start of the next token, after spaces and comments."""
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
        self._load(match[0])
        self.at = match.end()
        return Node("value", start, self.at)

    def _load(self, token: str) -> Any:
        try:
            return json.loads(token)
        except (ValueError, RecursionError):  # such as an invalid escape
            raise self.wrong() from None

    def _members(self, depth: int) -> list[tuple[str, int, Node]]:
        members: list[tuple[str, int, Node]] = []

        def member() -> None:
            start = self.at
            match = _STRING.match(self.text, start)
            if match is None:
                raise self.wrong()
            key = self._load(match[0])
            self.at = match.end()
            self.blank()
            if not self.take(":"):
                raise self.wrong()
            self.blank()
            members.append((key, start, self.value(depth + 1)))

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
