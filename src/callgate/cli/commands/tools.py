"""`callgate tools`: list the tools with their effects, pages about them, and why some are hidden.

Descriptions of tools and of packages of tools, as pages and rows.
"""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from callgate.cli.connection import (
    InstanceConnection,
    InstanceDeclined,
    greet,
    settings_of,
    through,
)
from callgate.cli.errors import OK, CliError
from callgate.cli.ui import provenance
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Cell, Column, print_lines, print_rows
from callgate.cli.ui.visible import visible, visible_text
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.core.errors import ToolErrorClass
from callgate.core.texts import nearest

if TYPE_CHECKING:
    from callgate.sources.installed_packs import Entry

_EFFECTS = {
    "none": "nothing outside itself",
    "read": "reads, changes nothing",
    "write": "changes files or data",
    "execute": "runs programs",
    "network": "reaches other machines",
}
_SOURCES = {"builtin": "callgate itself"}


def tool_page(tool: Mapping[str, Any]) -> str:
    """Return a page about a tool, from the description of `callgate.socket.queries.every`."""
    schema, effect = tool["input_schema"], visible(tool["side_effects"])
    rows = [
        f"{visible(tool['name'])}: {visible_text(tool['description'].strip())}",
        "",
        f"effect   {effect}: {_EFFECTS[effect]}" if effect in _EFFECTS else f"effect   {effect}",
        f"source   {visible(_SOURCES.get(tool['source'], tool['source']))}",
        f"limit    {tool['timeout_s']:g} s",
    ]
    if tool["aliases"]:
        rows.append(f"also     {visible(', '.join(tool['aliases']))}")
    if not tool["visible"]:
        rows.append(f"hidden   {visible(tool['hidden_because'])}")
    rows += ["", "parameters"]
    required = schema.get("required", ())
    for key, each in schema.get("properties", {}).items():
        rows += _parameter(key, each if isinstance(each, dict) else {}, key in required)
    if not schema.get("properties"):
        rows.append("  none")
    return "\n".join([*rows, "", "example", f"  {_example(tool['name'], schema)}"])


def _parameter(key: str, schema: Mapping[str, Any], required: bool) -> list[str]:
    facts = [_kind(schema), "required" if required else "optional"]
    if "default" in schema:
        facts.append(f"default {json.dumps(schema['default'], ensure_ascii=False)}")
    if "enum" in schema:
        facts.append("one of " + ", ".join(map(str, schema["enum"])))
    rows = [f"  {visible(key)}  {visible(', '.join(facts))}"]
    if isinstance(text := schema.get("description"), str) and text.strip():
        rows.append(f"    {visible(text.strip())}")
    return rows


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "value")
    return kind if isinstance(kind, str) else " or ".join(map(str, kind))


def _example(name: str, schema: Mapping[str, Any]) -> str:
    """Return a sample command line with the required arguments."""
    properties = schema.get("properties", {})
    needed = [key for key in schema.get("required", ()) if key in properties]
    words = [f"{key}={_value(key, properties[key])}" for key in needed]
    return visible(" ".join(["callgate call", name, *map(shlex.quote, words)]))


def _value(key: str, schema: Any) -> str:
    if not isinstance(schema, dict):
        return key.upper()
    for known in ("examples", "enum"):
        if isinstance(found := schema.get(known), list) and found:
            return found[0] if isinstance(found[0], str) else json.dumps(found[0])
    plain = {"integer": "1", "number": "1", "boolean": "true", "array": "[]", "object": "{}"}
    return plain.get(_kind(schema), key.upper())


def pack_rows() -> list[dict[str, Any]]:
    """Return the packages that are not enabled or not usable, with the reasons."""
    from callgate.sources.installed_packs import installed  # lazy: it reads all metadata  # noqa: PLC0415

    try:
        enabled = load_user(Home.from_environment())[0].packs.enable
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from None
    entries = installed("callgate.tools")
    return [_row(each) for each in entries if each.problem or each.name not in enabled]


