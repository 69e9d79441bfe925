"""Port of tool sources, wrappers that each serve one purpose, and tags that hide tools.

    FixedTools    tools that exist from the start: built-in ones, functions
    Lazy          loaded on the first use of one of its tools
    ForSession    visible to one session
    OnCondition   hidden from sessions for which there is a reason
    OnlyIn        hidden outside one workspace
    Disabled      hidden while there is a reason, per tool

Hosts, MCP servers and packages of tools are separate sources (`callgate.sources`). A `Registry` is
an ordered list of sources: it reads the tools of each, checks their names, and finds them.

    tags = session's own + settings + hosts + its model;  a tool is visible iff they include its own

Tags describe features of a session (`vision`, `en`). They grant no rights: they hide useless tools.
Only callgate's own surfaces can set tags that begin with `callgate:`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.tools import ToolDefinition, ToolFactory

WhyNot = Callable[[Session], str | None]
"""Returns the reason for which a session does not see a tool; None if it does."""


class SourceTool(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A tool of a source. Its identity does not change while the tool is the same."""

    factory: ToolFactory
    why_not: WhyNot | None = None
    listed: bool = True
    """False: lists of tools omit it, but a client that knows its name may call it."""
    session_id: str | None = None
    """The only session that has it, with its sub-agents; None: all sessions have it."""


class ToolSource(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """Names and aliases of a lazy source's tools, or prefixes of them (`gmail_*`). They are
        reserved from the start. Empty: unknown before the source is loaded."""
        ...

    @property
    def is_lazy(self) -> bool:
        """Whether `tools` is called only after a lookup of one of them."""
        ...

    def tools(self) -> Sequence[SourceTool]:
        """Return its present tools."""
        ...

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        """Handle a tool whose registration failed. If this raises, the whole source is omitted."""
        ...

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function whenever `tools` has changed. Returns a function that removes it."""
        ...

    async def close(self) -> None:
        """Stop the processes and tasks of its tools. Idempotent."""
        ...


class Source:
    """Base of most sources: not lazy, and one wrong tool refuses the whole source."""

    names: tuple[str, ...] = ()
    is_lazy = False

    def __init__(self) -> None:
        self._listeners: set[Callable[[], None]] = set()

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        raise error

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def changed(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    async def close(self) -> None:
        pass


class FixedTools(Source):
    def __init__(self, factories: Iterable[ToolFactory], *, listed: bool = True) -> None:
        super().__init__()
        self._tools = tuple(SourceTool(factory=each, listed=listed) for each in factories)

    def tools(self) -> Sequence[SourceTool]:
        return self._tools


class Lazy(Source):
    """A source that is created on the first lookup of one of its tools. If it has no names, a
    lookup that finds no other tool creates it, and so does a list of all tools."""

    is_lazy = True

    def __init__(self, names: Iterable[str], load: Callable[[], ToolSource]) -> None:
        super().__init__()
        self.names = tuple(names)
        self._load = load
        self._source: ToolSource | None = None

    def tools(self) -> Sequence[SourceTool]:
        if self._source is None:
            self._source = self._load()
            self._source.listen(self.changed)
        return self._source.tools()

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        assert self._source is not None
        self._source.refused(tool, error)

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()


class _Wrapper:
    """A source whose tools are all wrapped by a function."""

    def __init__(self, source: ToolSource, wrap: Callable[[SourceTool], SourceTool]) -> None:
        self._source = source
        self._wrap = wrap
        self._wrapped: dict[SourceTool, SourceTool] = {}
        self._originals: dict[SourceTool, SourceTool] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return self._source.names

    @property
    def is_lazy(self) -> bool:
        return self._source.is_lazy

    def tools(self) -> Sequence[SourceTool]:
        known = self._wrapped
        self._wrapped = {each: known.get(each) or self._wrap(each) for each in self._source.tools()}
        self._originals = {wrapped: each for each, wrapped in self._wrapped.items()}
        return tuple(self._originals)

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        self._source.refused(self._originals[tool], error)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        return self._source.listen(listener)

    async def close(self) -> None:
        await self._source.close()


class ForSession(_Wrapper):
    def __init__(self, source: ToolSource, session_id: str) -> None:
        super().__init__(source, lambda tool: msgspec.structs.replace(tool, session_id=session_id))


class OnCondition(_Wrapper):
    def __init__(self, source: ToolSource, why_not: WhyNot) -> None:
        super().__init__(source, lambda tool: _hidden(tool, why_not))


class OnlyIn(OnCondition):
    def __init__(self, source: ToolSource, workspace: str) -> None:
        """Create a source for one workspace, given by its real path."""

        def why_not(session: Session) -> str | None:
            here = os.path.realpath(session.workspace) == workspace
            return None if here else f"it belongs to the workspace {workspace}"

        super().__init__(source, why_not)


class Disabled(_Wrapper):
    def __init__(self, source: ToolSource, reasons: Mapping[str, str]) -> None:
        """`reasons` has the reason for which a tool is hidden now, by its name."""

        def wrap(tool: SourceTool) -> SourceTool:
            name = tool.factory().definition.name
            return _hidden(tool, lambda session: reasons.get(name))

        super().__init__(source, wrap)


def _hidden(tool: SourceTool, why_not: WhyNot) -> SourceTool:
    """Return the tool with one more reason, which is checked first."""
    other = tool.why_not
    if other is None:
        return msgspec.structs.replace(tool, why_not=why_not)
    return msgspec.structs.replace(tool, why_not=lambda session: why_not(session) or other(session))


RESERVED = "callgate:"
AGENT_HOOKS = "agent_hooks"
"""Tag of sessions of third-party agents with hooks; only they see the tools of agents."""


class Tags:
    def __init__(self) -> None:
        self._given: dict[str, frozenset[str]] = {}
        """Tags for all sessions, by giver."""
        self._models: dict[str, frozenset[str]] = {}
        self._usual: str | None = None

    def give(self, giver: str, tags: Iterable[str]) -> None:
        """Set the tags that a giver adds to every session."""
        self._given[giver] = _allowed(tags)

    def set_models(self, tags: Mapping[str, Iterable[str]], usual: str | None) -> None:
        """Set the tags of each model. `usual` is the model of sessions that name none."""
        self._models = {name: _allowed(each) for name, each in tags.items()}
        self._usual = usual

    def of(self, session: Session) -> frozenset[str]:
        model = self._usual if session.model is None else session.model
        at_work = frozenset[str]() if model is None else self._models.get(model, frozenset())
        return session.tags.union(at_work, *self._given.values())

    def missing(self, definition: ToolDefinition, session: Session) -> frozenset[str]:
        return definition.required_tags - self.of(session)

    def explain(self, missing: frozenset[str]) -> str | None:
        """Return the missing tags and their possible givers; None if a tag is internal."""
        if any(tag.startswith(RESERVED) for tag in missing):
            return None
        return "; ".join(self._explain(tag) for tag in sorted(missing))

    def _explain(self, tag: str) -> str:
        models = [f"model {name!r}" for name, tags in self._models.items() if tag in tags]
        givers = " or ".join(models) or "no host, model or setting"
        return f"it needs the tag {tag!r}, which {givers} gives (`tags` in the settings)"


def _allowed(tags: Iterable[str]) -> frozenset[str]:
    return frozenset(tag for tag in tags if not tag.startswith(RESERVED))
