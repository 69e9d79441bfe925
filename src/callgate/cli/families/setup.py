"""Commands that set callgate up: settings, checks, keys, the shell."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli.families.command import Command, takes
from callgate.cli.options import JSON, Option

HEADING = "set up"

SHELLS = ("bash", "zsh", "fish")


COMMANDS: Mapping[str, Command] = {
    "init": Command(
        "write commented settings and a sample tool",
        "",
        takes(Option("--workspace", help="settings for this directory instead"), JSON),
    ),
    "doctor": Command(
        "check the installation, one line a check",
        "",
        takes(Option("--sandbox", help="what commands see of your home and the system"), JSON),
    ),
    "keys set": Command(
        "store the key of a model or provider",
        "NAME",
        takes(JSON),
        "NAME is that of a [models.NAME], or anthropic, or openai. The key is typed without being\n"
        "shown, or comes on stdin; it is never a word of the command line.",
    ),
    "keys list": Command(
        "say for which models there is a key, and where it comes from", "", takes(JSON)
    ),
    "keys delete": Command("forget a key that was stored", "NAME", takes(JSON)),
    "completion": Command("print a completion script", "|".join(SHELLS), takes()),
}
