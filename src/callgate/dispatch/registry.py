"""Which tools there are: registered by factory, checked once, found by name.

A name belongs to whoever registered it first. Names and aliases are compared after NFKC
and case folding, so that no look-alike can stand in for another tool.

A session may be given tools of its own (`give`): it sees them, and whoever works for it; to all
others they do not exist. Two sessions may be given different tools of one name. Where a tool of
everyone has the name, that one is meant, whoever came first.

Tools may also be expected (`expect`): whoever looks for such a name, wants it, or wants to see all,
finds them registered as if they always had been. Nothing is loaded for those that nobody looks at.
"""

from __future__ import annotations

import inspect
import logging
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeGuard

import msgspec

from callgate.core.effects import Capability, SideEffects, derive, implied
from callgate.core.errors import ToolRegistrationError
from callgate.core.json_schema.schemas import MAX_BYTES, ArgumentSchema, ForeignSchema, first_line
from callgate.core.sessions import Mode, Session
from callgate.core.tools import Tool, ToolDefinition, ToolFactory
from callgate.dispatch.tags import Tags
from callgate.redaction.summaries import ArgumentSummary

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_MCP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}\Z|mcp\.[a-z0-9_-]+/[!-~]{1,128}\Z")
"""What others call the tool of an MCP server, and what rules and people call it."""
_PATH_NAMES = frozenset({"path", "paths", "file", "files", "cwd", "dir", "directory", "root"})
_SLOW = frozenset({SideEffects.EXECUTE, SideEffects.NETWORK})

