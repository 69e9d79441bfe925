"""Commands for what agents know: skills that people write."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli.families.command import HERE, NAMES, Command, takes
from callgate.cli.options import JSON, Option

HEADING = "keep skills and memory"

COMMANDS: Mapping[str, Command] = {
    "skills list": Command(
        "list the skills: instructions that are asked for by name",
        "",
        takes(NAMES, *HERE),
        "In a chat, a run or an editor, /NAME asks a model to follow one.",
    ),
    "skills show": Command("show what a skill says", "NAME", takes(*HERE)),
    "skills new": Command(
        "write a skill to begin with",
        "NAME",
        takes(Option("--workspace", help="for everyone who works in this directory"), JSON),
    ),
}
