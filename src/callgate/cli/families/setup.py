"""Commands that set callgate up: settings, checks, keys, the shell."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli.families.command import Command, Parser, takes
from callgate.cli.options import JSON, Option

HEADING = "set up"

SHELLS = ("bash", "zsh", "fish")


def _completion(parser: Parser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--install", action="store_true", help="put it where the shell finds it")
    group.add_argument("--remove", action="store_true", help="undo --install")


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
    "keys status": Command(
        "say which keys and logins are encrypted, and with which key",
        "",
        takes(JSON),
        "Shows names and ids of keys, and nothing secret. Ends with 1 where one cannot be read.",
    ),
    "keys encrypt": Command(
        "encrypt all keys and logins now, with the key of [secrets]",
        "",
        takes(JSON),
        "Files are otherwise encrypted when they are next written. Where servers share a store,\n"
        "those of this home are put into it, unless it has them. May be run again at any time.",
    ),
    "keys rotate": Command(
        "encrypt all keys and logins with another key",
        "",
        takes(
            Option("--new-key-env", metavar="NAME", help="the variable that holds the new key"),
            JSON,
        ),
        "NAME begins with CALLGATE_SECRETS_. Afterwards give the new key to callgate: nothing\n"
        "else opens what was encrypted with it. May be run again at any time.",
    ),
    "notify test": Command(
        "send a notice to every target of [notify], and say how that went",
        "",
        takes(Option("--target", metavar="NAME", help="to this one only"), JSON),
        "The notice is of no question. Ends with 1 where one of them did not take it.",
    ),
    "completion": Command(
        "print a completion script, or put it where the shell finds it",
        "|".join(SHELLS),
        _completion,
        "--install and --remove take the shell from SHELL where none is named. Files that others\n"
        "wrote are left alone; of .zshrc a marked block is changed, and nothing else.",
    ),
    "demo": Command(
        "show an agent at work in a small project, with its dashboard",
        "",
        takes(),
        "Everything is real but the model, which plays a script. Nothing of yours is touched.",
    ),
}
