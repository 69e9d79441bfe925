"""`callgate mcp add` and `remove`: edit the `[mcp.NAME]` tables of the user's settings."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from callgate.cli.errors import EXIT_CODES, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import not_found, words
from callgate.cli.ui.dialog import Dialog, Lines
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import MARK, BegunBefore, Tty, open_tty
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.settings_file import NotATableError, SettingsFile, editing
from callgate.core.errors import ToolErrorClass
from callgate.features.mcp.client.directories import Installation
from callgate.features.mcp.client.package_commands import runs_package
from callgate.features.mcp.settings import McpTable
from callgate.features.mcp.wiring import pin_files, token_file
from callgate.sandbox import allowed_hosts
from callgate.sandbox.jails import is_below

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_NO_SANDBOX = "--no-sandbox"


class Recipe(NamedTuple):
    args: tuple[str, ...] = ()
    """Additional arguments of the command."""
    keys: dict[str, Any] = {}
    note: str = ""


class _Browser(NamedTuple):
    no_sandbox: str
    executable: str
    elsewhere: frozenset[str]
    """Options for a browser that the server does not start itself."""


_SERVERS = {
    "@playwright/mcp": _Browser(
        _NO_SANDBOX,
        "--executable-path",
        frozenset({"cdpendpoint", "extension", "endpoint", "config", "sandbox"}),
    ),
    "chrome-devtools-mcp": _Browser(
        f"--chromeArg={_NO_SANDBOX}",
        "--executablePath",
        frozenset({"browserurl", "u", "wsendpoint", "w", "autoconnect", "config"}),
    ),
}


def recipe(command: Sequence[str]) -> Recipe:
    """Return the arguments and keys that a server needs in the sandbox; empty for most servers."""
    for package, browser in _SERVERS.items():
        if runs_package(command, package):
            return _completed(command, browser)
    return Recipe()


def _completed(command: Sequence[str], browser: _Browser) -> Recipe:
    options = {_plain(word) for word in command if word.startswith("-")}
    if options & browser.elsewhere:
        return Recipe()
    args = [each for each in ("--headless", "--isolated") if _plain(each) not in options]
    if not any(_NO_SANDBOX in word for word in command):
        args.append(browser.no_sandbox)
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is not None and not options & {_plain(browser.executable), "e", "channel", "browser"}:
        args += [browser.executable, found]
    shown = ", ".join((*args, "unix_sockets = true"))
    return Recipe(
        tuple(args),
        {"unix_sockets": True},
        f"added {shown}: the server's browser runs in callgate's sandbox instead of its own",
    )


def _plain(option: str) -> str:
    """Return the letters of an option's name, independent of its notation."""
    return re.sub(r"[^a-z]", "", option.partition("=")[0].lower())


Network = str | list[str]
NAMED = ("none", "loopback", "ask", "all")
_FORMS = "Use none, loopback, ask, all, or HOST,HOST,..."
_OWN_SANDBOX = frozenset({"docker", "podman"})
_CHOICES = {"n": "[n]one", "h": "these [h]osts", "a": "[a]ll"}


def own_sandbox(command: Sequence[str]) -> dict[str, Any]:
    """Return the keys of `[mcp.NAME]` for a container runtime, which cannot run in the sandbox.

    A file of this name in the workspace does not count.
    """
    name = os.path.basename(command[0])
    installed = shutil.which(name) if name in _OWN_SANDBOX else None
    if installed is None or shutil.which(command[0]) != installed:
        return {}
    inside = is_below(os.path.realpath(installed), os.path.realpath(os.getcwd()))
    return {} if inside else {"profile": "open"}


def parse_network(text: str) -> Network:
    """Parse the value of `--network`. Raises `CliError`."""
    if text in NAMED:
        return text
    hosts = [each.strip() for each in text.split(",") if each.strip()]
    try:
        for each in hosts:
            allowed_hosts.parse(each)
    except ValueError as error:
        raise CliError(f"--network: {error}", hint=_FORMS) from None
    if not hosts:
        raise CliError("--network: the list of hosts is empty", hint=_FORMS)
    return hosts


