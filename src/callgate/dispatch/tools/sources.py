"""Where tools come from: one port, and small wrappers around it, each for one purpose.

    FixedTools    tools that are there from the start: built-in ones, functions
    Lazy          loaded once one of its tools is looked at
    ForSession    one session alone has its tools
    OnCondition   hidden from the sessions for which there is a reason
    OnlyIn        hidden outside of one workspace
    Disabled      hidden while there is a reason, tool by tool

Hosts, MCP servers and packages of tools are sources of their own (`callgate.sources`). A `Registry`
is an ordered list of sources: it reads the tools of each, checks their names, and finds them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.tools import ToolFactory

WhyNot = Callable[[Session], str | None]
"""Why a session does not see a tool; None where it does."""


class SourceTool(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A tool of a source. The same object for as long as it is the same tool."""

    factory: ToolFactory
    why_not: WhyNot | None = None
    listed: bool = True
    """False: nobody is told of it, and whoever knows its name may call it."""
    session_id: str | None = None
    """The one session that has it, with those that work for it; None: everyone has."""


class ToolSource(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """Of a lazy source: the names and aliases of its tools, or how they begin (`gmail_*`). They
        are its own from the start. Empty: nobody knows them before it is loaded."""
        ...

    @property
    def is_lazy(self) -> bool:
        """Whether `tools` is not to be called before one of them is looked at."""
        ...

    def tools(self) -> Sequence[SourceTool]:
        """Its tools now."""
        ...

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        """A tool cannot be registered. It is left out, or if this raises, all of the source are."""
        ...

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function whenever `tools` has changed; returns the function that ends it."""
        ...

    async def close(self) -> None:
        """Stop what runs for its tools. Idempotent."""
        ...


class Source:
    """What most sources have in common: tools that are there, all of them or none."""

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
    """A source that is made once one of its tools is looked at. Without names it is made once a
    tool is found nowhere else, or all are listed."""

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
    """Each tool of a source, with one thing changed."""

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
        """`workspace`: its real path."""

        def why_not(session: Session) -> str | None:
            here = os.path.realpath(session.workspace) == workspace
            return None if here else f"it belongs to the workspace {workspace}"

        super().__init__(source, why_not)


class Disabled(_Wrapper):
    def __init__(self, source: ToolSource, reasons: Mapping[str, str]) -> None:
        """`reasons`: why a tool is hidden now, by its name."""

        def wrap(tool: SourceTool) -> SourceTool:
            name = tool.factory().definition.name
            return _hidden(tool, lambda session: reasons.get(name))

        super().__init__(source, wrap)


def _hidden(tool: SourceTool, why_not: WhyNot) -> SourceTool:
    """The tool with one more reason, which is looked at first."""
    other = tool.why_not
    if other is None:
        return msgspec.structs.replace(tool, why_not=why_not)
    return msgspec.structs.replace(tool, why_not=lambda session: why_not(session) or other(session))
