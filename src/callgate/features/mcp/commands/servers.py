"""`callgate mcp list`, `logs` and `restart`: state of the configured MCP servers."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Collection, Sequence

import msgspec

from callgate.cli import instance_http as remote_hosts
from callgate.cli.errors import EXIT_CODES, OK, CliError
from callgate.cli.findings import Finding, Level, Patient
from callgate.cli.hosts.hosts import HostLog, described, print_table, show
from callgate.cli.hosts.reloads import settings_of
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import not_found, words
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError, load_user
from callgate.config.trust import is_trusted
from callgate.core.errors import ToolError, ToolErrorClass
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.tools.registry import Registry
from callgate.features.mcp.client.directories import disk_usage
from callgate.features.mcp.client.server_tools import McpTools, Servers
from callgate.features.mcp.settings import McpSettings
from callgate.features.mcp.wiring import make_servers
from callgate.instance.wiring.runtime import surroundings
from callgate.sources.providers import PREFIX

_LOOK_AT = 64 * 1024
"""Maximum size that is read of an untrusted settings file, in bytes."""


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
        say("no MCP servers are configured; add one with callgate mcp add or import")
    print_table(entries.values(), "callgate mcp approve")
    return OK


def logs(options: Namespace) -> int:
    (name,) = words(options, "server")
    servers = servers_of(Home.from_environment())
    ensure_known(servers, [name])
    show(HostLog(servers.log_path(name)), options.n, follow=options.follow)
    return OK


def restart(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp restart")
    (name,) = words(options, "server")
    home = Home.from_environment()
    answers = remote_hosts.renew(home.path, PREFIX + name, forget=True)
    if not answers:
        ensure_known(servers_of(home), [name])
        raise CliError(
            "no instance is running",
            hint="Each command then starts its own MCP servers, so no restart is needed.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="no_instance",
        )
    if options.json:
        described = [{"pid": each.instance.pid, "problem": each.problem} for each in answers]
        done = any(each.problem is None for each in answers)
        print_json({"ok": done, "instances": described})
    tell(name, answers, "restarts MCP server {} with its next call")
    done = any(each.problem is None for each in answers)
    return OK if done else EXIT_CODES[ToolErrorClass.NOT_FOUND]


def servers_of(home: Home, workspace: str | None = None) -> Servers:
    settings, directory = settings_of(home), workspace or os.getcwd()
    if _are_passed_over(home, directory):
        trust = shlex.join(["callgate", "trust", os.path.abspath(directory)])
        say(f"hint: this workspace configures MCP servers; enable them with {visible(trust)}")
    try:
        sandbox = Sandbox(surroundings(home, settings))
        return make_servers(home, settings, sandbox, directory)
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error


def _are_passed_over(home: Home, workspace: str) -> bool:
    """Return whether an untrusted workspace seems to configure servers."""
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
            raise not_found(f"MCP server {name!r} is not configured")


def tell(name: str, answers: Collection[remote_hosts.Answer], done: str) -> None:
    """Report the result of each running instance."""
    for each in answers:
        instance = f"instance {each.instance.pid} ({each.instance.label})"
        if each.problem is None:
            say(f"{instance} {done.format(name)}")
        else:
            say(f"{instance} failed: {each.problem}")
            say(
                f"hint: callgate stop {each.instance.pid}, then callgate serve --detach, restarts"
                " it."
            )


_MEGABYTE = 1_000_000


def check_server_data(patient: Patient) -> Finding:
    """Report the number of servers with data and its size; note data of removed servers."""
    home = patient.home
    directory = os.path.join(home.path, "mcp")
    names = sorted(each for each in _entries(directory) if _has_data(directory, each))
    if not names:
        return Finding(Level.OK, "no MCP server has stored data")
    size = sum(_size(os.path.join(directory, each)) for each in names)
    servers = "1 MCP server" if len(names) == 1 else f"{len(names)} MCP servers"
    text = f"{servers}, {size / _MEGABYTE:.0f} MB in {directory}"
    try:
        configured = load_user(home)[0].of(McpSettings).mcp
    except SettingsError:
        return Finding(Level.OK, text)
    # A name with @ belongs to a workspace or to a session of an editor.
    removed = [each for each in names if "@" not in each and each not in configured]
    if not removed:
        return Finding(Level.OK, text)
    return Finding(
        Level.NOTE,
        f"{text}; not in your settings any more: {', '.join(removed)}",
        f"callgate mcp remove {removed[0]} --data",
    )


def _entries(directory: str) -> Sequence[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _has_data(directory: str, name: str) -> bool:
    return os.path.isdir(os.path.join(directory, name, "home"))


def _size(path: str) -> int:
    try:
        return disk_usage(path)
    except (OSError, ToolError):
        return 0
