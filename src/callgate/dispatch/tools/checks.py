"""Checks of a tool before its registration: its definition, and its names.

The stages see a checked tool (`Registered`). Names and aliases are compared after NFKC and case
folding, so that no look-alike can impersonate another tool.
"""

from __future__ import annotations

import inspect
import logging
import re
import unicodedata
from typing import Any, TypeGuard

import msgspec

from callgate.core.content import Label
from callgate.core.effects import Capability, SideEffects, derive, implied
from callgate.core.errors import ToolRegistrationError
from callgate.core.schemas import MAX_BYTES, ArgumentSchema, ForeignSchema, first_line
from callgate.core.sessions import Session
from callgate.core.tools import QUERY_PARAMETERS, Tool, ToolDefinition, ToolFactory
from callgate.dispatch.tools.sources import SourceTool, WhyNot
from callgate.redaction.data import ArgumentSummary

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_MCP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}\Z|mcp\.[a-z0-9_-]+/[!-~]{1,128}\Z")
"""A tool name of an MCP server, in wire spelling or in the spelling of rules."""
_FRAMEWORK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}\Z")
_SHAPES = {"mcp": _MCP_NAME, "framework": _FRAMEWORK_NAME}
"""By source: pattern of names. Foreign tools also have schemas in all of JSON Schema."""
_PATH_NAMES = frozenset({"path", "paths", "file", "files", "cwd", "dir", "directory", "root"})
SLOW = frozenset({SideEffects.EXECUTE, SideEffects.NETWORK})
_OUTWARD = frozenset(
    {Capability.ACCESSES_NETWORK, Capability.MUTATES_EXTERNAL, Capability.CONTROLS_BROWSER}
)

_FOREIGN = frozenset({"mcp", "host", "client"})
"""Sources whose claims about their own tools are not trusted."""

_log = logging.getLogger("callgate.registry")


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """A registered tool: its definition and derived facts."""

    name: str
    definition: ToolDefinition
    factory: ToolFactory
    """Called once for each execution."""
    previewer: Any = None
    """An instance whose `preview` describes the effect of a call before its approval; None if the
    tool has no preview."""
    effect: SideEffects
    has_effects: bool
    capabilities: frozenset[Capability]
    capability_names: tuple[str, ...]
    destructive: bool
    schema: ArgumentSchema
    summary: ArgumentSummary
    path_params: tuple[str, ...]
    output_labels: frozenset[Label]
    outward: bool
    """Whether it sends data out; a read over the network counts."""
    is_guarded: bool
    """Whether the guard applies: the tool sends data out, destroys data, or executes commands."""
    timeout_s: float
    why_not: WhyNot | None = None
    """Returns the reason for which a session does not see the tool."""
    listed: bool = True
    """False: lists of tools omit it, but a client that knows its name may call it."""
    session_id: str | None = None
    """The only session that has it; None: all sessions have it."""
    everyone_sees_it: bool
    policy_key: str
    """Key of all facts about the tool that a cached decision depends on."""


def _instance(factory: Any) -> Tool:
    """Return an instance of a tool, checked for the attributes of every tool."""
    if not callable(factory):
        raise ToolRegistrationError(
            f"register takes a factory (a function that makes a tool), not {type(factory).__name__}"
        )
    tool: object = factory()
    if not _is_tool(tool):
        raise ToolRegistrationError(
            f"{factory!r} made {type(tool).__name__}, which lacks definition, execute or cancel"
        )
    if not isinstance(tool.definition, ToolDefinition):
        raise ToolRegistrationError(f"{type(tool).__name__}.definition is not a ToolDefinition")
    if not _is_async(tool.execute):
        raise ToolRegistrationError(
            f"{type(tool).__name__}.execute must be an async function (async def execute)"
        )
    if tool is factory():
        _log.warning(
            "the factory of tool %r makes one object for all calls: it must hold no state",
            tool.definition.name,
        )
    return tool


def _is_async(function: Any) -> bool:
    """Whether a call returns a coroutine, as far as the declaration shows."""
    declared = inspect.unwrap(function)
    plain = inspect.isfunction(declared) or inspect.ismethod(declared)
    return not plain or inspect.iscoroutinefunction(declared)


