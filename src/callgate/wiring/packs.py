"""From settings to the packages of tools: those that we ship, and those that a user enabled.

    entry point -> function(PackContext) -> Pack -> the runtime's tools

Loaded once one of their tools is looked at. A package of others that cannot be used is named in
`notices`, with the reason; all its tools are used, or none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from callgate import shipped
from callgate.config.home import Home
from callgate.config.schema import Settings
from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.text.spelling import nearest
from callgate.core.tools import ToolFactory
from callgate.dispatch.failures import log_failure
from callgate.runtime import Runtime
from callgate.sources.packs.values import Embedder, Pack, PackContext, PackTool, load_entry
from callgate.tools.tables import EmbeddingsTable

if TYPE_CHECKING:
    from callgate.agent.shows import Speaker
    from callgate.core.commands import Launcher
    from callgate.core.models import Key
    from callgate.sources.packs.installed import Entry

_log = logging.getLogger("callgate")

_OURS = ("builtin", "mcp", "host")
"""Sources that a package of others must not claim: they are read by other rules."""


class Packs:
    """The packages of one runtime."""

    def __init__(
        self,
        runtime: Runtime,
        home: Home,
        settings: Settings,
        launcher: Callable[[], Launcher],
        isolated: Callable[[ToolFactory], ToolFactory],
    ) -> None:
        """`isolated` puts the tool of a sync function into a process of its own."""
        self._runtime = runtime
        self._home, self._settings = home, settings
        self._launcher, self._isolated = launcher, isolated
        self._shipped: dict[str, Pack] = {}
        self._enabled: dict[str, Pack] = {}
        self.notices: list[str] = []
        """Packages that the settings enable and that cannot be used, and why."""

    def use_shipped(self, pack: shipped.ShippedPack) -> None:
        """Register the tools of a package of ours."""
        self._register(self._load(pack), lambda factory: factory)

    def _load(self, pack: shipped.ShippedPack) -> Pack:
        if pack.name not in self._shipped:
            loaded: Pack = load_entry(pack.entry)(self._context(pack.name))
            self._shipped[pack.name] = loaded
        return self._shipped[pack.name]

    def use_enabled(self) -> None:
        """Register the tools of the installed packages that the settings enable."""
        from callgate.sources.packs.installed import installed  # lazy: it reads all metadata  # noqa: PLC0415

        found = {each.name: each for each in installed("callgate.tools")}
        ours = {each.name for each in shipped.PACKS}
        for name in dict.fromkeys(self._settings.packs.enable):
            if name in found:
                self._use(found[name])
            elif name not in ours:
                near = nearest(name, [*found, *ours])
                meant = "" if near is None else f"; did you mean {near!r}?"
                self.notices.append(
                    f"[packs] enable names {name!r}, which no installed package brings{meant}"
                )

    def _use(self, entry: Entry) -> None:
        from callgate.sources.packs.installed import why  # lazy: as above  # noqa: PLC0415

        problem = entry.problem
        if problem is None:
            try:
                loaded = load_entry(entry.value)(self._context(entry.name))
                if not isinstance(loaded, Pack):
                    raise TypeError(f"{entry.value} gave {type(loaded).__name__}, not a Pack")
                self._register(loaded, self._foreign)
                self._enabled[entry.name] = loaded
                return
            except ToolRegistrationError as error:
                problem = str(error)
            except (Exception, SystemExit) as error:  # the package's own code
                problem = why(error)
        self.notices.append(f"the package {entry.name} ({entry.package}) is not used: {problem}")

    def _foreign(self, factory: ToolFactory) -> ToolFactory:
        definition = getattr(factory(), "definition", None)
        source = getattr(definition, "source", None)
        if source in _OURS:
            raise ToolRegistrationError(f"a tool of a package cannot have the source {source!r}")
        return self._isolated(factory)

    def _register(self, pack: Pack, checked: Callable[[ToolFactory], ToolFactory]) -> None:
        """All of them, or none."""
        registry, names = self._runtime.dispatcher.registry, []
        tools = [
            each if isinstance(each, PackTool) else PackTool(factory=each) for each in pack.tools
        ]
        try:
            for each in tools:
                name = registry.register(checked(each.factory)).name
                names.append(name)
        except BaseException:
            for name in names:
                registry.unregister(name)
            raise
        for name, each in zip(names, tools, strict=True):
            if each.why_not is not None:
                registry.offer_where(name, each.why_not)
            if not each.listed:
                registry.unlist(name)

    def _context(self, name: str) -> PackContext:
        return PackContext(
            home=self._home.path,
            settings=self._settings.of_pack(name),
            find_key=partial(_find_key, self._home),
            open_embedder=partial(_open_embedder, self._home),
            launcher=self._launcher,
        )

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
        return {each.name: self._load(each) for each in shipped.PACKS} | self._enabled

    async def close(self) -> None:
        for name, pack in (self._shipped | self._enabled).items():
            if pack.close is not None:
                try:
                    await pack.close()
                except Exception as error:  # a package's own code: the others are closed, too
                    log_failure(_log, error, "package %s could not be closed", name)


def _find_key(home: Home, service: str, *, key_env: str | None, usual: str | None) -> Key | None:
    from callgate.config.keys import find_service_key  # lazy: only where a service wants one  # noqa: PLC0415

    return find_service_key(service, home, os.environ, key_env=key_env, usual=usual)


def _open_embedder(home: Home, table: EmbeddingsTable) -> Embedder:
    from callgate.wiring.embeddings import open_embedder  # lazy: only where a search wants one  # noqa: PLC0415

    return open_embedder(home, table)
