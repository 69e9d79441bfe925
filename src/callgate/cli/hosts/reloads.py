"""Changed tools of hosts: `callgate hosts reload` asks for approval, `serve --dev` does not."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from callgate.cli.errors import CHECK_SETTINGS, CliError
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.terminal import is_terminal, say
from callgate.cli.ui.tty import Tty, open_tty
from callgate.cli.ui.visible import visible, visible_text
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import Settings
from callgate.core.errors import ToolError, ToolErrorClass, ToolRegistrationError
from callgate.instance.wiring.builder import build, register_own
from callgate.instance.wiring.hosts import ask, make_hosts
from callgate.sources.host_handshake import Stamps, stamps
from callgate.sources.host_provider import HostedTools
from callgate.sources.hosts import HostSettings
from callgate.sources.pins import Difference, PinChanges, Pinned, compare


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """Result of restarting one host."""

    name: str
    is_new: bool = False
    """True if nothing was pinned before."""
    doubt: str | None = None
    """The reason why the pins cannot be trusted."""
    current: Pinned | None = None
    changes: PinChanges = PinChanges()
    left_out: Mapping[str, str] = {}
    """Tools that will not be offered, with the reason."""
    problem: str | None = None
    """The reason why the host gave no usable answer."""
    reason: str | None = None
    """The reason code of the problem's error."""
    first_needs_a_yes: bool = False
    """True for MCP servers: a new one needs approval. A new host is pinned without approval."""

    @property
    def needs_a_yes(self) -> bool:
        if self.current is None or (self.is_new and not self.first_needs_a_yes):
            return False
        return self.is_new or bool(self.changes) or self.doubt is not None

    def described(self) -> dict[str, Any]:
        """Return the result in the form of `--json`."""
        return {
            "name": self.name,
            "new": self.is_new,
            "doubt": self.doubt,
            "problem": self.problem,
            "left_out": dict(self.left_out),
            **msgspec.to_builtins(self.changes),
        }


def settings_of(home: Home) -> Settings:
    try:
        return load_user(home)[0]
    except SettingsError as error:
        raise _wrong(error) from error


def _wrong(error: SettingsError) -> CliError:
    return CliError(
        str(error),
        hint=f"Nothing runs until it is corrected. {CHECK_SETTINGS}",
        reason="settings_invalid",
    )


class Reload:
    def __init__(self, home: Home, settings: Settings, workspace: str) -> None:
        self._workspace = os.path.abspath(os.path.expanduser(workspace))
        if not os.path.isdir(self._workspace):
            raise CliError(f"--workspace: {self._workspace} is not a directory")
        self._home, self._settings = home, settings
        try:
            self._wired = build(home, self._workspace, register_own, audit=False)
        except SettingsError as error:
            raise _wrong(error) from error
        self._hosts, self._hosted = self._bring()

    def _bring(self) -> tuple[Any, Any]:
        """Return the hosts, and their source in the registry."""
        hosts = make_hosts(self._home, self._settings, self._wired.sandbox, self._workspace)
        return hosts, HostedTools(hosts, self._wired.registry)

    def _ask(self, names: Collection[str]) -> Mapping[str, Pinned | Exception]:
        return ask(
            self._home, self._settings, self._wired.sandbox.surroundings, self._workspace, names
        )

    def look(self, names: Collection[str]) -> list[Reloaded]:
        """Start hosts, and compare their tools with the pins. Pins nothing."""
        answers = self._ask(names)
        self._wired.registry.add(self._hosted)
        return [self._compared(name, each) for name, each in answers.items()]

    def _compared(self, name: str, answer: Pinned | Exception) -> Reloaded:
        if not isinstance(answer, Pinned):
            reason = getattr(answer, "reason", None)
            return Reloaded(name=name, problem=str(answer), reason=reason)
        doubt = self._hosts.doubt(name)
        before = self._hosts.pinned(name) if doubt is None else doubt.pinned
        changes = self._compare(name, before, answer)
        is_new = before is None and doubt is None
        try:
            if not is_new:  # a new host is registered after all others
                self._hosted.ensure_free(name, changes.added)
        except ToolRegistrationError as error:
            return Reloaded(name=name, problem=str(error))
        self._hosted.offer(name, self._hosts.factories_of(name, answer))
        return Reloaded(
            name=name,
            is_new=is_new,
            left_out=self._hosted.left_out(name),
            doubt=None if doubt is None else doubt.problem,
            current=answer,
            changes=changes,
            first_needs_a_yes=self._first_needs_a_yes,
        )

    _first_needs_a_yes = False

    def _compare(self, name: str, before: Pinned | None, after: Pinned) -> PinChanges:
        return compare(name, before, after)

    def text(self, found: Collection[Reloaded]) -> str:
        """Return the full text of the question."""
        return shown(found)

    def tell(self, found: Collection[Reloaded], *, yes: bool) -> None:
        """Print the results, except those that the question shows on the same terminal."""
        asking = not yes and is_terminal(sys.stdout)
        printed = [each for each in found if not (asking and each.needs_a_yes)]
        print(self.text(printed), end="", flush=True)

    def accept(self, found: Collection[Reloaded], *, yes: bool) -> None:
        """Pin the tools, after an approval of the changes."""
        self.confirm(found, yes=yes)
        self.pin(found)

    def confirm(self, found: Collection[Reloaded], *, yes: bool) -> None:
        """Ask for approval of the changes. Raises `CliError` if it is not given."""
        changed = [each for each in found if each.needs_a_yes]
        if changed and not yes:
            tty = open_tty()
            if tty is None:
                raise CliError(
                    "the changes need approval, and there is no terminal to ask at",
                    hint="Use --yes to accept them without asking.",
                    error_class=ToolErrorClass.PERMISSION_DENIED,
                    reason="no_confirmer",
                )
            asyncio.run(_ask(tty, self.text(changed)))

    def pin(self, found: Collection[Reloaded]) -> None:
        for each in found:
            if each.current is not None:
                pin = self._hosts.pin_first if each.is_new else self._hosts.pin
                pin(each.name, each.current)


