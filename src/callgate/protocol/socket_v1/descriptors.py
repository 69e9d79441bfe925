"""A tool and a question as the socket describes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from callgate.core.effects import Capability, SideEffects, derive, implied
from callgate.core.tools import ToolDefinition
from callgate.protocol.definitions import to_mcp
from callgate.protocol.ndjson import MAX_LINE
from callgate.protocol.socket_v1.frames import Descriptor, Question

_SPELT: dict[Capability, tuple[str, ...]] = {
    Capability.PURE: ("read-only",),
    Capability.MUTATES_EXTERNAL: ("accesses-network", "destructive"),
}
CAPABILITIES = (
    "read-only",
    "writes-files",
    "controls-browser",
    "starts-process",
    "accesses-network",
    "destructive",
)
"""The six that this wire knows, in its order."""
_FRAME = 1024
"""Bytes around the questions of a list, at most."""


def describe(definition: ToolDefinition, timeout_s: float | None = None) -> Descriptor:
    """`timeout_s`: the limit that holds where the definition names none."""
    effect = definition.effect
    limit_s = definition.timeout_s or timeout_s
    return Descriptor(
        name=definition.name,
        description=definition.description,
        input_schema=definition.input_schema,
        capabilities=_capabilities(definition, effect),
        side_effects=effect,
        timeout_ms=None if limit_s is None else max(1, round(limit_s * 1000)),
        tags=sorted(definition.tags),
        annotations=to_mcp(definition)["annotations"],
    )


def _capabilities(definition: ToolDefinition, effect: SideEffects) -> list[str]:
    declared = definition.capabilities
    if derive(declared) != effect:
        declared |= implied(effect)
    spelt = {word for each in declared for word in _SPELT.get(each, (each.value,))}
    return [word for word in CAPABILITIES if word in spelt]


def questions(confirmations: Iterable[Any]) -> list[Question]:
    """Confirmations of the dispatcher, by the names of their attributes.

    Where they would not fit into a line they come without previews: who is asked about large
    arguments can still see those.
    """
    listed = [msgspec.convert(each, Question, from_attributes=True) for each in confirmations]
    if len(msgspec.json.encode(listed)) < MAX_LINE - _FRAME:
        return listed
    return [msgspec.structs.replace(each, preview=None) for each in listed]