def choose_network(name: str, variables: Sequence[str], *, ask: bool) -> Network | None:
    """Ask for the network of a server. None without `ask` or a terminal. Raises `CliError`."""
    tty = open_tty() if ask else None
    return None if tty is None else asyncio.run(_ask(tty, name, variables))


async def _ask(tty: Tty, name: str, variables: Sequence[str]) -> Network:
    lines = [
        f"Which network may {visible(name)} use while it runs?",
        "A server for files needs none; a server for an API needs the API's hosts.",
    ]
    if variables:
        lines += [
            "It probably calls an API, because it gets",
            f"  {', '.join(map(visible, variables))}",
        ]
    lines.append("Enter means none.")
    async with tty.asking():
        while True:
            word = await Dialog(tty, Lines(lines)).choose(_CHOICES, {"h", "a"}, "Network?")
            if word is None:
                raise CliError(
                    "no network was chosen",
                    error_class=ToolErrorClass.USER_DENIED,
                    reason="user_denied",
                )
            if word in ("", "n"):
                return "none"
            if word == "a":
                return "all"
            if word == "h" and (hosts := await _hosts(tty)) is not None:
                return hosts


async def _hosts(tty: Tty) -> Network | None:
    """Ask for a list of hosts. None if the answer is empty."""
    while True:
        try:
            line = await tty.ask(f"Hosts (api.example.com, *.example.com){MARK}", takes_paste=True)
        except BegunBefore:
            continue
        if line is None or not line.strip():
            return None
        try:
            found = parse_network(line.strip())
        except CliError as error:
            tty.write(f"{visible(str(error))}\n")
            continue
        return found


def described(name: str, table: Mapping[str, Any], settings: str, *, chosen: bool) -> str:
    """Return a message about the network of an added server and how to change it."""
    network = table.get("network", "none")
    shown = network if isinstance(network, str) else ", ".join(network)
    reason = "" if chosen else " (--network was not given)"
    return (
        f"network of {name}: {shown}{reason}. To change it, set network in [mcp.{name}] of"
        f" {settings}, then run callgate mcp approve {name}."
    )


UNAVAILABLE = EXIT_CODES[ToolErrorClass.HOST_UNAVAILABLE]


