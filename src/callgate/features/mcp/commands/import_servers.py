"""`callgate mcp import FILE`: the MCP servers of another program's configuration.

    {"mcpServers": {NAME: {...}}}       Claude Desktop, Cursor, Windsurf and most others
    {"servers": {NAME: {...}}}          VS Code, also below "mcp"
    {"context_servers": {NAME: {...}}}  Zed
    {NAME: {...}}                       examples in documentation

The servers are displayed with masked secrets and, after a yes, added to the user's settings, a
file that only the user can read. No server is started.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import words
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import open_tty
from callgate.cli.ui.visible import visible, visible_text
from callgate.config.home import Home
from callgate.config.settings_file import table_text
from callgate.core.errors import ToolErrorClass
from callgate.features.mcp.commands.add import add_servers, changing, own_sandbox, read_settings
from callgate.features.mcp.settings import McpTable, name_for
from callgate.protocol.strict_json import StrictJsonError, loads
from callgate.redaction.texts import redact

_LARGEST = 4 * 1024 * 1024
_SERVER_PATHS = (("mcpServers",), ("servers",), ("mcp", "servers"), ("context_servers",), ())
"""Keys that lead to the table of servers; the last is the document itself."""
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[\]}])', re.DOTALL)
_INPUT = re.compile(r"\$\{(?!(?:env:)?[A-Za-z_][A-Za-z0-9_]*\})")
_HERE = re.compile(r"\$\{workspaceFolder\}")
_FILLED = re.compile(r"\$\{[^}]*\}")
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(r"--?[a-z_-]*(?:key|token|secret|password|auth)[a-z_-]*\Z", re.IGNORECASE)
"""An option with a secret value."""
_COVERED = "(hidden)"


class Found(NamedTuple):
    name: str
    table: Mapping[str, Any] | None
    problem: str | None = None


def import_(options: Namespace) -> int:
    refuse_within_a_call("callgate mcp import")
    (path,) = words(options, "file")
    home = Home.from_environment()
    servers = read_settings(home).servers
    found = [_refused_if_there(each, servers) for each in read(_content(path))]
    tables = {each.name: each.table for each in found if each.table is not None}
    shown = "\n".join(table_text(("mcp", name), covered(table)) for name, table in tables.items())
    if options.json:
        print_json(
            {
                "ok": True,
                "added": sorted(tables) if options.yes else [],
                "found": [{"name": each.name, "problem": each.problem} for each in found],
            }
        )
    else:
        print(visible_text(shown), end="", flush=True)
    for each in found:
        if each.problem is not None:
            say(f"{visible(each.name)} is not imported: {each.problem}")
    if not tables or (options.json and not options.yes):
        return OK
    if not options.yes:
        _ask(home, shown)
    with changing(home) as settings:
        add_servers(settings, tables)
    without = [name for name, table in tables.items() if "command" in table]
    if without:
        say(f"network of {', '.join(without)}: none. To allow more, set network in [mcp.NAME].")
    say(f"added to {home.settings}; run callgate mcp approve to review their tools")
    return OK


setattr(sys.modules[__name__], "import", import_)  # the name of the command is a keyword


def read(text: str) -> list[Found]:
    """Return the servers of a configuration, each as a settings table or with its problem."""
    tree = _parsed(text)
    for path in _SERVER_PATHS:
        servers: Any = tree
        for key in path:
            servers = servers.get(key) if isinstance(servers, dict) else None
        if isinstance(servers, dict) and servers and (path or _is_list(servers)):
            found = [_read(name, entry) for name, entry in servers.items()]
            return [_refused_if_among(each, found[:at]) for at, each in enumerate(found)]
    known = ", ".join(".".join(path) for path in _SERVER_PATHS if path)
    raise CliError(f"the file contains no MCP servers (none of {known})")


def _is_list(tree: Mapping[str, Any]) -> bool:
    """Return whether each value is the table of a server."""
    found = tree.values()
    return all(isinstance(each, dict) and {"command", "url"} & each.keys() for each in found)


def _parsed(text: str) -> Any:
    """Parse JSON, with the comments and trailing commas that editors allow."""
    try:
        return loads(text)
    except StrictJsonError:
        pass
    plain = _COMMENT.sub(lambda found: found[1] or " ", text)
    try:
        return loads(_TRAILING.sub(lambda found: found[1] or "", plain))
    except StrictJsonError as error:
        raise CliError(f"the file is not JSON: {error}") from None


def _read(name: str, entry: Any) -> Found:
    ours = name_for(name)
    if not isinstance(entry, dict):
        return Found(ours, None, "its entry is not a JSON object")
    try:
        table = {key: value for key, value in _keys(entry) if value not in ({}, [], None)}
        problem = msgspec.convert(table, McpTable).problem()
    except (TypeError, ValueError, AttributeError) as error:
        return Found(ours, None, str(error))
    if problem is not None:
        return Found(ours, None, "its {} {}".format(*problem))
    return Found(ours, table)


def _keys(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if "sse" in (entry.get("type"), entry.get("transport"), entry.get("transportType")):
        raise ValueError("callgate does not support its transport, the old SSE")
    if entry.get("disabled") is True or entry.get("enabled") is False:
        raise ValueError("it is disabled in the file")
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if url is not None:
        yield "url", _literal(url)
        yield "headers", _texts(entry.get("headers"))
        return
    command: Any = entry.get("command")
    if isinstance(command, dict):  # Zed
        entry = {**entry, **command}
        command = command.get("path")
    if not isinstance(command, str) or not command:
        raise ValueError("it has neither a command nor a URL")
    if entry.get("envFile"):
        raise ValueError(
            "callgate does not support envFile: copy the variables from that file into env"
        )
    yield "command", _literal(command)
    yield "args", [_literal(each) for each in entry.get("args") or []]
    yield "set_env", _texts(entry.get("env"))
    if isinstance(entry.get("cwd"), str):
        yield "cwd", _literal(entry["cwd"])
    yield from own_sandbox([command]).items()


def _texts(values: Any) -> dict[str, str]:
    """Return the values as text. A value of null means that the variable is not set."""
    return {str(name): _text(value) for name, value in (values or {}).items() if value is not None}


def _literal(value: Any) -> str:
    """Return a text without variables. Raises `ValueError` if it contains some."""
    text = _text(value)
    if (found := _FILLED.search(text)) is not None:
        raise ValueError(
            f"callgate replaces {visible(found[0][:40])} only in variables and headers: write the"
            " value itself"
        )
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float | bool):
        raise TypeError("one of its values is not a string, number or boolean")
    text = value if isinstance(value, str) else str(value).lower()
    text = text.replace("${userHome}", os.path.expanduser("~"))
    text = _VARIABLE.sub(r"${\1}", _HERE.sub(".", text))
    unknown = _INPUT.search(text)
    if unknown is not None:
        raise ValueError(
            f"callgate cannot replace {visible(text[unknown.start() :][:40])}: write the value"
            " itself"
        )
    return text


def covered(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with secrets masked.

    All values of variables and headers are masked, and likely secrets in arguments and URLs.
    """
    shown = dict(table)
    if "args" in shown:
        args = shown["args"]
        shown["args"] = [
            _COVERED if _SECRET.match(before) and not each.startswith("-") else redact(each)
            for before, each in zip(["", *args], args, strict=False)
        ]
    if "url" in shown:
        address, query, _ = shown["url"].partition("?")
        shown["url"] = redact(address) + (f"?{_COVERED}" if query else "")
    for key in ("set_env", "headers"):
        if key in shown:
            shown[key] = {
                name: value if value.startswith("${") else _COVERED
                for name, value in shown[key].items()
            }
    return shown


def _refused_if_among(found: Found, before: list[Found]) -> Found:
    if any(each.name == found.name for each in before):
        return Found(found.name, None, "another server in the file gets the same name")
    return found


def _refused_if_there(found: Found, servers: Mapping[str, Any]) -> Found:
    if found.table is not None and found.name in servers:
        return Found(found.name, None, "your settings have an MCP server of this name")
    return found


def _content(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8-sig") as file:
            text = file.read(_LARGEST)
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from None
    return text


def _ask(home: Home, text: str) -> None:
    tty = open_tty()
    if tty is None:
        raise CliError(
            "importing needs approval, and no terminal is available",
            hint="Use --yes to import without a question.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="no_confirmer",
        )

    question = f"Add these to {home.settings}?"
    if not asyncio.run(agreed(tty, Lines(text.splitlines()), question)):
        raise CliError(
            "nothing was added", error_class=ToolErrorClass.USER_DENIED, reason="user_denied"
        )
