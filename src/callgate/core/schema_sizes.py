"""The size of a third-party JSON Schema, and refusal of schemas whose validation never ends.

    size_of(schema) -> Size       a part counts as often as it is used

A few lines can describe endless validation: `a` is four times `b`, `b` is four times `c`, and so
on. A part that refers back to an enclosing part (a tree of comments, for example) counts once: the
depth of the arguments limits the recursion. A reference cycle that does not descend into the
arguments is refused.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

LARGEST = 100_000
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_AGAIN = ("unevaluatedProperties", "unevaluatedItems")
"""Keywords that cause another validation of their sibling keywords."""
_SAME = ("not", "if", "then", "else")
_SAME_OF = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
"""Keywords whose schemas apply to the same value: one schema (above), a list or an object of them.
"""
_MOST_ROOTS = 100
_TOO_MUCH = "it refers to itself too many times over to be checked"


class Size(NamedTuple):
    part_count: int
    returns: int
    """References from a part back to an enclosing part."""

    def at_depth(self, depth: int) -> int:
        """Return the maximum size for a value with this depth of nesting."""
        size = self.part_count
        for _ in range(depth if self.returns else 0):
            if size > LARGEST:
                break
            size *= 1 + self.returns
        return size


def size_of(schema: Mapping[str, Any]) -> Size:
    """Return the size. Raises `ValueError` if it exceeds `LARGEST`."""
    counting = _Counting(schema)
    try:
        counting.count_at_once()
        part_count = counting.count(schema)
    except RecursionError:
        raise ValueError("its chain of references is too long") from None
    return Size(part_count, counting.returns)


def refers(schema: Mapping[str, Any]) -> bool:
    """Whether the schema contains any reference."""
    return any(type(part.get(each)) is str for part in _subschemas(schema) for each in _REFERENCES)


def depth_of(value: Any) -> int:
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [
            below for each in level for below in (each.values() if type(each) is dict else each)
        ]
    return depth


class _Counting:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._nodes = list(_subschemas(schema))
        self._roots = [schema, *(each for each in self._nodes if type(each.get("$id")) is str)]
        """Possible targets of a pointer. The address in `$id` selects among them; if several match,
        all are counted.
        """
        if len(self._roots) > _MOST_ROOTS:
            raise ValueError(_TOO_MUCH)
        self._anchors: dict[str, list[Any]] = {}
        for part in self._nodes:
            for name in filter(None, map(part.get, _ANCHORS)):
                self._anchors.setdefault(str(name), []).append(part)
        self._sizes: dict[int, int] = {}
        self._at_once: dict[int, int] = {}
        self._open: set[int] = set()
        self.returns = 0

    def count_at_once(self) -> None:
        """Count the parts that apply to the same value."""
        for each in self._nodes:
            self._count_at_once(each)

    def _count_at_once(self, node: Any) -> int:
        if not isinstance(node, dict):
            return 0
        key = id(node)
        if key not in self._at_once:
            if key in self._open:
                raise ValueError("it contains itself")
            self._open.add(key)
            total = 1 + sum(map(self._count_at_once, self._same_value(node)))
            self._open.discard(key)
            self._at_once[key] = _bounded(node, total)
        return self._at_once[key]

    def _same_value(self, node: Mapping[str, Any]) -> Iterator[Any]:
        yield from map(node.get, _SAME)
        for some in map(node.get, _SAME_OF):
            if isinstance(some, dict | list):
                yield from some.values() if isinstance(some, dict) else some
        yield from self._referred(node)

    def count(self, node: Any) -> int:
        if not isinstance(node, dict | list):
            return 0
        key = id(node)
        if key in self._open:
            self.returns += 1
            return 1
        if key not in self._sizes:
            self._open.add(key)
            total = 1 + sum(map(self.count, self._below(node)))
            self._open.discard(key)
            self._sizes[key] = _bounded(node, total)
        return self._sizes[key]

    def _below(self, node: Any) -> Iterator[Any]:
        if isinstance(node, list):
            yield from node
            return
        yield from node.values()
        yield from self._referred(node)

    def _referred(self, node: Mapping[str, Any]) -> Iterator[Any]:
        for each in _REFERENCES:
            if type(node.get(each)) is str:
                address, _, fragment = node[each].partition("#")
                yield from self._targets(address, urllib.parse.unquote(fragment))

    def _targets(self, address: str, fragment: str) -> Iterator[Any]:
        if fragment and not fragment.startswith("/"):
            yield from self._anchors.get(fragment, ())
            return
        named = [each for each in self._roots if address and _ends_alike(each, address)]
        for root in named or self._roots:
            found: Any = root
            for step in fragment.split("/")[1:]:
                found = _step(found, step.replace("~1", "/").replace("~0", "~"))
            yield found


def _bounded(node: Any, total: int) -> int:
    if isinstance(node, dict) and any(each in node for each in _AGAIN):
        total *= 2
    if total > LARGEST:
        raise ValueError(_TOO_MUCH)
    return total


def _ends_alike(root: Mapping[str, Any], address: str) -> bool:
    return _last(str(root.get("$id", ""))) == _last(address)


def _last(address: str) -> str:
    steps = urllib.parse.unquote(address.partition("#")[0]).split("/")
    return next((each for each in reversed(steps) if each not in ("", ".", "..")), "")


def _step(node: Any, name: str) -> Any:
    if isinstance(node, list):
        return node[int(name)] if name.isdecimal() and int(name) < len(node) else None
    return node.get(name) if isinstance(node, dict) else None


def _subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