def _row(entry: Entry) -> dict[str, Any]:
    enable = f"it is not enabled: add {entry.name!r} to [packs] enable in your settings"
    return {
        "name": entry.name,
        "side_effects": "",
        "capabilities": [],
        "description": f"A package of tools: {entry.package}",
        "input_schema": {},
        "aliases": [],
        "source": "package",
        "timeout_s": 0.0,
        "visible": False,
        "hidden_because": entry.problem or enable,
    }


_TEXTS = ("name", "side_effects", "description")


def every_tool(options: Any) -> list[dict[str, Any]] | None:
    """Return every tool, also hidden ones; None if no instance answers and none was named."""
    return through(options, _listed)


def _listed(
    connection: InstanceConnection, path: str, options: Any, *, named: bool
) -> list[dict[str, Any]]:
    answer = greet(connection, path, options, named=named, names=[], whole=True)
    if answer["workspace"] is None:
        raise InstanceDeclined(
            f"the instance at {path} does not serve this directory",
            "permission_denied",
            "Start one with callgate serve --workspace DIR.",
        )
    tools = answer.get("whole")
    if not isinstance(tools, list) or not all(map(_is_described, tools)):
        raise InstanceDeclined(
            f"the instance at {path} has another version",
            "protocol_error",
            "Restart it.",
        )
    settings = settings_of(answer)
    provenance.from_instance_at(path, settings["version"])
    provenance.warn_of_instance_settings(settings["problem"])
    return tools


def _is_described(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and all(isinstance(tool.get(name), str) for name in _TEXTS)
        and isinstance(tool.get("visible"), bool)
        and isinstance(tool.get("hidden_because"), str | None)
    )


Tool = dict[str, Any]
"""One tool, as `callgate.socket.queries.every` describes it."""
_HEADINGS = (Column("name"), Column("effect", least=8), Column("about"))
_MOST_ROWS = 3
"""Maximum rows of a description in a list; `callgate tools NAME` shows the whole text."""


def tools(options: Namespace) -> int:
    known = None if options.no_instance else every_tool(options)
    if known is None:
        known = _embedded_tools(options)
    if options.words:
        return _describe([_named(word, known) for word in options.words], options)
    listed = [each for each in known if options.all or each["visible"]]
    if options.all and not options.names:
        listed += pack_rows()
    if options.json:
        print_json(listed)
    elif options.names:
        for tool in listed:
            print(visible(tool["name"]))
    else:
        print_table(listed)
    return OK


def _embedded_tools(options: Namespace) -> list[Tool]:
    """Return the tools of a runtime in this process, for use without an instance."""
    from callgate.cli.embedded import open_runtime  # lazy: not where an instance answers  # noqa: PLC0415
    from callgate.socket.queries import every  # lazy: the same  # noqa: PLC0415

    wired, session = open_runtime(options)
    return every(wired.runtime, session)


def _named(word: str, known: list[Tool]) -> Tool:
    name = word.replace("-", "_")
    for tool in known:
        if {word, name} & {tool["name"], *tool["aliases"]}:
            return tool
    near = nearest(name, [tool["name"] for tool in known])
    meant = "" if near is None else f"Did you mean {near}? "
    raise CliError(
        f"there is no tool {word!r}",
        hint=f"{meant}callgate tools --all lists the tools.",
        error_class=ToolErrorClass.NOT_FOUND,
        reason="not_found",
    )


def _describe(tools: list[Tool], options: Namespace) -> int:
    if options.json:
        print_json(tools)
        return OK
    if options.names:  # parameters, as shell completion needs them
        for key in (key for tool in tools for key in tool["input_schema"].get("properties", ())):
            print(f"{visible(key)}=")
        return OK

    for number, tool in enumerate(tools):
        page, _, example = tool_page(tool).rpartition("\n")
        print_lines(f"\n{page}" if number else page)
        print(example)  # one piece, to be copied
    return OK


def print_table(listed: list[Tool]) -> None:
    print_rows(_HEADINGS, [_listed_row(tool) for tool in listed], most=_MOST_ROWS)


def _listed_row(tool: Tool) -> tuple[Cell, str, str]:
    text, colour = tool["description"].strip().split("\n")[0], "bold"
    if not tool["visible"]:
        text, colour = f"(not visible: {tool['hidden_because']}) {text}", "dim"
    return Cell(tool["name"], colour), tool["side_effects"], text
