"""`callgate tools`: which tools there are, what each can do, and why some are not visible."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from callgate.cli.embedded import open_runtime
from callgate.cli.exits import OK
from callgate.cli.output import print_json
from callgate.cli.problems import CliError
from callgate.cli.terminal import columns, is_terminal, paint_for
from callgate.cli.visible import clip, visible
from callgate.core.sessions import Mode, Session
from callgate.dispatch.registry import Registered
from callgate.wiring import Wired

Listed = tuple[Registered, str | None]
"""A tool, and why it is not visible."""


def tools(options: Namespace) -> int:
    if options.words:
        raise CliError(f"tools takes no {options.words[0]!r}", hint="See callgate tools --help.")
    wired, session = open_runtime(options)
    listed = sorted(_listed(wired, session, options.all), key=lambda each: each[0].name)
    if options.json:
        print_json([_described(tool, hidden) for tool, hidden in listed])
    elif options.names:
        for tool, _ in listed:
            print(tool.name)
    else:
        _print_table(listed)
    return OK


def _listed(wired: Wired, session: Session, everything: bool) -> list[Listed]:
    by_mode = "mode none runs no tool" if session.mode is Mode.NONE else None
    known = [(tool, hidden or by_mode) for tool, hidden in wired.runtime.all_tools(session)]
    return known if everything else [each for each in known if each[1] is None]


def _described(tool: Registered, hidden: str | None) -> dict[str, Any]:
    definition = tool.definition
    return {
        "name": tool.name,
        "side_effects": tool.effect,
        "capabilities": sorted(tool.capabilities),
        "description": definition.description,
        "input_schema": definition.input_schema,
        "aliases": list(definition.aliases),
        "source": definition.source,
        "timeout_s": tool.timeout_s,
        "visible": hidden is None,
        "hidden_because": hidden,
    }


def _print_table(listed: list[Listed]) -> None:
    paint = paint_for(sys.stdout)
    width = max((len(tool.name) for tool, _ in listed), default=0)
    room = columns() - width - 14 if is_terminal(sys.stdout) else None
    for tool, hidden in listed:
        text = tool.definition.description.strip().split("\n")[0]
        if hidden is not None:
            text = f"(not visible: {hidden}) {text}"
        shown = visible(text) if room is None else clip(text, max(room, 20))
        name = paint("bold" if hidden is None else "dim", f"{tool.name:<{width}}")
        print(f"{name}  {tool.effect:<8}  {shown}")
