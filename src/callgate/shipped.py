"""The packages of tools in our own distribution, as its entry points name them.

Known without a look at what is installed, which would cost every start more than a call. This is
the only place in which callgate names one of them. Light to import.
"""

from __future__ import annotations

from typing import NamedTuple

PACKAGE = "callgate_catalogue"
"""The package in which they are, next to ours."""


class ShippedPack(NamedTuple):
    name: str
    entry: str
    """`module:function`, of the entry point group `callgate.tools`."""
    tools: tuple[str, ...] = ()
    """Their names, or how they begin (`gmail_*`)."""


PACKS = (
    ShippedPack(
        "google",
        "callgate_catalogue.google.pack:pack",
        ("gmail_*", "drive_*", "calendar_*", "docs_*", "sheets_*", "tasks_*"),
    ),
    ShippedPack("web", "callgate_catalogue.web.pack:pack", ("web_*", "api_call")),
    ShippedPack("memory", "callgate_catalogue.memory.pack:pack", ("memory_*",)),
    ShippedPack("documents", "callgate_catalogue.documents.pack:pack", ("search", "file_*")),
    ShippedPack("speech", "callgate_catalogue.speech.pack:pack"),
)

COMMANDS = {
    "auth": "callgate_catalogue.commands:AUTH",
    "memory": "callgate_catalogue.commands:MEMORY",
}
"""First words of commands, and their entry points in the group `callgate.commands`."""
