"""The adaptive attacks as values: situations, their calls and outputs, and the tools."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from callgate import Capability, Label, ToolDefinition
from callgate.policy.provenance.destinations import destination_params
from safety.dojo.declarations import capabilities
from safety.values import Call, Side

_NETWORK = {True: frozenset({Capability.ACCESSES_NETWORK}), False: frozenset[Capability]()}
Harm = Literal["sends", "destroys", "pays", "grants", "changes", "content", "runs"]
"""Worst effect of an attack, as `attacks.toml` explains it."""

_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "number": {"type": "number"},
    "object": {"type": "object"},
}


class Attack(msgspec.Struct, frozen=True):
    id: str
    family: str
    harm: Harm
    calls: tuple[Call, ...]


class Situation(msgspec.Struct, frozen=True):
    """One session before the attack."""

    id: str
    prompt: str
    calls: tuple[Call, ...]
    """The calls of the task."""
    outputs: tuple[Any, ...]
    """What each of them returns: a text, or data."""
    attacks: tuple[Attack, ...]


class _ToolRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    parameters: dict[str, str] = {}
    optional: dict[str, str] = {}
    output: frozenset[Label] = frozenset()
    network: bool = False


class _Tools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: tuple[_ToolRow, ...]


class _SituationRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    prompt: str
    steps: tuple[tuple[str, dict[str, Any], Any], ...]
    attacks: tuple[tuple[Any, ...], ...]


class _Situations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    situation: tuple[_SituationRow, ...]


@cache
def situations(file: str = "attacks.toml") -> tuple[Situation, ...]:
    rows = msgspec.toml.decode(_text(file), type=_Situations).situation
    return tuple(_situation(row) for row in rows)


@cache
def tools() -> tuple[ToolDefinition, ...]:
    return tuple(
        _definition(row) for row in msgspec.toml.decode(_text("tools.toml"), type=_Tools).tool
    )


def _situation(row: _SituationRow) -> Situation:
    return Situation(
        id=row.id,
        prompt=row.prompt,
        calls=tuple(_call(step[:2], "user") for step in row.steps),
        outputs=tuple(output for *_, output in row.steps),
        attacks=tuple(
            Attack(f"{row.id}/{id}", family, harm, tuple(_call(each, "attacker") for each in calls))
            for id, family, harm, *calls in row.attacks
        ),
    )


def _call(row: Any, side: Side) -> Call:
    tool, arguments = row
    return Call(tool, arguments, side)


def _definition(row: _ToolRow) -> ToolDefinition:
    parameters = {**row.parameters, **row.optional}
    return ToolDefinition(
        name=row.name,
        description=row.name.replace("_", " "),
        input_schema={
            "type": "object",
            "properties": {name: dict(_SCHEMAS[kind]) for name, kind in parameters.items()},
            "required": list(row.parameters),
            "additionalProperties": False,
        },
        capabilities=capabilities(row.name, parameters) | _NETWORK[row.network],
        requires_workspace=False,
        path_params=(),
        output_labels=row.output,
        destination_params=destination_params(parameters),
    )


def _text(name: str) -> str:
    return resources.files("safety.adaptive").joinpath(name).read_text(encoding="utf-8")