_log = logging.getLogger("callgate.registry")


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as the stages see it: its definition and what was derived from it."""

    name: str
    definition: ToolDefinition
    factory: ToolFactory
    effect: SideEffects
    has_effects: bool
    capabilities: frozenset[Capability]
    capability_names: tuple[str, ...]
    destructive: bool
    schema: ArgumentSchema
    summary: ArgumentSummary
    path_params: tuple[str, ...]
    timeout_s: float
    everyone_sees_it: bool
    policy_key: str
    """All that a decision without rules depends on."""


class _Given:
    """The tools of one session alone."""

    def __init__(self) -> None:
        self.tools: dict[str, Registered] = {}
        self.names: dict[str, str] = {}
        self.withheld: dict[str, str] = {}
        """Why a tool is not to be used at the moment, by its name."""


class _Expected(msgspec.Struct, frozen=True, eq=False):
    """Tools that are registered once somebody looks at one of them."""

    names: frozenset[str]
    begins: tuple[str, ...]
    bring: Callable[[], None]
    position: int

    @property
    def is_unnamed(self) -> bool:
        return not self.names and not self.begins

    def may_have(self, name: str) -> bool:
        return name in self.names or name.startswith(self.begins)


class Registry:
    def __init__(self, *, max_argument_bytes: int = MAX_BYTES) -> None:
        self._max_argument_bytes = max_argument_bytes
        self._listeners: set[Callable[[], None]] = set()
        self._expected: list[_Expected] = []
        self._position = 0
        """Of what is registered now, in the list of all."""
        self._positions: dict[str, int] = {}
        self._tools: dict[str, Registered] = {}
        self._names: dict[str, str] = {}
        """Folded name or alias to the name it belongs to."""
        self._disabled: dict[str, str] = {}
        self._conditions: dict[str, Callable[[Session], str | None]] = {}
        self._unlisted: set[str] = set()
        self._given: dict[str, _Given] = {}
        """By session."""
        self.tags = Tags()

    def register(self, factory: ToolFactory) -> Registered:
        """Take a factory; raise `ToolRegistrationError` where its definition is wrong."""
        definition = _definition(factory)
        tool = _examine(definition, factory, self._max_argument_bytes)
        names = (definition.name, *definition.aliases)
        self._meet(*map(_fold, names))
        for name in names:
            owner = self._names.get(_fold(name))
            if owner is not None:
                raise ToolRegistrationError(f"tool name {name!r} is taken by tool {owner!r}")
        for name in names:
            self._names[_fold(name)] = self._names[name] = definition.name
        self._tools[definition.name] = tool
        self._positions[definition.name] = self._position
        self._tell()
        return tool

    def expect(self, names: Collection[str], bring: Callable[[], None]) -> None:
        """Have `bring` register tools once one of them is looked at. These are their names and
        aliases, or how they begin (`gmail_*`): theirs as if they were registered now."""
        exact = frozenset(name for name in names if not name.endswith("*"))
        begins = tuple(name.removesuffix("*") for name in names if name not in exact)
        self._expected.append(_Expected(exact, begins, bring, self._position + 1))
        self._position += 2
        self._meet(*self._names)  # where one is taken already, the clash is one of now

    def expect_unnamed(self, bring: Callable[[], None]) -> None:
        """Have `bring` register tools whose names nobody knows yet, once a tool is found nowhere
        else, or all are listed. The names of all others are theirs before."""
        self._position += 2
        self._expected.append(_Expected(frozenset(), (), bring, self._position - 1))

    def file_tools(self) -> dict[str, SideEffects]:
        """The tools that read and write files themselves, by every name that they have."""
        return {
            name: tool.effect
            for tool in self._tools.values()
            if tool.path_params and not tool.definition.sandboxed and tool.effect not in _SLOW
            for name in (tool.name, *tool.definition.aliases)
        }

    def meet_all(self) -> None:
        """Have all registered that are expected."""
        for expected in tuple(self._expected):
            self._bring(expected)

    def _meet(self, *names: str) -> bool:
        """Have those registered that are expected under such names; whether there were any."""
        matching = [each for each in self._expected if any(each.may_have(name) for name in names)]
        for expected in matching:
            self._bring(expected)
        return bool(matching)

    def _bring(self, expected: _Expected) -> None:
        if expected not in self._expected:
            return  # somebody met along the way has looked at it
        self._expected.remove(expected)
        position, self._position = self._position, expected.position
        try:
            expected.bring()
        except BaseException:
            self._expected.append(expected)  # the names are not free for others now
            raise
        finally:
            self._position = position
        # In the order in which they were announced, whoever was looked at first.
        ordered = sorted(self._tools.items(), key=lambda item: self._positions[item[0]])
        self._tools = dict(ordered)

    def unregister(self, name: str) -> None:
        """Remove a tool; calls that run already finish. An unknown name is harmless."""
        self._meet(name)
        tool = self._tools.pop(name, None)
        if tool is not None:
            del self._positions[name]
            for taken in (name, *tool.definition.aliases):
                del self._names[_fold(taken)]
                self._names.pop(taken, None)
            self._tell()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Have somebody told of each tool of everyone that comes or goes; how to end that."""
        self._listeners.add(heard)
        return lambda: self._listeners.discard(heard)

    def _tell(self) -> None:
        for heard in tuple(self._listeners):
            heard()

    def give(self, session_id: str, factory: ToolFactory) -> Registered:
        """Take a factory for one session. `ToolRegistrationError` where its definition is wrong,
        or a tool of everyone, or of this session, has one of its names."""
        definition = _definition(factory)
        tool = _examine(definition, factory, self._max_argument_bytes)
        given = self._given.setdefault(session_id, _Given())
        names = (definition.name, *definition.aliases)
        self._meet(*map(_fold, names))
        for name in names:
            owner = self._names.get(_fold(name)) or given.names.get(_fold(name))
            if owner is not None:
                raise ToolRegistrationError(f"tool name {name!r} is taken by tool {owner!r}")
        for name in names:
            given.names[_fold(name)] = given.names[name] = definition.name
        given.tools[definition.name] = tool
        return tool

    def withhold(self, session_id: str, name: str, why: str | None) -> None:
        """Hide a tool that a session was given; None: show it again."""
        given = self._given[session_id]
        if why is None:
            given.withheld.pop(name, None)
        else:
            given.withheld[name] = why

    def take_back(self, session_id: str) -> None:
        """All that a session was given; calls that run already finish."""
        self._given.pop(session_id, None)

    def find(self, name: str, session: Session | None = None) -> Registered | None:
        """A tool of everyone, or one that the session was given."""
        tool = self._tools.get(name)
        if tool is not None:
            return tool
        if (owner := self._names.get(name)) is not None:
            return self._tools[owner]
        if self._expected and self._meet(str(name)):
            return self.find(name, session)
        given = self._given_to(session)
        if given is not None and (owner := given.names.get(name)) is not None:
            return given.tools[owner]
        unnamed = [each for each in self._expected if each.is_unnamed]
        for expected in unnamed:
            self._bring(expected)
        return self.find(name, session) if unnamed else None

    def _given_to(self, session: Session | None) -> _Given | None:
        """What a session was given, or the one that it works for."""
        if not self._given or session is None:
            return None
        given = self._given.get(session.id)
        if given is None and session.parent is not None:
            return self._given.get(session.parent)
        return given

    def of(self, session: Session) -> list[Registered]:
        """Every tool that there is for a session, whether or not it sees it."""
        given = self._given_to(session)
        tools = () if given is None else given.tools.values()
        return [*self, *(tool for tool in tools if self.find(tool.name, session) is tool)]

    def disable_only(self, names: Collection[str], reason: str) -> None:
        """Keep these tools, and no others, registered but out of everyone's sight."""
        changed = {*self._disabled} != {*names}
        self._disabled = dict.fromkeys(names, reason)
        if changed:
            self._tell()

    def offer_where(self, name: str, why_not: Callable[[Session], str | None]) -> None:
        """Hide a tool from the sessions for which `why_not` has a reason."""
        self._conditions[name] = why_not

    def unlist(self, name: str) -> None:
        """Tell nobody of a tool; whoever knows its name may call it."""
        self._unlisted.add(name)

    def missing_because(self, tool: Registered, session: Session) -> str | None:
        """What a session lacks for a tool that depends on it; None where it lacks nothing."""
        if tool.name in self._disabled:
            return None
        if missing := self.tags.missing(tool.definition, session):
            return self.tags.explain(missing)
        given = self._given_to(session)
        if given is not None and given.tools.get(tool.name) is tool:
            return given.withheld.get(tool.name)
        condition = self._conditions.get(tool.name)
        return None if condition is None else condition(session)

    def hidden_because(self, tool: Registered, session: Session) -> str | None:
        """Why a session does not see a tool; None where it does."""
        if self._disabled and (reason := self._disabled.get(tool.name)) is not None:
            return reason
        if tool.everyone_sees_it and tool.name not in self._conditions and not self._given:
            return None
        definition = tool.definition
        if definition.required_tags and (missing := self.tags.missing(definition, session)):
            return self.tags.explain(missing) or f"needs {', '.join(sorted(missing))}"
        if definition.hidden_from_workers and session.is_worker:
            return "not for sub-agents"
        return self.missing_because(tool, session)

    def listed(self, session: Session) -> list[Registered]:
        """The tools that a session is told of."""
        if session.mode is Mode.NONE:
            return []
        return [
            tool
            for tool in self.of(session)
            if tool.name not in self._unlisted and self.hidden_because(tool, session) is None
        ]

    def __iter__(self) -> Iterator[Registered]:
        self.meet_all()
        return iter(tuple(self._tools.values()))


