"""`callgate mcp approve`, `update` and `login`: review the tools that a server declares."""

from __future__ import annotations

import asyncio
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from callgate.cli import instance_http as remote_hosts
from callgate.cli.errors import EXIT_CODES, OK, CliError
from callgate.cli.hosts.reloads import Reload, Reloaded, settings_of, shown
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.programs import open_in_browser
from callgate.cli.stores import words
from callgate.cli.ui.dialog import Dialog, Lines, Rows
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import reflow
from callgate.cli.ui.terminal import columns, is_terminal, say
from callgate.cli.ui.tty import Tty, open_tty
from callgate.cli.ui.visible import visible, wrapped
from callgate.config.home import Home
from callgate.config.schema import Settings
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.core.tools import ToolDefinition
from callgate.features.mcp.client.fetches import NOT_FETCHED
from callgate.features.mcp.client.server_tools import McpTools, name_server
from callgate.features.mcp.commands.servers import ensure_known, servers_of, tell
from callgate.features.mcp.wiring import ask, make_servers, update_packages
from callgate.instance.wiring.runtime import surroundings
from callgate.redaction.texts import redact
from callgate.sources.pins import PinChanges, Pinned
from callgate.sources.providers import PREFIX

_SENTENCE = re.compile(r"(?:[.!?])(?=\s|\Z)")
_NARROW = 16
"""Minimum width in columns for a sentence."""
_INDENT = "    "


class ToolLine(NamedTuple):
    name: str
    effect: SideEffects
    sentence: str
    reads: bool
    """Whether the server declares the tool as read-only although its effect is a stronger one."""


class ServerSummary(NamedTuple):
    name: str
    heading: str
    """The command or URL; empty for a known server."""
    tools: tuple[ToolLine, ...]
    left_out: tuple[str, ...] = ()

    @property
    def suggested(self) -> list[str]:
        """Names of the tools that the server suggests as read-only."""
        return [each.name for each in self.tools if each.reads]


def summary(
    name: str,
    heading: str,
    pinned: Pinned,
    definitions: Iterable[tuple[str, ToolDefinition]],
    left_out: Collection[str],
) -> ServerSummary:
    hints = {each.get("name"): each.get("annotations") for each in pinned.schemas}
    lines = [
        ToolLine(
            tool, each.effect, _first_sentence(each.description), _reads(hints.get(tool), each)
        )
        for tool, each in definitions
    ]
    order = list(SideEffects)
    lines.sort(key=lambda each: (order.index(each.effect), not each.reads))
    return ServerSummary(name, heading, tuple(lines), tuple(left_out))


def _reads(annotations: object, definition: ToolDefinition) -> bool:
    declared = isinstance(annotations, dict) and annotations.get("readOnlyHint") is True
    return declared and definition.effect not in (SideEffects.NONE, SideEffects.READ)


def _first_sentence(description: str) -> str:
    line = next((each.strip() for each in description.split("\n") if each.strip()), "")
    end = _SENTENCE.search(line)
    return line if end is None else line[: end.end()]


class ToolList(Rows):
    """A document of summaries, for a terminal of any width."""

    def __init__(self, summaries: Collection[ServerSummary], others: Collection[str] = ()) -> None:
        """`others`: lines about servers that are already known."""
        self._summaries = summaries
        self._others = Lines(others)

    def rows(self, width: int) -> Iterator[str]:
        for each in self._summaries:
            yield from _rows(each, width)
        yield from self._others.rows(width)


