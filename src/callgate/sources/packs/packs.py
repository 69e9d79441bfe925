"""Packages of tools as sources: those that we ship, and those that a user enabled.

    entry point -> function(PackContext) -> Pack -> its tools

A package is loaded once one of its tools is looked at. One of others that cannot be used is
reported, with the reason; all its tools are used, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from callgate import shipped
from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.text.spelling import nearest
from callgate.core.tools import ToolFactory
from callgate.dispatch.failures import log_failure
from callgate.dispatch.tools.sources import Source, SourceTool
from callgate.sources.packs.values import Pack, PackContext, PackTool, load_entry

if TYPE_CHECKING:
    from callgate.core.messages import Speaker
    from callgate.sources.packs.installed import Entry

_log = logging.getLogger("callgate")

_OURS = ("builtin", "mcp", "host")
"""Origins that a package of others must not claim: they are read by other rules."""


class Packs:
    """The packages of one runtime."""

    def __init__(
        self,
        context: Callable[[str], PackContext],
        enable: Sequence[str],
        isolated: Callable[[ToolFactory], ToolFactory],
        report: Callable[[str], None],
    ) -> None:
        """`enable`: what the settings enable. `isolated` puts the tool of a sync function into a
        process of its own. `report` is told which packages cannot be used, and why."""
        self._context = context
        self._enable = enable
        self._isolated = isolated
        self._report = report
        self._shipped: dict[str, Pack] = {}
        self._enabled: dict[str, Pack] = {}
        self._unclosed: dict[str, Pack] = {}

    def shipped_tools(self, pack: shipped.ShippedPack) -> ShippedTools:
        """The tools of a package of ours."""
        return ShippedTools(self, pack.name, _tools(self._load_shipped(pack)))

    def enabled_tools(self) -> EnabledTools:
        """The tools of the installed packages that the settings enable."""
        from callgate.sources.packs.installed import installed  # lazy: it reads all metadata  # noqa: PLC0415

        source = EnabledTools(self)
        found = {each.name: each for each in installed("callgate.tools")}
        ours = {each.name for each in shipped.PACKS}
        for name in dict.fromkeys(self._enable):
            if name in found:
                self._enable_one(source, found[name])
            elif name not in ours:
                near = nearest(name, [*found, *ours])
                meant = "" if near is None else f"; did you mean {near!r}?"
                self._report(
                    f"[packs] enable names {name!r}, which no installed package brings{meant}"
                )
        return source

    def _enable_one(self, source: EnabledTools, entry: Entry) -> None:
        from callgate.sources.packs.installed import why  # lazy: as above  # noqa: PLC0415

        problem = entry.problem
        if problem is None:
            try:
                pack = self._load(entry.name, entry.value)
                source.add(entry, _tools(pack, self._foreign))
                self._enabled[entry.name] = pack
                return
            except ToolRegistrationError as error:
                problem = str(error)
            except (Exception, SystemExit) as error:  # the package's own code
                problem = why(error)
            self._drop(entry.name)
        self._report_unused(entry, problem)

    def disable(self, entry: Entry, problem: str) -> None:
        """Use nothing of a package, because its tools cannot be registered."""
        self._drop(entry.name)
        self._report_unused(entry, problem)

    def _drop(self, name: str) -> None:
        """It tells models nothing, and is not closed."""
        self._enabled.pop(name, None)
        self._unclosed.pop(name, None)

    def _report_unused(self, entry: Entry, problem: str) -> None:
        self._report(f"the package {entry.name} ({entry.package}) is not used: {problem}")

    def _load_shipped(self, pack: shipped.ShippedPack) -> Pack:
        if pack.name not in self._shipped:
            self._shipped[pack.name] = self._load(pack.name, pack.entry)
        return self._shipped[pack.name]

    def _load(self, name: str, entry: str) -> Pack:
        pack = load_entry(entry)(self._context(name))
        if not isinstance(pack, Pack):
            raise TypeError(f"{entry} gave {type(pack).__name__}, not a Pack")
        self._unclosed[name] = pack
        return pack

    def _foreign(self, factory: ToolFactory) -> ToolFactory:
        definition = getattr(factory(), "definition", None)
        origin = getattr(definition, "source", None)
        if origin in _OURS:
            raise ToolRegistrationError(f"a tool of a package cannot have the source {origin!r}")
        return self._isolated(factory)

    def prompt(self, session: Session) -> str:
        """What the packages tell a model in a session."""
        texts = []
        for name, pack in self._all().items():
            if pack.prompt is not None:
                try:
                    texts.append(str(pack.prompt(session)))
                except Exception as error:  # a package's own code: the turn goes on without it
                    log_failure(_log, error, "package %s failed to say what models are told", name)
        return "\n\n".join(filter(None, texts))

    def speaker(self) -> Speaker | None:
        """Of the first package that brings one."""
        speakers = (each.speaker for each in self._all().values())
        return next((each() for each in speakers if each is not None), None)

    def _all(self) -> dict[str, Pack]:
        return {each.name: self._load_shipped(each) for each in shipped.PACKS} | self._enabled

    async def close(self) -> None:
        """Close every package that was loaded and not dropped. Idempotent."""
        for name in tuple(self._unclosed):
            await self.close_one(name)

    async def close_one(self, name: str) -> None:
        pack = self._unclosed.pop(name, None)
        if pack is not None and pack.close is not None:
            try:
                await pack.close()
            except Exception as error:  # a package's own code: the others are closed, too
                log_failure(_log, error, "package %s could not be closed", name)


class ShippedTools(Source):
    """The tools of one package of ours: all, or none."""

    def __init__(self, packs: Packs, name: str, tools: Sequence[SourceTool]) -> None:
        super().__init__()
        self._packs = packs
        self._name = name
        self._tools = tools

    def tools(self) -> Sequence[SourceTool]:
        return self._tools

    async def close(self) -> None:
        await self._packs.close_one(self._name)


class EnabledTools(Source):
    """The tools of the packages that the settings enable: of each all, or none."""

    def __init__(self, packs: Packs) -> None:
        super().__init__()
        self._packs = packs
        self._tools: dict[Entry, Sequence[SourceTool]] = {}

    def add(self, entry: Entry, tools: Sequence[SourceTool]) -> None:
        self._tools[entry] = tools

    def tools(self) -> Sequence[SourceTool]:
        return [tool for tools in self._tools.values() for tool in tools]

    def refused(self, tool: SourceTool, error: ToolRegistrationError) -> None:
        entry = next(each for each, tools in self._tools.items() if tool in tools)
        del self._tools[entry]
        self._packs.disable(entry, str(error))
        self.changed()

    async def close(self) -> None:
        for entry in self._tools:
            await self._packs.close_one(entry.name)


def _tools(
    pack: Pack, checked: Callable[[ToolFactory], ToolFactory] = lambda factory: factory
) -> Sequence[SourceTool]:
    tools = [each if isinstance(each, PackTool) else PackTool(factory=each) for each in pack.tools]
    return [
        SourceTool(factory=checked(each.factory), why_not=each.why_not, listed=each.listed)
        for each in tools
    ]