def _is_tool(value: object) -> TypeGuard[Tool]:
    """Whether a value has the attributes of a tool. Faster than `isinstance` with a protocol."""
    return all(hasattr(value, name) for name in ("definition", "execute", "cancel"))


def examine(tool: SourceTool, max_bytes: int = MAX_BYTES) -> Registered:
    """Check a tool. Raises `ToolRegistrationError` if its definition is wrong."""
    instance = _instance(tool.factory)
    definition = instance.definition
    name = definition.name
    for spelling in (name, *definition.aliases):
        shape = _SHAPES.get(definition.source, _NAME)
        if not isinstance(spelling, str) or not shape.match(spelling):
            allowed = "snake_case: a-z, 0-9 and _, at most 64"
            if definition.source in _SHAPES:
                allowed = "of letters, digits, _, - and ., at most 128"
            raise ToolRegistrationError(f"tool name {spelling!r} must be {allowed}")
    effect, capabilities = _effect(definition)
    schema = ArgumentSchema(
        definition.input_schema,
        name,
        max_bytes=max_bytes,
        foreign=definition.source in _SHAPES,
        lazy=definition.source == "builtin",
    )
    if definition.output_schema is not None:
        try:
            ForeignSchema(definition.output_schema)
        except (ValueError, TypeError, RecursionError) as error:
            problem = first_line(error)
            raise ToolRegistrationError(f"tool {name!r}: output_schema: {problem}") from None
    if definition.timeout_s is not None and not definition.timeout_s > 0:
        raise ToolRegistrationError(f"tool {name!r}: timeout_s must be positive")
    properties = definition.input_schema.get("properties", {})
    for alias, spelling in definition.argument_aliases.items():
        if alias in properties or spelling not in properties:
            raise ToolRegistrationError(
                f"tool {name!r}: argument alias {alias!r} must be new, "
                f"and {spelling!r} in the schema"
            )
    for each in definition.destination_params or ():
        if each not in properties:
            raise ToolRegistrationError(
                f"tool {name!r}: destination_params names {each!r}, which is not in its schema"
            )
    if definition.max_concurrent is not None and definition.max_concurrent < 1:
        raise ToolRegistrationError(f"tool {name!r}: max_concurrent must be at least 1")
    destructive = Capability.DESTRUCTIVE in capabilities
    outward = _is_outward(definition, capabilities)
    return Registered(
        name=name,
        definition=definition,
        factory=tool.factory,
        previewer=instance if hasattr(instance, "preview") else None,
        effect=effect,
        has_effects=effect.has_effects,
        capabilities=capabilities,
        capability_names=tuple(sorted(capabilities)),
        destructive=destructive,
        schema=schema,
        summary=ArgumentSummary(definition.input_schema),
        path_params=_path_params(definition),
        output_labels=_output_labels(definition, capabilities),
        outward=outward,
        is_guarded=outward or destructive or effect is SideEffects.EXECUTE,
        timeout_s=definition.timeout_s or (600.0 if effect in SLOW else 60.0),
        policy_key=f"{' '.join((name, *definition.aliases))} {effect} {destructive} {outward}",
        why_not=tool.why_not,
        listed=tool.listed,
        session_id=tool.session_id,
        everyone_sees_it=not (
            definition.required_tags or definition.hidden_from_workers or tool.why_not
        ),
    )


def _effect(definition: ToolDefinition) -> tuple[SideEffects, frozenset[Capability]]:
    try:
        capabilities = frozenset(Capability(each) for each in definition.capabilities)
    except ValueError as error:
        raise ToolRegistrationError(f"tool {definition.name!r}: {error}") from None
    derived = derive(capabilities)
    declared = definition.side_effects
    if declared is None and derived is None:
        raise ToolRegistrationError(
            f"tool {definition.name!r} declares neither side_effects nor capabilities"
        )
    if declared is None:
        assert derived is not None
        return derived, capabilities
    declared = SideEffects(declared)
    if derived is not None and derived.rank > declared.rank:
        raise ToolRegistrationError(
            f"tool {definition.name!r} declares side_effects {declared}, "
            f"but its capabilities reach {derived}"
        )
    return declared, capabilities | implied(declared)


