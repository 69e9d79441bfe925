"""Commands that set callgate up: settings, checks, keys and logins, the shell."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli.families.parts import Command, Parser, add, positive, takes
from callgate.cli.options import JSON, Option

HEADING = "set up"

SHELLS = ("bash", "zsh", "fish")


def _google(parser: Parser) -> None:
    parser.add_argument("--account", metavar="NAME", help="which; default: the usual one")
    parser.add_argument(
        "--client-file", metavar="FILE", help="login: as Google's console gives it out"
    )
    parser.add_argument("--read-only", action="store_true", help="login: change nothing at Google")
    parser.add_argument(
        "--scope", metavar="SCOPE", action="append", help="login: ask for this too; repeatable"
    )
    parser.add_argument("--no-open", action="store_true", help="login: print the link only")
    parser.add_argument(
        "--port", metavar="N", type=positive, help="login: where the browser comes back to"
    )
    add(parser, JSON)


COMMANDS: Mapping[str, Command] = {
    "init": Command(
        "write commented settings and a sample tool", "",
        takes(Option("--workspace", help="settings for this directory instead"), JSON),
    ),
    "doctor": Command(
        "check the installation, one line a check", "",
        takes(Option("--sandbox", help="what commands see of your home and the system"), JSON),
    ),
    "keys set": Command(
        "store the key of a model or provider", "NAME", takes(JSON),
        "NAME is that of a [models.NAME], or anthropic, or openai. The key is typed without being\n"
        "shown, or comes on stdin; it is never a word of the command line.",
    ),
    "keys list": Command("say for which models there is a key, and where it comes from", "",
                         takes(JSON)),
    "keys delete": Command("forget a key that was stored", "NAME", takes(JSON)),
    "auth google": Command(
        "log in to Google, for mail, files, calendar, documents, sheets and tasks",
        "login [SERVICE ...] | status | logout", _google,
        "A SERVICE is one of gmail, drive, calendar, docs, sheets, tasks; without one it is all.\n"
        "What was allowed before stays allowed. logout takes the leave back at Google too.",
    ),
    "completion": Command("print a completion script", "|".join(SHELLS), takes()),
}  # fmt: skip
