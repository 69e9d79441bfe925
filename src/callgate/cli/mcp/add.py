"""`callgate mcp add` and `remove`: tables of the user's settings, and nothing else in them."""

from __future__ import annotations

import os
import re
import tomllib
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
from callgate.config.home import Home, write_private
from callgate.config.installations import Installation
from callgate.config.load import SettingsError, load_changed
from callgate.config.locks import alone_in
from callgate.config.mcp import McpTable
from callgate.wiring.mcp import pin_files, token_file

_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


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
        settings.add({name: table})
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
        settings.remove(name)
    pin_files(home).forget(name)
    token_file(home, name).forget()
    Installation(home.path, name).remove()
    if options.json:
        print_json({"ok": True, "removed": name})
    else:
        say(f"removed from {home.settings}, with what was approved and how it knew you")
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


class Settings:
    """The text of the user's settings, in which tables of MCP servers come and go."""

    def __init__(self, home: Home) -> None:
        self._home = home
        try:
            with open(home.settings, encoding="utf-8") as file:
                self.text = file.read()
        except FileNotFoundError:
            self.text = ""
        self._check(self.text)
        tree = tomllib.loads(self.text)
        self.servers: Mapping[str, Any] = tree.get("mcp", {})

    def add(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        added = "".join(written(name, table) for name, table in tables.items())
        end = "" if not self.text or self.text.endswith("\n") else "\n"
        self.text = f"{self.text}{end}{added}"
        self._check(self.text)

    def remove(self, name: str) -> None:
        """Only what is written as a table of its own can be taken out without a doubt."""
        before = tomllib.loads(self.text)
        text = "".join(_without(self.text, name))
        after = tomllib.loads(text)
        before["mcp"].pop(name)
        if before.get("mcp") == {}:
            del before["mcp"]
        if after.get("mcp") == {}:
            del after["mcp"]
        if after != before:
            raise CliError(
                f"[mcp.{name}] is not a table of its own in {self._home.settings}",
                hint="Take it out by hand.",
            )
        self.text = text

    def write(self) -> None:
        """For its owner alone: it may hold what proves who someone is."""
        # Some keep their settings elsewhere, and a link to them here: it stays one.
        write_private(os.path.realpath(self._home.settings), self.text)

    def _check(self, text: str) -> None:
        try:
            load_changed(self._home, text.encode(), self._home.settings)
        except SettingsError as error:
            raise CliError(
                str(error), hint="Nothing was changed.", reason="settings_invalid"
            ) from error


@contextmanager
def changing(home: Home) -> Iterator[Settings]:
    """The settings, written at the end: two who change them lose nothing of each other."""
    home.make()
    with alone_in(home.path):
        settings = Settings(home)
        yield settings
        settings.write()


def written(name: str, table: Mapping[str, Any]) -> str:
    """A table as TOML."""
    msgspec.convert(table, McpTable)  # what we write, we can read
    lines = [f"\n[mcp.{name}]\n"]
    lines += [f"{key} = {_toml(value)}\n" for key, value in table.items()]
    return "".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = (f"{_key(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {', '.join(entries)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # A JSON string is a TOML basic string, but for DEL.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.match(name) else _toml(name)


def _without(text: str, name: str) -> Iterator[str]:
    """The lines that are not of a table."""
    inside = False
    names = (f"mcp.{name}", f'mcp."{name}"', f"mcp.'{name}'")
    for line in text.splitlines(keepends=True):
        header = _HEADER.match(line.rstrip("\n"))
        if header is not None:
            inside = header[1].startswith(tuple(f"{each}." for each in names)) or header[1] in names
        if not inside:
            yield line
