"""Names and parameters of the commands of these packages.

The help of callgate imports this module, so it is light: each command imports its implementation
when it runs."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.packs.commands import HERE, JSON, Command, Option, Parser, add, positive, takes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def _google_options(parser: Parser) -> None:
    parser.add_argument("--account", metavar="NAME", help="account; default: the usual one")
    parser.add_argument(
        "--client-file", metavar="FILE", help="login: client file from Google's console"
    )
    parser.add_argument("--read-only", action="store_true", help="login: request read-only access")
    parser.add_argument(
        "--scope",
        metavar="SCOPE",
        action="append",
        help="login: request this scope too; repeatable",
    )
    parser.add_argument("--no-open", action="store_true", help="login: only print the link")
    parser.add_argument(
        "--port", metavar="N", type=positive, help="login: local port for the browser's redirect"
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
        "log in to Google services",
        "login [SERVICE ...] | status | logout",
        _google_options,
        "A SERVICE is one of gmail, drive, calendar, docs, sheets, tasks; default: all.\n"
        "Earlier grants stay valid. logout also revokes the access at Google.",
        _google,
    ),
}

_SCOPE = Option("--scope", choices=("user", "workspace"), help="only these")

MEMORY: Mapping[str, Command] = {
    "memory list": Command(
        "list the notes of agents, newest first", "", takes(_SCOPE, *HERE), run=_memory_list
    ),
    "memory edit": Command(
        "correct an entry",
        "ID [TEXT]",
        takes(*HERE),
        "If TEXT is missing, the command reads stdin; at a terminal it opens your EDITOR.",
        _memory_edit,
    ),
    "memory forget": Command(
        "delete entries",
        "ID ...",
        takes(Option("--for-good", help="also delete the history"), *HERE),
        run=_memory_forget,
    ),
}
