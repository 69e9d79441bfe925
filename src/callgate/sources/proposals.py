"""What a server wants to have approved, in the words of a person who decides about it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from callgate.core.tools import ToolDefinition
from callgate.sources.changes import Changes, Difference
from callgate.sources.pins import Pinned

ToolStatus = Literal["new", "changed", "as approved"]


class ToolProposal(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    effect: str
    """As we believe it, whatever the server says."""
    news: ToolStatus
    description: str
    differences: list[Difference]
    """Of a tool that was approved before."""
    schema: Mapping[str, Any]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    """Of all that the server says: what is approved is this and nothing else."""
    is_new: bool
    """Nothing was approved before."""
    doubt: str | None
    """Why what was approved before cannot be gone by."""
    tools: list[ToolProposal]
    removed: list[str]
    about: list[Difference]
    """What differs beside the tools."""


def propose(
    pinned: Pinned,
    definitions: Iterable[tuple[str, ToolDefinition]],
    changes: Changes,
    *,
    is_new: bool,
    doubt: str | None,
) -> Proposal:
    """`definitions` come with the names that the server gives them, as `changes` does."""
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


def _tool(name: str, definition: ToolDefinition, changes: Changes) -> ToolProposal:
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
