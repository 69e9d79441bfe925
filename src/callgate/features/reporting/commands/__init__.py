"""Commands that report about calls."""

# ruff: noqa: PLC0415

from __future__ import annotations

from callgate.cli.command import (
    FOLLOW,
    HERE,
    OF_SESSION,
    WHEN,
    Command,
    add,
    count,
    deferred,
    positive,
    takes,
)
from callgate.cli.options import JSON, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from callgate.cli.parsers import Parser

_EXPORTED = """\
Exports to stdout, to a file (-o), or to an HTTP server or syslog (--to). A cursor stores the
position of the last accepted record for --to, and for -o with --follow; the next run continues
there. Delivery is at least once: a record keeps its id if it is sent again. Rotated log files and
records of other processes are included."""


def _export_audit(parser: Parser) -> None:
    parser.add_argument("--format", choices=("jsonl", "ocsf", "csv"), default="jsonl")
    parser.add_argument("--since", metavar="WHEN", help=WHEN)
    add(parser, FOLLOW)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", metavar="FILE", help="default: stdout")
    where.add_argument(
        "--to", metavar="URL", help="http(s)://..., syslog:, syslog+unix|udp|tcp|tls://..."
    )
    parser.add_argument(
        "--token-env", metavar="NAME", help="environment variable with the bearer token"
    )
    parser.add_argument("--cursor", metavar="FILE", help="file of the cursor; none: no cursor")
    parser.add_argument(
        "--retry",
        metavar="S",
        type=count,
        help="seconds of retries; default 60, without limit with --follow",
    )
    parser.add_argument(
        "--home", metavar="DIR", action="append", help="export the log of this home; repeatable"
    )


def _test(parser: Parser) -> None:
    parser.add_argument("--since", metavar="WHEN", default="7d", help=f"{WHEN}; default 7d")
    parser.add_argument("--limit", metavar="N", type=positive, help="only the last N calls")
    add(parser, Option("--check", help="exit with 1 if any decision is loosened"), *HERE)


def _suggest(parser: Parser) -> None:
    parser.add_argument("--since", metavar="WHEN", default="30d", help=f"{WHEN}; default 30d")
    parser.add_argument("--limit", metavar="N", type=positive, help="only the last N calls")
    parser.add_argument("--tool", metavar="NAME", help="only calls of this tool")
    parser.add_argument(
        "--least",
        metavar="N",
        type=positive,
        default=3,
        help="minimum number of approvals; default 3",
    )
    add(parser, OF_SESSION, Option("--write", help="save the suggested rules"), *HERE)


def _module(name: str) -> ModuleType:
    module: ModuleType
    match name.split():
        case ["audit", "export"]:
            from callgate.features.reporting.commands import (
                audit_export as module,  # lazy: when it runs
            )
        case ["notify", _]:
            from callgate.features.reporting.commands import notify as module  # lazy: when it runs
        case ["policy", _]:
            from callgate.features.reporting.commands import policy as module  # lazy: when it runs
        case _:
            raise ValueError(name)
    return module


_DECLARED = {
    "notify test": Command(
        "send a test notice to every target",
        "",
        takes(Option("--target", metavar="NAME", help="only to this target"), JSON),
        "The notice belongs to no question. Exits with 1 if a target did not accept it.",
        is_local=True,
    ),
    "audit export": Command("export the audit log", "", _export_audit, _EXPORTED),
    "policy test": Command(
        "compare other settings with the recorded calls",
        "FILE|-",
        _test,
        "FILE is read and checked like settings.toml. Nothing is executed: each call is evaluated\n"
        "from its record, and paths by their text, without access to the files.",
    ),
    "policy suggest": Command(
        "suggest narrow rules from repeated approvals",
        "",
        _suggest,
        "Uses calls in the workspace and below it that a person allowed or that ran, and that\n"
        "would need approval today. Each rule is as narrow as these calls: the words of the\n"
        "command, the file, the recipient. A rule that would allow a denied call is not\n"
        "suggested. Nothing is executed, and nothing is saved without --write.",
    ),
}

COMMANDS = deferred(_DECLARED, _module)