def add(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp add")
    if not options.words:
        raise CliError("the name of the server is missing", hint="See callgate mcp add --help.")
    name, *command = options.words
    table = _table(command, options)
    home = Home.from_environment()
    settings = read_settings(home)
    with _explained():
        _add_new(settings, name, table)
    chosen = _with_network(name, table, options)
    if table != chosen:
        settings = read_settings(home)
        _add_new(settings, name, chosen)

    def write(effects: Mapping[str, str] | None = None) -> None:
        with changing(home) as current:
            _add_new(current, name, {**chosen, **({"effects": effects} if effects else {})})
        if "command" in chosen and "profile" not in chosen:
            say(described(name, chosen, home.settings, chosen="network" in chosen))

    if options.no_start:
        write()
        say(f"added to {home.settings}; run callgate mcp approve {name} to review its tools")
        return OK
    from callgate.features.mcp.commands.approve import run  # lazy: heavy, and not for --no-start  # noqa: PLC0415

    installation = Installation(home.path, name)
    had_data = os.path.lexists(installation.home_path)
    code = UNAVAILABLE
    try:
        code = run(
            home,
            [name],
            options.workspace,
            yes=options.yes,
            json=options.json,
            settings=settings.settings,
            write=write,
        )
    finally:
        if name not in read_settings(home).servers:
            installation.remove()
            if not had_data:
                installation.remove_home()
            say(f"{name} was not added. The log is {pin_files(home).log_path(name)}")
    return code


def _add_new(settings: SettingsFile, name: str, table: Mapping[str, Any]) -> None:
    if name in settings.servers:
        raise CliError(
            f"there is an MCP server {name!r} already",
            hint=f"Remove it with callgate mcp remove {name}, or use another name.",
        )
    add_servers(settings, {name: table})


def remove(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp remove")
    (name,) = words(options, "server")
    home = Home.from_environment()
    try:
        installation = Installation(home.path, name)
    except ValueError as error:
        raise not_found(str(error)) from None
    data = installation.home_path if os.path.lexists(installation.home_path) else None
    with changing(home) as settings:
        known = name in settings.servers
        if known:
            _remove(settings, name, home.settings)
        elif data is None or not options.data:
            raise not_found(f"your settings name no MCP server {name!r}")
    if known:
        pin_files(home).forget(name)
        token_file(home, name).forget()
        installation.remove()
    deleted = options.data and installation.remove_home()
    if options.json:
        print_json({"ok": True, "removed": name, "data": data, "data_deleted": deleted})
        return OK
    if known:
        say(f"removed from {home.settings}, with its approval, its tokens and its packages")
    if deleted:
        say(f"deleted its data in {data}")
    elif data is not None:
        say(f"its data stays in {data}, for the next server of this name;")
        say(f"to delete it, run callgate mcp remove {name} --data")
    return OK


def _table(command: Sequence[str], options: Namespace) -> dict[str, Any]:
    if (options.url is None) == (not command):
        raise CliError(
            "the server needs either a command after -- or --url",
            hint="See callgate mcp add --help.",
        )
    table: dict[str, Any] = {}
    if options.url is not None:
        table["url"] = options.url
        table["headers"] = dict(_pair(each, ":", "--header") for each in options.header or ())
    else:
        completed = recipe(command)
        if completed.note:
            say(completed.note)
        args = [*command[1:], *completed.args]
        containers = own_sandbox(command)
        if containers and not options.profile:
            say(f"{command[0]} runs outside callgate's sandbox, which would block its containers")
        table |= {"command": command[0], "args": args, **containers, **completed.keys}
        variables = [each.partition("=") for each in options.env or ()]
        table["env"] = [name for name, equals, _ in variables if not equals]
        table["set_env"] = {name: value for name, equals, value in variables if equals}
    if options.network is not None:
        table["network"] = parse_network(options.network)
    table |= {key: value for key in ("effect", "profile") if (value := getattr(options, key))}
    if options.trusted:
        table["trusted"] = True
    return {key: value for key, value in table.items() if value not in ({}, [])}


def _with_network(name: str, table: Mapping[str, Any], options: Namespace) -> dict[str, Any]:
    """Return the table with a network; ask for it if the options do not set it."""
    if "command" not in table or "network" in table or "profile" in table:
        return dict(table)
    variables = [each.partition("=")[0] for each in options.env or ()]
    network = choose_network(name, variables, ask=not options.yes and not options.json)
    return dict(table) if network is None else {**table, "network": network}


def _pair(text: str, between: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(between)
    if not found:
        raise CliError(f"{option}: {name!r} contains no {between!r}")
    return name.strip(), value.strip()


def read_settings(home: Home) -> SettingsFile:
    with _explained():
        return SettingsFile(home)


@contextmanager
def changing(home: Home) -> Iterator[SettingsFile]:
    """Open the settings for changes, and write them at the end."""
    with _explained(), editing(home) as settings:
        yield settings


@contextmanager
def _explained() -> Iterator[None]:
    """Convert a `SettingsError` to a `CliError`."""
    try:
        yield
    except SettingsError as error:
        raise CliError(
            str(error), hint="Nothing was changed.", reason="settings_invalid"
        ) from error


def add_servers(settings: SettingsFile, tables: Mapping[str, Mapping[str, Any]]) -> None:
    for name, table in tables.items():
        msgspec.convert(table, McpTable)  # fails before an invalid table is written
        settings.add("mcp", name, table=table)


def _remove(settings: SettingsFile, name: str, path: str) -> None:
    try:
        settings.remove("mcp", name)
    except NotATableError:
        raise CliError(
            f"[mcp.{name}] is not a separate table in {path}", hint="Remove it with an editor."
        ) from None
