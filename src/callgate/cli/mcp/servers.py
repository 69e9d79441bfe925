"""`callgate mcp list`, `logs` and `restart`: how the MCP servers of the settings are.

list     nothing is started: what is pinned, and how a running instance finds them
restart  a running instance forgets the crashes of a server
"""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Collection

import msgspec

from callgate.cli.errors import EXIT_CODES, OK, CliError
from callgate.cli.hosts.lists import described, print_table
from callgate.cli.hosts.log_files import Log, show
from callgate.cli.hosts.reloads import settings_of
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.stores import not_found, words
from callgate.cli.remote import hosts as remote_hosts
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError
from callgate.config.trust import is_trusted
from callgate.core.errors import ToolErrorClass
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.tools.registry import Registry
from callgate.sources.mcp.provider import Servers
from callgate.sources.mcp.server_tools import McpTools
from callgate.sources.provider_tools import PREFIX
from callgate.wiring.mcp import make_servers
from callgate.wiring.surroundings import surroundings

_LOOK_AT = 64 * 1024
"""Bytes of settings that nobody trusts."""


def list(options: Namespace) -> int:
    words(options)
    home = Home.from_environment()
    registry = Registry()
    tools = McpTools(servers_of(home), registry)
    registry.add(tools)
    entries = {each.name: each for each in tools.entries()}
    answer = remote_hosts.hosts_of(home.path) if entries else None
    for each in () if answer is None else answer.hosts:
        name = each.name.removeprefix(PREFIX)
        if each.name.startswith(PREFIX) and name in entries:
            entries[name] = msgspec.structs.replace(each, name=name)
    if options.json:
        pid = None if answer is None else answer.instance.pid
        print_json({"instance": pid, "servers": [described(each) for each in entries.values()]})
        return OK
    if not entries:
        say("the settings name no MCP servers; callgate mcp add, or import, adds some")
    print_table(entries.values(), "callgate mcp approve")
    return OK


def logs(options: Namespace) -> int:
    (name,) = words(options, "server")
    servers = servers_of(Home.from_environment())
    ensure_known(servers, [name])
    show(Log(servers.log_path(name)), options.n, follow=options.follow)
    return OK


def restart(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp restart")
    (name,) = words(options, "server")
    home = Home.from_environment()
    answers = remote_hosts.renew(home.path, PREFIX + name, forget=True)
    if not answers:
        ensure_known(servers_of(home), [name])
        raise CliError(
            "no instance runs",
            hint="Without one, every command starts the servers that it needs itself.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="no_instance",
        )
    if options.json:
        described = [{"pid": each.instance.pid, "problem": each.problem} for each in answers]
        done = any(each.problem is None for each in answers)
        print_json({"ok": done, "instances": described})
    tell(name, answers, "starts MCP server {} anew with its next call")
    done = any(each.problem is None for each in answers)
    return OK if done else EXIT_CODES[ToolErrorClass.NOT_FOUND]


def servers_of(home: Home, workspace: str | None = None) -> Servers:
    settings, directory = settings_of(home), workspace or os.getcwd()
    if _are_passed_over(home, directory):
        trust = shlex.join(["callgate", "trust", os.path.abspath(directory)])
        say(f"hint: this workspace names MCP servers, which count after {visible(trust)}")
    try:
        sandbox = Sandbox(surroundings(home, settings))
        return make_servers(home, settings, sandbox, directory)
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error


def _are_passed_over(home: Home, workspace: str) -> bool:
    """Whether a workspace that nobody trusts seems to bring servers."""
    if is_trusted(home, workspace):
        return False
    try:
        with open(workspace_settings(workspace), "rb") as file:
            return b"[mcp." in file.read(_LOOK_AT)
    except OSError:
        return False


def ensure_known(servers: Servers, names: Collection[str]) -> None:
    for name in names:
        if name not in servers.hosts:
            raise not_found(f"the settings name no MCP server {name!r}")


def about(name: str, problem: str) -> str:
    """A problem, which most often says itself whose it is."""
    return problem if f"MCP server {name!r}" in problem else f"MCP server {name}: {problem}"


def tell(name: str, answers: Collection[remote_hosts.Answer], done: str) -> None:
    """What running instances made of it."""
    for each in answers:
        instance = f"instance {each.instance.pid} ({each.instance.label})"
        if each.problem is None:
            say(f"{instance} {done.format(name)}")
        else:
            say(f"{instance} does not: {each.problem}")
            say("hint: it may have read other settings; stop it and start it anew.")
