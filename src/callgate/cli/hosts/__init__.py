"""`callgate host` for authors of tool hosts, and `callgate hosts` for their users.

`host` runs a host, `new` creates a sample, and `check` tests one (`conversation`, `probes`).
`hosts` lists, restarts and reloads the configured hosts (`lists`, `reloads`).
"""

# ruff: noqa: PLC0415

from __future__ import annotations

from callgate.cli import options
from callgate.cli.command import APPROVAL, FOLLOW, Command, add, count, deferred, takes
from callgate.cli.options import JSON, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from callgate.cli.parsers import Parser

LANGUAGES = ("python", "node", "bash")
_GIVEN_UP = "Also restarts a host that callgate no longer starts because it crashed too often."


def _new(parser: Parser) -> None:
    parser.add_argument("--lang", choices=LANGUAGES, default="python", help="default python")
    parser.add_argument("--dir", metavar="D", default=".", help="target directory; default: here")
    add(parser, JSON)


def _check(parser: Parser) -> None:
    parser.add_argument(
        "--call", nargs="+", metavar=("TOOL", "key=value"), help="also run one of its tools"
    )
    parser.add_argument("--config", metavar="JSON", help="configuration for its init; default {}")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=options.seconds,
        default=5.0,
        help="time limit of each answer in seconds; default 5",
    )
    add(parser, JSON)


def _logs(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=count, default=20, help="lines; default 20")
    add(parser, FOLLOW)


def _module(name: str) -> ModuleType:
    module: ModuleType
    match name.split():
        case ["host"]:
            from callgate.cli.hosts import hosts as module  # lazy: when it runs
        case ["host", "check"]:
            from callgate.cli.hosts import check as module  # lazy: when it runs
        case ["host", "new"]:
            from callgate.cli.hosts import new as module  # lazy: when it runs
        case ["hosts", _]:
            from callgate.cli.hosts import hosts as module  # lazy: when it runs
        case _:
            raise ValueError(name)
    return module


_DECLARED = {
    "host": Command(
        "serve a Python file's tools over stdio",
        "FILE_OR_MODULE | --script PATH ...",
        takes(Option("--script", help="serve executables instead of Python")),
        "FILE_OR_MODULE contains @tool functions or a plugin. Each PATH is an executable that\n"
        "supports schema, preview NAME and run NAME on its command line.",
        is_local=True,
    ),
    "host new": Command("create a sample plugin and its test", "NAME", _new, is_local=True),
    "host check": Command(
        "check a program against the host protocol",
        "-- COMMAND ...",
        _check,
        "The program runs without a sandbox. Only a tool that --call names is run. The exit code\n"
        "is 0 if the program conforms, and 1 if not.",
        is_local=True,
    ),
    "hosts list": Command("list the configured hosts and their state", "", takes(JSON)),
    "hosts logs": Command("show the log of a host", "NAME", _logs),
    "hosts reload": Command(
        "restart hosts and approve their changed tools",
        "[NAME]",
        takes(*APPROVAL),
        "The command shows the changes and pins them after your approval. A running instance then\n"
        "uses the new tools; calls in flight finish with the old ones.",
    ),
    "hosts restart": Command(
        "restart a host in the running instance",
        "NAME",
        takes(JSON),
        _GIVEN_UP,
    ),
}

COMMANDS = deferred(_DECLARED, _module)
