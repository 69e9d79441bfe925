"""`callgate tools`: which tools there are, what each can do, and why some are not visible."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from callgate.cli.errors import OK, CliError
from callgate.cli.remote.tools import every_tool
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import columns, is_terminal, paint_for
from callgate.cli.ui.visible import clip, visible
from callgate.core.errors import ToolErrorClass
from callgate.core.text.spelling import nearest

Tool = dict[str, Any]
"""One tool, as `surfaces.socket.listings.every` describes it."""


def tools(options: Namespace) -> int:
    known = None if options.no_instance else every_tool(options)
    if known is None:
        known = _embedded_tools(options)
    if options.words:
        return _describe([_named(word, known) for word in options.words], options)
    listed = [each for each in known if options.all or each["visible"]]
    if options.all and not options.names:
        from callgate.cli.ui.pack_rows import pack_rows  # lazy: it reads all metadata  # noqa: PLC0415

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
    """The tools of a runtime of our own, which is loaded only where no instance answers."""
    from callgate.cli.embedded import open_runtime  # lazy: not where an instance answers  # noqa: PLC0415
    from callgate.surfaces.socket.listings import every  # lazy: the same  # noqa: PLC0415

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
    if options.names:  # of its parameters, as one begins to type them
        for key in (key for tool in tools for key in tool["input_schema"].get("properties", ())):
            print(f"{visible(key)}=")
        return OK
    from callgate.cli.ui.tool_pages import tool_page  # lazy: not for a list  # noqa: PLC0415

    print("\n\n".join(tool_page(tool) for tool in tools))
    return OK


def print_table(listed: list[Tool]) -> None:
    paint = paint_for(sys.stdout)
    width = max((len(visible(tool["name"])) for tool in listed), default=0)
    room = columns() - width - 14 if is_terminal(sys.stdout) else None
    for tool in listed:
        text = tool["description"].strip().split("\n")[0]
        if not tool["visible"]:
            text = f"(not visible: {tool['hidden_because']}) {text}"
        shown = visible(text) if room is None else clip(text, max(room, 20))
        name = paint("bold" if tool["visible"] else "dim", f"{visible(tool['name']):<{width}}")
        print(f"{name}  {visible(tool['side_effects']):<8}  {shown}")
