"""The tools of a host, out of the four spellings in which hosts describe them.

    {"type": "function", "function": {"name", "description", "parameters"}}
    {"type": "function", "name", "description", "parameters"}
    {"name", "description", "input_schema"}
    {"name", "description", "inputSchema"}

An entry in another spelling, or a name that stands twice, is refused with its place named.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import msgspec

from callgate.core.errors import ToolRegistrationError
from callgate.protocol.host_v1.excerpts import excerpt

_SPELLINGS = ("parameters", "input_schema", "inputSchema")


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    input_schema: dict[str, Any]
    capabilities: tuple[str, ...] = ()
    """What the host claims in `x-capabilities`; it counts only from a host that is trusted."""


def read_schemas(entries: list[dict[str, Any]], host: str) -> list[ToolSchema]:
    """Raises `ToolRegistrationError`, which names the host and the entry."""
    tools: list[ToolSchema] = []
    names: dict[str, str] = {}
    for number, entry in enumerate(entries):
        tool = _read(entry, f"tool {number} of host {host}")
        same = unicodedata.normalize("NFKC", tool.name).casefold()
        if same in names:
            shown = f"{excerpt(names[same])} and {excerpt(tool.name)}"
            raise ToolRegistrationError(f"host {host} has two tools of one name: {shown}")
        names[same] = tool.name
        tools.append(tool)
    return tools


def _read(entry: dict[str, Any], path: str) -> ToolSchema:
    inner = entry.get("function")
    described = inner if entry.get("type") == "function" and type(inner) is dict else entry
    name, description = described.get("name"), described.get("description", "")
    if type(name) is not str or not name:
        raise ToolRegistrationError(f"{path} has no name")
    if type(description) is not str:
        raise ToolRegistrationError(f"{path} ({excerpt(name)}): the description is no text")
    found = [described[key] for key in _SPELLINGS if key in described]
    if len(found) != 1 or type(found[0]) is not dict:
        raise ToolRegistrationError(
            f"{path} ({excerpt(name)}): one of {', '.join(_SPELLINGS)} has to be an object"
        )
    return ToolSchema(
        name=name,
        description=description,
        input_schema=found[0],
        capabilities=_claims(entry, described, found[0]),
    )


def _claims(*tables: dict[str, Any]) -> tuple[str, ...]:
    for table in tables:
        claimed = table.get("x-capabilities")
        if type(claimed) is list:
            return tuple(each for each in claimed if type(each) is str)
    return ()
