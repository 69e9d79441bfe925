"""The tools of hosts, as each was pinned, and what whoever started us should know of them."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.core.errors import ToolError
from callgate.core.tools import ToolFactory
from callgate.dispatch.tools.registry import Registry
from callgate.sources.changes import Changes, compare
from callgate.sources.hosts.hosts import Host, HostSettings
from callgate.sources.hosts.provider import Hosts
from callgate.sources.hosts.warm import warm
from callgate.sources.pins import Pinned
from callgate.sources.provider_tools import ProvidedTools, few


class HostedTools(ProvidedTools[Host]):
    """The hosts of a runtime."""

    def __init__(self, hosts: Hosts, registry: Registry) -> None:
        super().__init__(hosts, registry)
        self._hosts = hosts

    def _pinned_factories(self, name: str) -> list[ToolFactory]:
        pinned = self._hosts.pinned(name)
        factories = [] if pinned is None else self._hosts.factories_of(name, pinned)
        self._registry.tags.give(f"host {name}", () if pinned is None else pinned.tags)
        return factories

    def warm_environments(self) -> list[dict[str, str]]:
        """Of those hosts that a warm process can become."""
        settings = [host.settings for host in self._hosts.hosts.values()]
        return [each.env for each in settings if warm(each.command, each.cwd, each.env) is not None]

    def notices(self, answers: Mapping[str, Pinned | ToolError]) -> list[str]:
        """What whoever started us should know: hosts that were met, or cannot be believed."""
        notices: list[str] = []
        for name in self._hosts.hosts:
            answer, doubt = answers.get(name), self._hosts.doubt(name)
            if doubt is not None:
                notices.append(f"host {name} brings no tools: {doubt}")
            elif isinstance(answer, ToolError):
                notices.append(f"host {name} brings no tools: {answer.message}")
            elif answer is not None:
                offered = few(self.names_of(name), ", ") or "no tools"
                notices.append(f"host {name} is new; pinned as it is now: {offered}")
                left_out = self.about_left_out(name)
                notices += [] if left_out is None else [f"host {name}: {left_out}"]
        return notices

    async def relearn(self, name: str) -> Changes:
        """Pin what a host says now, without asking anybody, and take it over: only where its
        author is at work (`callgate serve --dev`).

        Raises `ToolError` or `ToolRegistrationError`; the old process goes on serving then.
        """
        before = self._hosts.pinned(name)
        pinned = await self._hosts.ask_another(name)
        changes = compare(name, before, pinned)
        self.ensure_free(name, changes.added)
        self._hosts.pin(name, pinned)
        self._hosts.hosts[name].log.note("its new version was accepted unasked")
        await self.renew(name, forget=False)
        return changes

    @property
    def settings(self) -> list[HostSettings]:
        return [host.settings for host in self._hosts.hosts.values()]
