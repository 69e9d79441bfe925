"""Tool definitions of an MCP server: names, pinned form, and conversion to callgate tools."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolRegistrationError
from callgate.core.patterns import Match, compile_tokens, parse_wildcards
from callgate.core.texts import escape, is_seen
from callgate.core.tools import ToolDefinition
from callgate.protocol.host_v1.frames import excerpt

LONGEST = 64
"""Longest tool name that every model accepts, in characters."""
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]")


def model_name(server: str, tool: str) -> str:
    """Return the tool's name for models. A long name is truncated and ends with a hash."""
    name = f"mcp__{server}__{_UNUSUAL.sub('_', tool)}"
    if len(name) <= LONGEST:
        return name
    mark = hashlib.sha256(tool.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - len(mark) - 1]}_{mark}"


def rule_name(server: str, tool: str) -> str:
    return f"mcp.{server}/{tool}"


MOST_TOOLS = 1_000
PINNED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
LONGEST_DESCRIPTION = 32_000
"""Characters."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Schema keywords whose keys are names, not keywords."""
_MEANT = frozenset(
    {
        "enum",
        "const",
        "default",
        "examples",
        "pattern",
        "required",
        "dependentRequired",
        "$ref",
        "$id",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "$schema",
        "type",
    }
)
"""Schema keywords whose value must not change."""
_NAME = re.compile(r"[!-~]{1,128}\Z")


class Beliefs(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for the tools of one server."""

    effect: SideEffects = SideEffects.EXECUTE
    effects: Mapping[str, SideEffects] = {}
    beside: SideEffects | None = None
    """Default effect of resources, prompts and completions (`tools.extras`); None: `effect`."""
    trusted: bool = False
    """Whether the effects that the server declares are accepted."""
    tools: tuple[str, ...] | None = None
    """Globs of the tools to offer; None: all tools."""
    exclude: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Arguments that name files in the workspace."""
    timeout_s: float | None = None

    def includes(self, tool: str) -> bool:
        wanted = self.tools is None or any(_names(each)(tool) for each in self.tools)
        return wanted and not any(_names(each)(tool) for each in self.exclude)


@lru_cache(maxsize=1024)
def _names(glob: str) -> Match:
    return compile_tokens(parse_wildcards(glob, classes=True))


def names_of(entries: list[dict[str, Any]], server: str) -> list[str]:
    """Return the tool names of a list. Raises `ToolRegistrationError` if one is not usable."""
    names: list[str] = []
    if len(entries) > MOST_TOOLS:
        problem = f"it lists {len(entries)} tools; the maximum is {MOST_TOOLS}"
        raise ToolRegistrationError(problem)
    for number, entry in enumerate(entries):
        name = entry.get("name")
        if type(name) is not str or not _NAME.match(name):
            shown = excerpt(name) if type(name) is str else "nothing"
            raise ToolRegistrationError(
                f"tool {number} of MCP server {server} has an invalid name: {shown}"
            )
        names.append(name)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ToolRegistrationError(f"MCP server {server} has two tools named {excerpt(twice)}")
    return names


def definitions(
    entries: list[dict[str, Any]], server: str, beliefs: Beliefs
) -> Iterable[tuple[str, ToolDefinition]]:
    """Yield the tools that the settings include: name on the server, and definition."""
    for name, entry in zip(names_of(entries, server), entries, strict=True):
        if beliefs.includes(name):
            yield name, _definition(name, entry, server, beliefs)


def _definition(
    name: str, entry: Mapping[str, Any], server: str, beliefs: Beliefs
) -> ToolDefinition:
    schema = entry.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    override = beliefs.effects.get(name)
    capabilities: frozenset[Capability] = frozenset()
    if override is None and beliefs.trusted:
        capabilities = claimed(entry.get("annotations"))
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    return ToolDefinition(
        name=model_name(server, name),
        aliases=(rule_name(server, name),),
        description=readable(entry.get("description") or entry.get("title") or ""),
        input_schema=readable_schema(schema),
        output_schema=entry.get("outputSchema"),
        side_effects=None if capabilities else override or beliefs.effect,
        capabilities=capabilities,
        path_params=tuple(each for each in beliefs.paths if each in known),
        timeout_s=beliefs.timeout_s,
        source="mcp",
    )


def claimed(annotations: Any) -> frozenset[Capability]:
    """Return the capabilities from a server's annotations; a missing hint means the worst case."""
    hints: Mapping[str, Any] = annotations if isinstance(annotations, dict) else {}
    reaches_out = hints.get("openWorldHint") is not False
    if hints.get("readOnlyHint") is True:
        online = {Capability.ACCESSES_NETWORK} if reaches_out else set()
        return frozenset({Capability.READ_ONLY, *online})
    effect = Capability.MUTATES_EXTERNAL if reaches_out else Capability.WRITES_FILES
    harm = set() if hints.get("destructiveHint") is False else {Capability.DESTRUCTIVE}
    return frozenset({effect, *harm})


def readable(value: Any) -> str:
    """Return a description with invisible characters escaped, which only a model would read."""
    text = str(value)[:LONGEST_DESCRIPTION]
    if text.isascii() and text.isprintable():
        return text  # as most are
    return "".join(each if each in "\n\t" or is_seen(each) else escape(each) for each in text)


def readable_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with invisible characters escaped in its descriptive texts."""
    encoded = msgspec.json.encode(schema)
    if encoded.isascii() and b"\\u" not in encoded:
        return schema
    shown: dict[str, Any] = _readable_in(schema)
    return shown


def _readable_in(value: Any, *, named: bool = False) -> Any:
    """`named`: the keys are names, not keywords."""
    match value:
        case str():
            return readable(value)
        case list():
            return [_readable_in(each) for each in value]
        case dict() if named:
            return {key: _readable_in(each) for key, each in value.items()}
        case dict():
            return {
                key: each if key in _MEANT else _readable_in(each, named=key in _NAMED)
                for key, each in value.items()
            }
    return value
