"""`callgate hosts reload`: what hosts say of themselves now, against what is pinned.

What was pinned before is exchanged only after a yes: who approves a tool has read another text.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from callgate.cli.errors import CliError
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.terminal import is_terminal
from callgate.cli.ui.tty import Tty, open_tty
from callgate.cli.ui.visible import visible, visible_text
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import Settings
from callgate.core.errors import ToolErrorClass, ToolRegistrationError
from callgate.sources.changes import Changes, Difference, compare
from callgate.sources.hosts.host_tools import HostedTools
from callgate.sources.pins import Pinned
from callgate.wiring.hosts import ask, make_hosts
from callgate.wiring.registration import register_own
from callgate.wiring.runtime import Wired


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """One host, started anew."""

    name: str
    is_new: bool = False
    """Nothing was pinned."""
    doubt: str | None = None
    """Why what was pinned cannot be gone by."""
    current: Pinned | None = None
    changes: Changes = Changes()
    left_out: Mapping[str, str] = {}
    """Tools that will not be offered, and why."""
    problem: str | None = None
    """Why it says nothing, or nothing that can be used."""
    first_needs_a_yes: bool = False
    """A host that is new is pinned as it is; an MCP server is approved first."""

    @property
    def needs_a_yes(self) -> bool:
        if self.current is None or (self.is_new and not self.first_needs_a_yes):
            return False
        return self.is_new or bool(self.changes) or self.doubt is not None

    def described(self) -> dict[str, Any]:
        """As `--json` prints it."""
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
        str(error), hint="Nothing runs until that is corrected.", reason="settings_invalid"
    )


class Reload:
    def __init__(self, home: Home, settings: Settings, workspace: str) -> None:
        self._workspace = os.path.abspath(os.path.expanduser(workspace))
        if not os.path.isdir(self._workspace):
            raise CliError(f"--workspace: {self._workspace} is not a directory")
        self._home, self._settings = home, settings
        self._wired = Wired(home, audit=False)
        try:
            register_own(self._wired)
        except SettingsError as error:
            raise _wrong(error) from error
        self._hosts, self._hosted = self._bring()

    def _bring(self) -> tuple[Any, Any]:
        """What brings tools, and its place in the registry."""
        hosts = make_hosts(self._home, self._settings, self._wired.sandbox, self._workspace)
        return hosts, HostedTools(hosts, self._wired.dispatcher.registry)

    def _ask(self, names: Collection[str]) -> Mapping[str, Pinned | Exception]:
        return ask(
            self._home, self._settings, self._wired.sandbox.surroundings, self._workspace, names
        )

    def look(self, names: Collection[str]) -> list[Reloaded]:
        """Start hosts, and compare. Nothing is pinned."""
        answers = self._ask(names)
        self._wired.dispatcher.registry.add(self._hosted)
        return [self._compared(name, each) for name, each in answers.items()]

    def _compared(self, name: str, answer: Pinned | Exception) -> Reloaded:
        if not isinstance(answer, Pinned):
            return Reloaded(name=name, problem=str(answer))
        doubt = self._hosts.doubt(name)
        before = self._hosts.pinned(name) if doubt is None else doubt.pinned
        changes = self._compare(name, before, answer)
        is_new = before is None and doubt is None
        try:
            if not is_new:  # whose turn comes after that of all others
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

    def _compare(self, name: str, before: Pinned | None, after: Pinned) -> Changes:
        return compare(name, before, after)

    def text(self, found: Collection[Reloaded]) -> str:
        """What a person is asked about, in full."""
        return shown(found)

    def tell(self, found: Collection[Reloaded], *, yes: bool) -> None:
        """Print what was found, but not what the question shows on this very terminal."""
        asking = not yes and is_terminal(sys.stdout)
        printed = [each for each in found if not (asking and each.needs_a_yes)]
        print(self.text(printed), end="", flush=True)

    def accept(self, found: Collection[Reloaded], *, yes: bool) -> None:
        """Pin what was found, after a yes where something else was pinned before."""
        changed = [each for each in found if each.needs_a_yes]
        if changed and not yes:
            tty = open_tty()
            if tty is None:
                raise CliError(
                    "what is pinned changes only with a yes, and nobody can be asked here",
                    hint="--yes accepts it without asking.",
                    error_class=ToolErrorClass.PERMISSION_DENIED,
                    reason="no_confirmer",
                )
            asyncio.run(_ask(tty, self.text(changed)))
        for each in found:
            if each.current is not None:
                pin = self._hosts.pin_first if each.is_new else self._hosts.pin
                pin(each.name, each.current)


async def _ask(tty: Tty, text: str) -> None:
    if not await agreed(tty, Lines(text.splitlines()), "Accept these changes?"):
        raise CliError(
            "nothing was accepted: the tools that changed are refused as before",
            error_class=ToolErrorClass.USER_DENIED,
            reason="user_denied",
        )


def shown(found: Collection[Reloaded]) -> str:
    """The changes in full: nothing that was not shown is accepted."""
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