def _path_params(definition: ToolDefinition) -> tuple[str, ...]:
    properties = definition.input_schema.get("properties", {})
    if definition.path_params is not None:
        for name in definition.path_params:
            if name not in properties:
                raise ToolRegistrationError(
                    f"tool {definition.name!r}: path_params names {name!r}, "
                    "which is not in its schema"
                )
        return definition.path_params
    if not definition.requires_workspace:
        return ()
    return tuple(
        name
        for name, schema in properties.items()
        if (name in _PATH_NAMES or name.endswith("_path")) and _holds_text(schema)
    )


def _is_outward(definition: ToolDefinition, capabilities: frozenset[Capability]) -> bool:
    """Whether it sends data out. A tool with an explicitly empty list of destination parameters
    reads only from the one service in the settings, which does not count without a search text."""
    outward = _OUTWARD & capabilities
    is_fixed = definition.destination_params == () and definition.source not in _FOREIGN
    if is_fixed and QUERY_PARAMETERS.isdisjoint(definition.input_schema.get("properties", ())):
        outward -= {Capability.ACCESSES_NETWORK}
    return bool(outward)


def _output_labels(
    definition: ToolDefinition, capabilities: frozenset[Capability]
) -> frozenset[Label]:
    """Return the labels of its output; a tool of a server or host cannot vouch for itself."""
    foreign = definition.source in _FOREIGN
    if definition.output_labels is not None:
        try:
            declared = frozenset(map(Label, definition.output_labels))
        except ValueError as error:
            raise ToolRegistrationError(f"tool {definition.name!r}: {error}") from None
        return declared - {Label.VOUCHED} if foreign else declared
    reaches_out = not _OUTWARD.isdisjoint(capabilities)
    changes = Capability.MUTATES_EXTERNAL in capabilities  # such a tool returns a receipt
    if definition.source == "mcp" or (reaches_out and (foreign or not changes)):
        return frozenset({Label.UNTRUSTED})
    if definition.source == "builtin" and definition.requires_workspace:
        return frozenset({Label.WORKSPACE})
    return frozenset()


def _holds_text(schema: Any) -> bool:
    declared = schema.get("type", ())
    types = {declared} if isinstance(declared, str) else set(declared)
    return "string" in types or ("array" in types and _holds_text(schema.get("items", {})))


class ToolNames:
    """The tools by name: global ones, and ones of a single session."""

    def __init__(self) -> None:
        self.everyone: dict[str, Registered] = {}
        """Keys are names and aliases, as spelled and folded."""
        self._sessions: dict[str, dict[str, Registered]] = {}
        """By session id: the tools of that session alone."""
        self.version = 0
        """Changes whenever a name may resolve to another tool, or to none."""

    def claim(self, tool: Registered) -> None:
        """Add the names of a tool. Raises `ToolRegistrationError` if a tool of all sessions, or of
        its session, has one of them."""
        names = self._of(tool.session_id)
        self.version += 1
        for name in spellings(tool):
            owner = self.everyone.get(fold(name)) or names.get(fold(name))
            if owner is not None:
                raise ToolRegistrationError(f"tool name {name!r} is taken by tool {owner.name!r}")
        for name in spellings(tool):
            names[fold(name)] = names[name] = tool
        if tool.session_id is not None:
            self._sessions[tool.session_id] = names

    def release(self, tool: Registered) -> None:
        names = self._of(tool.session_id)
        self.version += 1
        for name in spellings(tool):
            names.pop(fold(name), None)
            names.pop(name, None)
        if tool.session_id is not None and not names:
            del self._sessions[tool.session_id]

    def of_session(self, session: Session | None) -> dict[str, Registered]:
        """Return the tools of a session alone; a sub-agent has its parent's."""
        if not self._sessions or session is None:
            return {}
        names = self._sessions.get(session.id)
        if names is None and session.parent is not None:
            names = self._sessions.get(session.parent)
        return names or {}

    def _of(self, session_id: str | None) -> dict[str, Registered]:
        return self.everyone if session_id is None else self._sessions.get(session_id, {})


def spellings(tool: Registered) -> tuple[str, ...]:
    return (tool.name, *tool.definition.aliases)


def fold(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