def _rows(server: ServerSummary, width: int) -> Iterator[str]:
    if server.heading:
        yield from _wrapped(server.heading, width)
    yield f"{server.name}: {counted(len(server.tools))}"
    longest = max((len(visible(each.name)) for each in server.tools), default=0)
    column = min(longest, max((width - len(_INDENT)) // 3, _NARROW))
    for group in dict.fromkeys((each.effect, each.reads) for each in server.tools):
        tools = [each for each in server.tools if (each.effect, each.reads) == group]
        suggestion = "; the server suggests read-only" if group[1] else ""
        yield f"  {group[0].value}{suggestion} ({len(tools)})"
        for each in tools:
            yield from _tool_rows(each, column, width)
    for line in server.left_out:
        yield from _wrapped(f"  ! {line}", width)


def _tool_rows(tool: ToolLine, column: int, width: int) -> Iterator[str]:
    """Yield one row; several only if the name alone does not fit."""
    head = f"{_INDENT}{visible(tool.name):<{column}}"
    room = width - 1 - len(head) - 2
    if room < _NARROW:
        yield from _wrapped(head, width)
        return
    found = [row.text for row in islice(wrapped(visible(tool.sentence), room), 2)]
    text = found[0] if found else ""
    if len(found) > 1:
        text = next(wrapped(visible(tool.sentence), room - 3)).text.rstrip() + "..."
    yield f"{head}  {text}".rstrip()


def _wrapped(line: str, width: int) -> Iterator[str]:
    yield from reflow(visible(line), max(width - 1, 2)).split("\n")


def counted(tools: int) -> str:
    return "1 tool" if tools == 1 else f"{tools} tools"


_ADD_HINT = (
    "A server has access to the workspace, no network and few variables; --network, --env and "
    "--profile allow more."
)


def approve(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp approve")
    home = Home.from_environment()
    servers = servers_of(home, options.workspace)
    ensure_known(servers, options.words)
    names = options.words or [*servers.hosts]
    return run(home, names, options.workspace, yes=options.yes, json=options.json)


def update(options: Namespace) -> int:
    """Fetch the newest packages of a server, and review its tools."""
    refuse_within_a_call("callgate mcp update")
    (name,) = words(options, "server")
    home = Home.from_environment()
    ensure_known(servers_of(home, options.workspace), [name])
    settings = settings_of(home)
    around = surroundings(home, settings)
    try:
        changed = update_packages(home, settings, around, options.workspace, name, say)
    except (ToolError, OSError) as error:
        raise CliError(
            name_server(name, str(error)),
            hint=f"See callgate mcp logs {name}.",
            error_class=ToolErrorClass.HOST_UNAVAILABLE,
            reason="mcp_fetch",
        ) from None
    for line in _versions(*changed):
        say(f"  {line}")
    return run(home, [name], options.workspace, yes=options.yes, json=options.json)


def _versions(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield f"{name} {old or '(new)'} -> {new or '(gone)'}"


def login(options: Namespace) -> int:
    """Connect to a server, so that it requests a login. Its tools are not reviewed."""
    refuse_within_a_call("callgate mcp login")
    (name,) = words(options, "server")
    home = Home.from_environment()
    ensure_known(servers_of(home, options.workspace), [name])
    (found,) = Approval(home, settings_of(home), options.workspace).look([name])
    if found.problem is not None:
        raise CliError(
            name_server(name, found.problem),
            hint=_hint(name),
            error_class=ToolErrorClass.HOST_UNAVAILABLE,
            reason="mcp_login",
        )
    say(f"logged in to MCP server {name}")
    return OK


def run(
    home: Home,
    names: Collection[str],
    workspace: str,
    *,
    yes: bool,
    json: bool,
    settings: Settings | None = None,
    write: Callable[[Mapping[str, str]], None] | None = None,
) -> int:
    """Review the tools of these servers, and pin them after a yes.

    `write` adds a new server to the settings. It is called with the confirmed effects, once all
    servers have answered and a person has agreed. `settings` are then those after `write`.
    """
    approval = Approval(home, settings or settings_of(home), workspace)
    approval.takes_effects = write is not None
    found = approval.look(names)
    if not json:
        approval.tell(found, yes=yes)
    approval.confirm(found, yes=yes)
    if write is not None and all(each.problem is None for each in found):
        write(approval.effects)
    approval.pin(found)
    if not json:
        approval.report(found)
    answers = {
        each.name: remote_hosts.renew(home.path, PREFIX + each.name, forget=False)
        for each in found
        if each.problem is None
    }
    failed = any(each.problem is not None for each in found)
    if json:
        print_json({"ok": not failed, "servers": [each.described() for each in found]})
    for each in found:
        if each.problem is not None:
            say(f"error (host_unavailable): {visible(name_server(each.name, each.problem))}")
            if each.reason != NOT_FETCHED:  # its message contains advice
                say(f"hint: {_hint(each.name) if write is None else _ADD_HINT}")
        tell(each.name, answers.get(each.name, ()), "adopts the approved tools of MCP server {}")
    return EXIT_CODES[ToolErrorClass.HOST_UNAVAILABLE] if failed else OK


class Approval(Reload):
    _first_needs_a_yes = True

    def _bring(self) -> tuple[Any, Any]:
        servers = make_servers(self._home, self._settings, self._wired.sandbox, self._workspace)
        return servers, McpTools(servers, self._wired.registry)

    def _ask(self, names: Collection[str]) -> Mapping[str, Pinned | Exception]:
        show = _show if is_terminal(sys.stderr) else None
        surroundings = self._wired.sandbox.surroundings
        return ask(self._home, self._settings, surroundings, self._workspace, names, show, say)

    def _compare(self, name: str, before: Pinned | None, after: Pinned) -> PinChanges:
        changes: PinChanges = self._hosts.compare(name, before, after)
        return changes

    takes_effects = False
    """Whether confirmed effects can be written to the settings."""
    effects: Mapping[str, str] = {}
    """Confirmed effect by tool."""

    def tell(self, found: Collection[Reloaded], *, yes: bool) -> None:
        asking = not yes and is_terminal(sys.stdout)
        printed = [each for each in found if not (asking and each.needs_a_yes)]
        for row in self._document(printed).rows(columns() + 1):
            print(row)
        sys.stdout.flush()

    def confirm(self, found: Collection[Reloaded], *, yes: bool) -> None:
        """Ask for approval, with a line for each tool of a new server and the changes of others."""
        waiting = [each for each in found if each.needs_a_yes]
        tty = None if yes or not waiting else open_tty()
        if tty is None:
            super().confirm(found, yes=yes)
        else:
            asyncio.run(self._ask_for(tty, waiting))

    async def _ask_for(self, tty: Tty, waiting: Collection[Reloaded]) -> None:
        suggested = [name for each in waiting for name in self._summary(each).suggested]
        choices = {"y": "[y]es", "d": "[d]etails", "n": "[n]o"}
        if self.takes_effects and suggested:
            choices = {"y": "[y]es", "r": "[r]ead-only as suggested", "d": "[d]etails", "n": "[n]o"}
        dialog = Dialog(tty, self._document(waiting))
        async with tty.asking():
            while True:
                word = await dialog.choose(choices, {"y", "r"}, "Approve?")
                if word == "d":
                    await Dialog(tty, Lines(shown(waiting).splitlines())).open()
                elif word == "r" and "r" in choices:
                    self.effects = dict.fromkeys(suggested, SideEffects.READ.value)
                    return
                elif word == "y":
                    return
                elif word in ("n", None):
                    raise CliError(
                        "nothing was approved: calls of new or changed tools are refused",
                        error_class=ToolErrorClass.USER_DENIED,
                        reason="user_denied",
                    )

    def report(self, found: Collection[Reloaded]) -> None:
        """Report the approved tools, and the suggested effects that were not confirmed."""
        for each in found:
            if each.current is None:
                continue
            listed = self._summary(each)
            say(f"{counted(len(listed.tools))} of {each.name!r} approved")
            unconfirmed = [tool for tool in listed.suggested if tool not in self.effects]
            if each.is_new and unconfirmed:
                few = f'effects = {{ {unconfirmed[0]} = "read" }}'
                say(
                    f"hint: {counted(len(unconfirmed))} suggested as read-only, not confirmed. To"
                    f" confirm one, set {few} in [mcp.{each.name}]."
                )

    def _document(self, found: Collection[Reloaded]) -> ToolList:
        """Return new servers as lists of tools, and other servers as full changes."""
        new = [each for each in found if each.is_new and each.current is not None]
        others = [each for each in found if each not in new]
        return ToolList([*map(self._summary, new)], shown(others).splitlines())

    def _summary(self, found: Reloaded) -> ServerSummary:
        if found.current is None:
            return ServerSummary(found.name, "", ())
        command = " ".join(redact(each) for each in self._hosts.command(found.name))
        left_out = [f"{tool} will not be offered: {why}" for tool, why in found.left_out.items()]
        return summary(
            found.name,
            f"{found.name} is new: {command}" if found.is_new else "",
            found.current,
            self._hosts.definitions_of(found.name, found.current),
            left_out,
        )


def _hint(name: str) -> str:
    return (
        f"See callgate mcp logs {name}. A local server has access to the workspace and no network;"
        f" network, writable, env and profile in [mcp.{name}] allow more."
    )


def _show(url: str) -> None:
    say("Log in here, in a browser on this machine:")
    say(f"  {visible(url)}")
    open_in_browser(url)
