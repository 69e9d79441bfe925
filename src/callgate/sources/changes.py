"""What differs between two of a host's accounts of itself: for a person, who accepts it or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from callgate.core.errors import ToolRegistrationError
from callgate.core.json_schema.schemas import canonical_json
from callgate.protocol.host_v1.schemas import read_schemas
from callgate.sources.pins import Pinned


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Where in the description of a tool: its keys, with dots between them."""
    before: Any = UNSET
    after: Any = UNSET


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    added: dict[str, list[Difference]] = {}
    """By tool: all that is said of it."""
    removed: list[str] = []
    changed: dict[str, list[Difference]] = {}
    about: list[Difference] = []
    """What differs beside the tools."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.about)


Named = Callable[[list[dict[str, Any]], str], Iterable[str]]
"""The names in a host's account of its tools. Raises `ToolRegistrationError`."""


def _named(schemas: list[dict[str, Any]], host: str) -> Iterable[str]:
    return [tool.name for tool in read_schemas(schemas, host)]


def compare(host: str, before: Pinned | None, after: Pinned, named: Named = _named) -> Changes:
    """Without a `before`, every tool was added."""
    old, new = _tools(host, before, named), _tools(host, after, named)
    both = {tool: list(_differences("", old[tool], new[tool])) for tool in new if tool in old}
    return Changes(
        added={
            tool: [each for each in _differences("", {}, new[tool]) if each.path != "name"]
            for tool in new
            if tool not in old
        },
        removed=[tool for tool in old if tool not in new],
        changed={tool: found for tool, found in both.items() if found},
        about=list(_differences("", _about(before, after), _about(after, after))),
    )


def _tools(host: str, pinned: Pinned | None, named: Named) -> dict[str, dict[str, Any]]:
    if pinned is None:
        return {}
    try:
        names = named(pinned.schemas, host)
    except ToolRegistrationError:  # a file that somebody edited: nothing was seen
        return {}
    return dict(zip(names, pinned.schemas, strict=True))


def _about(pinned: Pinned | None, after: Pinned) -> dict[str, Any]:
    """Beside the tools. Of a host without a `before`, its command is no news."""
    if pinned is None:
        return {"command": after.command}
    return {"command": pinned.command} | {
        name: value
        for name in ("required_tags", "tags", "ui_elements")
        if (value := getattr(pinned, name))
    }


def _differences(path: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Difference]:
    for key in dict.fromkeys([*before, *after]):
        key_path = f"{path}.{key}" if path else key
        old, new = before.get(key, UNSET), after.get(key, UNSET)
        if type(old) is dict and type(new) is dict:
            yield from _differences(key_path, old, new)
        elif UNSET in (old, new) or canonical_json(old) != canonical_json(new):
            yield Difference(path=key_path, before=old, after=new)