def _definition(factory: Any) -> ToolDefinition:
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
    return tool.definition


def _is_async(function: Any) -> bool:
    """Whether a call of it gives a coroutine, as far as its declaration shows."""
    declared = inspect.unwrap(function)
    plain = inspect.isfunction(declared) or inspect.ismethod(declared)
    return not plain or inspect.iscoroutinefunction(declared)


def _is_tool(value: object) -> TypeGuard[Tool]:
    """As `isinstance` says it of a protocol, in a tenth of the time: there are many tools."""
    return all(hasattr(value, name) for name in ("definition", "execute", "cancel"))


def _examine(definition: ToolDefinition, factory: ToolFactory, max_bytes: int) -> Registered:
    name = definition.name
    for spelling in (name, *definition.aliases):
        shape = _MCP_NAME if definition.source == "mcp" else _NAME
        if not isinstance(spelling, str) or not shape.match(spelling):
            raise ToolRegistrationError(
                f"tool name {spelling!r} must be snake_case: a-z, 0-9 and _, at most 64"
            )
    effect, capabilities = _effect(definition)
    schema = ArgumentSchema(
        definition.input_schema,
        name,
        max_bytes=max_bytes,
        foreign=definition.source == "mcp",  # whose schema may use all of JSON Schema
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
    if definition.max_concurrent is not None and definition.max_concurrent < 1:
        raise ToolRegistrationError(f"tool {name!r}: max_concurrent must be at least 1")
    return Registered(
        name=name,
        definition=definition,
        factory=factory,
        effect=effect,
        has_effects=effect.has_effects,
        capabilities=capabilities,
        capability_names=tuple(sorted(capabilities)),
        destructive=Capability.DESTRUCTIVE in capabilities,
        schema=schema,
        summary=ArgumentSummary(definition.input_schema),
        path_params=_path_params(definition),
        timeout_s=definition.timeout_s or (600.0 if effect in _SLOW else 60.0),
        policy_key=f"{name} {effect} {Capability.DESTRUCTIVE in capabilities}",
        everyone_sees_it=not (definition.required_tags or definition.hidden_from_workers),
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


def _holds_text(schema: Any) -> bool:
    declared = schema.get("type", ())
    types = {declared} if isinstance(declared, str) else set(declared)
    return "string" in types or ("array" in types and _holds_text(schema.get("items", {})))


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
