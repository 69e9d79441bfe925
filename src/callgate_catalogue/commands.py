"""The commands of these packages: what they are called and what they take. Light: the help of
callgate imports it, so what a command does is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.packs.commands import HERE, JSON, Command, Option, Parser, add, positive, takes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def _google_options(parser: Parser) -> None:
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


def _google(options: Namespace) -> int:
    from callgate_catalogue.google import command_line  # lazy: with the command  # noqa: PLC0415

    return command_line.google(options)


def _memory_list(options: Namespace) -> int:
    from callgate_catalogue.memory import command_line  # lazy: with the command  # noqa: PLC0415

    return command_line.list(options)


def _memory_edit(options: Namespace) -> int:
    from callgate_catalogue.memory import command_line  # lazy: with the command  # noqa: PLC0415

    return command_line.edit(options)


def _memory_forget(options: Namespace) -> int:
    from callgate_catalogue.memory import command_line  # lazy: with the command  # noqa: PLC0415

    return command_line.forget(options)


AUTH: Mapping[str, Command] = {
    "auth google": Command(
        "log in to Google, for mail, files, calendar, documents, sheets and tasks",
        "login [SERVICE ...] | status | logout",
        _google_options,
        "A SERVICE is one of gmail, drive, calendar, docs, sheets, tasks; without one it is all.\n"
        "What was allowed before stays allowed. logout takes the leave back at Google too.",
        _google,
    ),
}

_SCOPE = Option("--scope", choices=("user", "workspace"), help="only these")

MEMORY: Mapping[str, Command] = {
    "memory list": Command(
        "list what agents noted for later, newest first", "", takes(_SCOPE, *HERE), run=_memory_list
    ),
    "memory edit": Command(
        "put an entry right",
        "ID [TEXT]",
        takes(*HERE),
        "Without a TEXT it is read from stdin; at a terminal your EDITOR opens.",
        _memory_edit,
    ),
    "memory forget": Command(
        "have entries forgotten",
        "ID ...",
        takes(Option("--for-good", help="also what it said before"), *HERE),
        run=_memory_forget,
    ),
}
