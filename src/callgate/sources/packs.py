"""Packages of tools as sources: shipped packages, and packages that the user enabled.

    entry point (`callgate.tools`) -> function(PackContext) -> Pack -> its tools

The first use of one of its tools loads a package. A problem of a third-party package is reported,
and then none of its tools are used.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.texts import nearest
from callgate.core.tools import ToolFactory
from callgate.dispatch.foreign_code import log_failure
from callgate.dispatch.tools.sources import Source, SourceTool
from callgate.feature import PACKS, ShippedPack, load_entry

if TYPE_CHECKING:
    from callgate.core.commands import Launcher
    from callgate.core.content import Speaker
    from callgate.core.models import Key
    from callgate.sources.installed_packs import Entry


class Embedder(Protocol):
    """Creates vectors of texts. `models.embeddings` implements it; failures are `ModelError`s."""

    name: str
    """Only vectors of the same name are comparable."""
    host: str

    async def embed(
        self, texts: Sequence[str], retries: int | None = None
    ) -> list[list[float]]: ...

    async def close(self) -> None: ...


class FindKey(Protocol):
    def __call__(self, service: str, *, key_env: str | None, usual: str | None) -> Key | None:
        """Return the key of a service: from the variable `key_env`, from `callgate keys set
        SERVICE`, or from the variable `usual`. Raises `ModelError` if a key is unusable."""


class PackContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the runtime that a package receives."""

    home: str
    """The directory of settings and records. A package stores its files in a separate directory
    below it."""
    settings: Any
    """Settings of this package: `[packs.settings.NAME]`, or the table of a shipped package."""
    find_key: FindKey
    open_embedder: Callable[[Any], Embedder]
    """Takes an `EmbeddingsTable`."""
    launcher: Callable[[], Launcher]
    """Starts programs of the package itself, without a sandbox. A tool starts the commands of a
    call with the launcher of that call."""


class PackTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool with options that its factory cannot express."""

    factory: ToolFactory
    why_not: Callable[[Session], str | None] | None = None
    """Returns the reason for which a session cannot use it; None if it can."""
    listed: bool = True
    """False: lists of tools omit it, but a client that knows its name may call it."""


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a package."""

    tools: Sequence[ToolFactory | PackTool] = ()
    prompt: Callable[[Session], str] | None = None
    """Returns text for the model, sent with the instructions of each turn."""
    speaker: Callable[[], Speaker] | None = None
    """Returns a speaker, which reads the model's answers aloud if `[agent] speak` is on."""
    close: Callable[[], Awaitable[None]] | None = None
    """Called once, at the end of a runtime that used the package."""


_log = logging.getLogger("callgate")

_OURS = ("builtin", "mcp", "host")
"""Origins that a third-party package must not claim, because other rules apply to them."""


class Packs:
    """The packages of one runtime."""

    def __init__(
        self,
        context: Callable[[str], PackContext],
        enable: Sequence[str],
        isolated: Callable[[ToolFactory], ToolFactory],
        report: Callable[[str], None],
    ) -> None:
        """`enable`: names from the settings. `isolated` moves the tool of a sync function to a
        separate process. `report` receives a message for each unusable package."""
        self._context = context
        self._enable = enable
        self._isolated = isolated
        self._report = report
        self._shipped: dict[str, Pack] = {}
        self._enabled: dict[str, Pack] = {}
        self._unclosed: dict[str, Pack] = {}

    def shipped_tools(self, pack: ShippedPack) -> ShippedTools:
        """Return the tools of a shipped package."""
        return ShippedTools(self, pack.name, _tools(self._load_shipped(pack)))

    def enabled_tools(self) -> EnabledTools:
        """Return the tools of the installed packages that the settings enable."""
        from callgate.sources.installed_packs import installed  # lazy: it reads all metadata  # noqa: PLC0415

        source = EnabledTools(self)
        found = {each.name: each for each in installed("callgate.tools")}
        ours = {each.name for each in PACKS}
        for name in dict.fromkeys(self._enable):
            if name in found:
                self._enable_one(source, found[name])
            elif name not in ours:
                near = nearest(name, [*found, *ours])
                meant = "" if near is None else f"; did you mean {near!r}?"
                self._report(
                    f"[packs] enable names {name!r}, which no installed package provides{meant}"
                )
        return source

    def _enable_one(self, source: EnabledTools, entry: Entry) -> None:
        from callgate.sources.installed_packs import why  # lazy: as above  # noqa: PLC0415

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
        """Drop a whole package, because one of its tools cannot be registered."""
        self._drop(entry.name)
        self._report_unused(entry, problem)

    def _drop(self, name: str) -> None:
        """Remove a package: it adds no prompt, and is not closed."""
        self._enabled.pop(name, None)
        self._unclosed.pop(name, None)

    def _report_unused(self, entry: Entry, problem: str) -> None:
        self._report(f"the package {entry.name} ({entry.package}) is not used: {problem}")

    def _load_shipped(self, pack: ShippedPack) -> Pack:
        if pack.name not in self._shipped:
            self._shipped[pack.name] = self._load(pack.name, pack.entry)
        return self._shipped[pack.name]

    def _load(self, name: str, entry: str) -> Pack:
        pack = load_entry(entry)(self._context(name))
        if not isinstance(pack, Pack):
            raise TypeError(f"{entry} returned {type(pack).__name__}, not a Pack")
        self._unclosed[name] = pack
        return pack

    def _foreign(self, factory: ToolFactory) -> ToolFactory:
        definition = getattr(factory(), "definition", None)
        origin = getattr(definition, "source", None)
        if origin in _OURS:
            raise ToolRegistrationError(f"a tool of a package cannot have the source {origin!r}")
        return self._isolated(factory)

    def prompt(self, session: Session) -> str:
        """Return the texts of the packages for a model in a session."""
        texts = []
        for name, pack in self._all().items():
            if pack.prompt is not None:
                try:
                    texts.append(str(pack.prompt(session)))
                except Exception as error:  # a package's own code: the turn continues without it
                    log_failure(_log, error, "the prompt of package %s failed", name)
        return "\n\n".join(filter(None, texts))

    def speaker(self) -> Speaker | None:
        """Return the speaker of the first package that has one."""
        speakers = (each.speaker for each in self._all().values())
        return next((each() for each in speakers if each is not None), None)

    def _all(self) -> dict[str, Pack]:
        return {each.name: self._load_shipped(each) for each in PACKS} | self._enabled

    async def close(self) -> None:
        """Close every package that was loaded and not dropped. Idempotent."""
        for name in tuple(self._unclosed):
            await self.close_one(name)

    async def close_one(self, name: str) -> None:
        pack = self._unclosed.pop(name, None)
        if pack is not None and pack.close is not None:
            try:
                await pack.close()
            except Exception as error:  # a package's own code: the others are still closed
                log_failure(_log, error, "package %s could not be closed", name)


class ShippedTools(Source):
    """The tools of one shipped package: all, or none."""

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
    """The tools of the packages that the settings enable. Each package provides all or none."""

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
