"""`callgate tools`: list the tools with their effects, and the reasons why some are hidden."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

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
from callgate.cli.ui.visible import visible
from callgate.core.errors import ToolErrorClass
from callgate.core.texts import nearest

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
        from callgate.cli.ui.tool_pages import pack_rows  # lazy: it reads all metadata  # noqa: PLC0415

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
    from callgate.cli.ui.tool_pages import tool_page  # lazy: not for a list  # noqa: PLC0415

    for number, tool in enumerate(tools):
        page, _, example = tool_page(tool).rpartition("\n")
        print_lines(f"\n{page}" if number else page)
        print(example)  # one piece, to be copied
    return OK


def print_table(listed: list[Tool]) -> None:
    print_rows(_HEADINGS, [_row(tool) for tool in listed], most=_MOST_ROWS)


def _row(tool: Tool) -> tuple[Cell, str, str]:
    text, colour = tool["description"].strip().split("\n")[0], "bold"
    if not tool["visible"]:
        text, colour = f"(not visible: {tool['hidden_because']}) {text}", "dim"
    return Cell(tool["name"], colour), tool["side_effects"], text
