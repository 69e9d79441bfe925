"""`callgate mcp approve` and `login`: what MCP servers say now, against what is pinned.

start -> compare with what is pinned -> a yes -> pin -> running instances take it over
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from callgate.cli.errors import EXIT_CODES, OK, CliError
from callgate.cli.hosts.reloads import Reload, Reloaded, settings_of, shown
from callgate.cli.mcp.servers import about, ensure_known, servers_of, tell
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.stores import words
from callgate.cli.remote import hosts as remote_hosts
from callgate.cli.ui.browser import open_in_browser
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import is_terminal, say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.redaction.texts import redact
from callgate.sources.changes import Changes
from callgate.sources.mcp.server_tools import McpTools
from callgate.sources.pins import Pinned
from callgate.sources.provider_tools import PREFIX
from callgate.wiring.mcp import ask, make_servers, update_packages
from callgate.wiring.surroundings import surroundings


def approve(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp approve")
    home = Home.from_environment()
    servers = servers_of(home, options.workspace)
    ensure_known(servers, options.words)
    names = options.words or [*servers.hosts]
    return run(home, names, options.workspace, yes=options.yes, json=options.json)


def update(options: Namespace) -> int:
    """Fetch what a server's command means now, and look at the tools that it has then."""
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
            about(name, str(error)),
            hint=f"callgate mcp logs {name} shows what was said.",
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
    """Reach a server, so that it asks who we are. Its tools are looked at another time."""
    refuse_within_a_call("callgate mcp login")
    (name,) = words(options, "server")
    home = Home.from_environment()
    ensure_known(servers_of(home, options.workspace), [name])
    (found,) = Approval(home, settings_of(home), options.workspace).look([name])
    if found.problem is not None:
        raise CliError(
            about(name, found.problem),
            hint=_hint(name),
            error_class=ToolErrorClass.HOST_UNAVAILABLE,
            reason="mcp_login",
        )
    say(f"logged in to MCP server {name}")
    return OK


def run(home: Home, names: Collection[str], workspace: str, *, yes: bool, json: bool) -> int:
    """Look at these servers, and pin what they say after a yes."""
    approval = Approval(home, settings_of(home), workspace)
    found = approval.look(names)
    if not json:
        approval.tell(found, yes=yes)
    approval.accept(found, yes=yes)
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
            say(f"error (host_unavailable): {visible(about(each.name, each.problem))}")
            say(f"hint: {_hint(each.name)}")
        tell(each.name, answers.get(each.name, ()), "takes MCP server {} over as it is now")
    return EXIT_CODES[ToolErrorClass.HOST_UNAVAILABLE] if failed else OK


class Approval(Reload):
    _first_needs_a_yes = True

    def _bring(self) -> tuple[Any, Any]:
        servers = make_servers(self._home, self._settings, self._wired.sandbox, self._workspace)
        return servers, McpTools(servers, self._wired.dispatcher.registry)

    def _ask(self, names: Collection[str]) -> Mapping[str, Pinned | Exception]:
        show = _show if is_terminal(sys.stderr) else None
        surroundings = self._wired.sandbox.surroundings
        return ask(self._home, self._settings, surroundings, self._workspace, names, show, say)

    def _compare(self, name: str, before: Pinned | None, after: Pinned) -> Changes:
        changes: Changes = self._hosts.compare(name, before, after)
        return changes

    def text(self, found: Collection[Reloaded]) -> str:
        """What is approved: each server itself, and all that it says of its tools."""
        return "".join(
            "".join(f"{line}\n" for line in self._about(each)) + shown([each]) for each in found
        )

    def _about(self, found: Reloaded) -> Iterator[str]:
        if found.problem is None and found.is_new:
            command = " ".join(redact(each) for each in self._hosts.command(found.name))
            yield f"{found.name} is new: {visible(command)}"


def _hint(name: str) -> str:
    return (
        f"callgate mcp logs {name} shows what it wrote. A program sees the workspace and no network"
        f" unless [mcp.{name}] says more: network, writable, env, profile."
    )


def _show(url: str) -> None:
    say("Log in here, in a browser on this machine:")
    say(f"  {visible(url)}")
    open_in_browser(url)