async def _ask(tty: Tty, text: str) -> None:
    if not await agreed(tty, Lines(text.splitlines()), "Accept these changes?"):
        raise CliError(
            "nothing was accepted; the changed tools remain refused",
            error_class=ToolErrorClass.USER_DENIED,
            reason="user_denied",
        )


def shown(found: Collection[Reloaded]) -> str:
    """Return the full text of the changes."""
    return "".join(f"{line}\n" for each in found for line in _lines(each))


def _lines(each: Reloaded) -> Iterator[str]:
    if each.problem is not None:
        return
    changes = each.changes
    tools = 0 if each.current is None else len(each.current.schemas)
    if each.doubt is not None:
        yield f"{each.name}: {visible(each.doubt)}"
    if not changes:
        yield f"{each.name}: {tools} tools, nothing has changed"
        yield from _left_out(each)
        return
    counts = (len(changes.added), len(changes.removed), len(changes.changed))
    yield f"{each.name}: {'{} added, {} removed, {} changed'.format(*counts)}"
    for tool, found in changes.added.items():
        yield f"  + {visible(tool)}"
        yield from _differences(found)
    for tool in changes.removed:
        yield f"  - {visible(tool)}"
    for tool, found in changes.changed.items():
        yield f"  ~ {visible(tool)}"
        yield from _differences(found)
    yield from _differences(changes.about)
    yield from _left_out(each)


def _left_out(each: Reloaded) -> Iterator[str]:
    for tool, why in each.left_out.items():
        yield f"  ! {visible(tool)} will not be offered: {visible(why)}"


def _differences(found: Collection[Difference]) -> Iterator[str]:
    for each in found:
        yield f"      {visible(each.path)}"
        for sign, value in (("-", each.before), ("+", each.after)):
            if value is not msgspec.UNSET:
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                for line in visible_text(text).split("\n"):
                    yield f"        {sign} {line}"


LOOK_EVERY_S = 0.5


async def watch(hosted: HostedTools | None) -> None:
    """Watch the plugins of all hosts, until cancelled."""
    if hosted is None:
        say("callgate: --dev: no hosts are configured")
        return
    say("callgate: --dev: changed plugins of hosts are accepted without approval")
    async with asyncio.TaskGroup() as watching:
        for settings in hosted.settings:
            watching.create_task(_watch(hosted, settings, stamps(settings.command, settings.cwd)))


async def _watch(hosted: HostedTools, settings: HostSettings, known: Stamps) -> None:
    seen = known
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        before, seen = seen, stamps(settings.command, settings.cwd)
        if seen == known or seen != before:  # no change, or a write is in progress
            continue
        known = seen
        say(f"callgate: host {settings.name}: {await _take_over(hosted, settings.name)}")


async def _take_over(hosted: HostedTools, host: str) -> str:
    """Switch to the new version of a host; return a message."""
    try:
        changes = await hosted.relearn(host)
    except (ToolError, ToolRegistrationError, OSError) as error:
        return f"its new version failed, so the old one continues: {visible(str(error))}"
    left_out = hosted.left_out(host)
    problems = [f"tool {tool!r} is not offered: {left_out[tool]}" for tool in left_out]
    return visible("; ".join([f"its new version is used: {_summary(changes)}", *problems]))


def _summary(changes: PinChanges) -> str:
    if not changes:
        return "its tool definitions are unchanged"
    tools = (("added", changes.added), ("removed", changes.removed), ("changed", changes.changed))
    lines = [f"{', '.join(names)} {change}" for change, names in tools if names]
    return "; ".join([*lines, *(f"{each.path} changed" for each in changes.about)])
