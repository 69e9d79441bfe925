"""Hosts and MCP servers as they are listed: how each is, its tools, what it needs of a person."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from callgate.cli.ui.terminal import paint_for
from callgate.cli.ui.visible import visible
from callgate.protocol.socket_v1.frames import HostEntry

_COLOURS = {"running": "green", "quarantined": "red", "waiting": "yellow"}


def described(host: HostEntry) -> dict[str, Any]:
    return {
        "name": host.name,
        "health": host.health,
        "command": host.command,
        "tools": [
            {"name": tool.name, "effect": tool.effect, "changed": tool.changed}
            for tool in host.tools
        ],
        "problem": host.problem,
    }


def print_table(entries: Collection[HostEntry], renew: str) -> None:
    """`renew` is the command that takes what is new or has changed, without the name."""
    paint = paint_for(sys.stdout)
    width = max((len(visible(each.name)) for each in entries), default=0)
    for each in entries:
        health = paint(_COLOURS.get(each.health, "bold"), f"{visible(each.health):<11}")
        count = "1 tool" if len(each.tools) == 1 else f"{len(each.tools)} tools"
        command = visible(" ".join(each.command))
        print(f"{visible(each.name):<{width}}  {health}  {count:<8}  {command}")
        remedy = f"  -> {renew} {visible(each.name)}"
        if each.health == "new":
            print(f"{'':{width}}  not approved yet{remedy}")
        changed = [visible(tool.name) for tool in each.tools if tool.changed]
        if changed:
            print(f"{'':{width}}  {paint('red', 'changed')}: {', '.join(changed)}{remedy}")
        if each.problem is not None:
            print(f"{'':{width}}  problem: {visible(each.problem)}")
