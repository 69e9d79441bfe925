"""Pinned tool definitions of hosts and MCP servers, changes, and proposals for approval. Pure.

Pins list tools without starting a host, and reveal a host that changes the description of a tool:
a definition that the user approved cannot be exchanged under its name.

    never seen              -> may be pinned: trust on first use
    equal to the pin        -> its tools are offered
    anything else           -> `PinDoubt`: nothing is offered or pinned until the user
                               accepts it (`callgate hosts reload`, `callgate mcp approve`)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET

from callgate.core.errors import ToolRegistrationError
from callgate.core.schemas import canonical_json
from callgate.core.tools import ToolDefinition
from callgate.protocol.host_v1.values import read_schemas

LARGEST = 1024 * 1024
"""Maximum bytes of a host's definitions, because every command reads them."""


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    schemas: list[dict[str, Any]]
    required_tags: list[str] = []
    tags: list[str] = []
    ui_elements: list[dict[str, Any]] = []


class PinDoubt(ToolRegistrationError):
    """The pin of a host is unusable, or does not match."""

    def __init__(
        self,
        host: str,
        problem: str,
        pinned: Pinned | None = None,
        accept: str = "callgate hosts reload",
    ) -> None:
        super().__init__(f"{problem}: its tools are not offered before {accept} {host}")
        self.problem = problem
        self.pinned = pinned
        """The unusable pin, if it is readable."""


class Pins(Protocol):
    """Storage of pins; `config.pins` implements it."""

    def read(self, name: str, command: tuple[str, ...]) -> Pinned | None:
        """Return the pin; None if the host was never seen. Raises `PinDoubt`."""
        ...

    def write(self, name: str, pinned: Pinned) -> None: ...
    def write_first(self, name: str, pinned: Pinned) -> None:
        """Write a pin unless there is one: the first pin wins."""
        ...

    def known(self) -> list[str]:
        """Return the pinned hosts, in the order of their first pins."""
        ...

    def log_path(self, name: str) -> str: ...


def fingerprint(schema: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(schema)).hexdigest()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Location in the description of a tool: keys, joined by dots."""
    before: Any = UNSET
    after: Any = UNSET


class PinChanges(msgspec.Struct, frozen=True, kw_only=True):
    added: dict[str, list[Difference]] = {}
    """By tool: its whole description."""
    removed: list[str] = []
    changed: dict[str, list[Difference]] = {}
    about: list[Difference] = []
    """Differences outside the tools."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.about)


Named = Callable[[list[dict[str, Any]], str], Iterable[str]]
"""Returns the tool names in a host's definitions. Raises `ToolRegistrationError`."""


def _named(schemas: list[dict[str, Any]], host: str) -> Iterable[str]:
    return [tool.name for tool in read_schemas(schemas, host)]


def compare(host: str, before: Pinned | None, after: Pinned, named: Named = _named) -> PinChanges:
    """Return the differences of two pins. If `before` is None, every tool counts as added."""
    old, new = _tools(host, before, named), _tools(host, after, named)
    both = {tool: list(_differences("", old[tool], new[tool])) for tool in new if tool in old}
    return PinChanges(
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
    except ToolRegistrationError:  # a pin file that was edited: it counts as empty
        return {}
    return dict(zip(names, pinned.schemas, strict=True))


def _about(pinned: Pinned | None, after: Pinned) -> dict[str, Any]:
    """Return the values outside the tools. A new host gets the command of `after`, which
    is then no difference."""
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


ToolStatus = Literal["new", "changed", "as approved"]


class ToolProposal(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    effect: str
    """The effect by our rules, regardless of the server's claims."""
    news: ToolStatus
    description: str
    differences: list[Difference]
    """Differences of a tool that was approved before."""
    schema: Mapping[str, Any]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    """Hash of the server's whole description; an approval covers exactly this."""
    is_new: bool
    """Whether there is no earlier approval."""
    doubt: str | None
    """The reason for which the earlier approval is unusable."""
    tools: list[ToolProposal]
    removed: list[str]
    about: list[Difference]
    """Differences outside the tools."""


def propose(
    pinned: Pinned,
    definitions: Iterable[tuple[str, ToolDefinition]],
    changes: PinChanges,
    *,
    is_new: bool,
    doubt: str | None,
) -> Proposal:
    """Build the proposal. `definitions` have the server's own names, as `changes` has."""
    return Proposal(
        sha256=hash_of(pinned),
        is_new=is_new,
        doubt=doubt,
        tools=[_tool(name, definition, changes) for name, definition in definitions],
        removed=changes.removed,
        about=changes.about,
    )


def hash_of(pinned: Pinned) -> str:
    return hashlib.sha256(msgspec.json.encode(pinned, order="deterministic")).hexdigest()


def _tool(name: str, definition: ToolDefinition, changes: PinChanges) -> ToolProposal:
    status: ToolStatus = "as approved"
    if name in changes.added:
        status = "new"
    elif name in changes.changed:
        status = "changed"
    return ToolProposal(
        name=definition.name,
        effect=definition.effect,
        news=status,
        description=definition.description,
        differences=changes.changed.get(name, []),
        schema=definition.input_schema,
    )
