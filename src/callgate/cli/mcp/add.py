"""`callgate mcp add` and `remove`: tables of the user's settings, and nothing else in them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from callgate.cli.errors import OK, CliError
from callgate.cli.mcp.runners import around
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.stores import not_found, words
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.settings_file import SettingsFile, editing
from callgate.config.toml_edits import NotATableError
from callgate.core.mcp_servers import McpTable
from callgate.sources.packages.installations import Installation
from callgate.wiring.mcp import pin_files, token_file


def add(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp add")
    if not options.words:
        raise CliError("which name?", hint="See callgate mcp add --help.")
    name, *command = options.words
    table = _table(command, options)
    home = Home.from_environment()
    with changing(home) as settings:
        if name in settings.servers:
            raise CliError(f"there is an MCP server {name!r} already; callgate mcp remove {name}")
        add_servers(settings, {name: table})
    if options.no_start:
        say(f"added to {home.settings}; callgate mcp approve {name} looks at its tools")
        return OK
    from callgate.cli.mcp.approve import run  # lazy: heavy, and not for --no-start  # noqa: PLC0415

    code = run(home, [name], options.workspace, yes=options.yes, json=options.json)
    if code != OK:
        say(f"hint: it is in {home.settings}; callgate mcp approve {name} tries again.")
    return code


def remove(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp remove")
    (name,) = words(options, "server")
    home = Home.from_environment()
    with changing(home) as settings:
        if name not in settings.servers:
            raise not_found(f"your settings name no MCP server {name!r}")
        _remove(settings, name, home.settings)
    pin_files(home).forget(name)
    token_file(home, name).forget()
    Installation(home.path, name).remove()
    if options.json:
        print_json({"ok": True, "removed": name})
    else:
        say(f"removed from {home.settings}, with its approval and its tokens")
    return OK


def _table(command: Sequence[str], options: Namespace) -> dict[str, Any]:
    if (options.url is None) == (not command):
        raise CliError("give a command behind --, or --url", hint="See callgate mcp add --help.")
    table: dict[str, Any] = {}
    if options.url is not None:
        table["url"] = options.url
        table["headers"] = dict(_pair(each, ":", "--header") for each in options.header or ())
    else:
        table |= {"command": command[0], "args": [*command[1:]], **around(command)}
        variables = [each.partition("=") for each in options.env or ()]
        table["env"] = [name for name, equals, _ in variables if not equals]
        table["set_env"] = {name: value for name, equals, value in variables if equals}
    if options.network is not None:
        network = options.network
        table["network"] = network if network in ("none", "loopback", "all") else network.split(",")
    table |= {key: value for key in ("effect", "profile") if (value := getattr(options, key))}
    if options.trusted:
        table["trusted"] = True
    return {key: value for key, value in table.items() if value not in ({}, [])}


def _pair(text: str, between: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(between)
    if not found:
        raise CliError(f"{option}: {name!r} has no {between!r} in it")
    return name.strip(), value.strip()


def read_settings(home: Home) -> SettingsFile:
    with _explained():
        return SettingsFile(home)


@contextmanager
def changing(home: Home) -> Iterator[SettingsFile]:
    """The settings, written at the end."""
    with _explained(), editing(home) as settings:
        yield settings


@contextmanager
def _explained() -> Iterator[None]:
    """A `CliError` where the settings are wrong, or would be."""
    try:
        yield
    except SettingsError as error:
        raise CliError(
            str(error), hint="Nothing was changed.", reason="settings_invalid"
        ) from error


def add_servers(settings: SettingsFile, tables: Mapping[str, Mapping[str, Any]]) -> None:
    for name, table in tables.items():
        msgspec.convert(table, McpTable)  # what we write, we can read
        settings.add("mcp", name, table=table)


def _remove(settings: SettingsFile, name: str, path: str) -> None:
    try:
        settings.remove("mcp", name)
    except NotATableError:
        raise CliError(
            f"[mcp.{name}] is not a table of its own in {path}", hint="Take it out by hand."
        ) from None
