"""Commands that show what happened: calls as they are made, the audit record, sessions."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli.families.command import (
    FOLLOW,
    IDS,
    JSON_LINES,
    OF_SESSION,
    WHEN,
    YES,
    Command,
    Parser,
    add,
    count,
    positive,
    takes,
)
from callgate.cli.options import JSON, WORKSPACE, Option

HEADING = "see what happened"

_DECISIONS = ("allow", "deny")
_FORMATS = ("markdown", "json")


def _tail(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=count, default=20, help="how many; default 20")
    add(parser, FOLLOW, JSON_LINES)


def _search(parser: Parser) -> None:
    parser.add_argument("--text", metavar="T", help="found anywhere in the record")
    parser.add_argument("--tool", metavar="NAME")
    parser.add_argument("--session", metavar="ID")
    parser.add_argument("--decision", choices=_DECISIONS)
    parser.add_argument("--error", metavar="CLASS", help="the class it ended in, such as timeout")
    parser.add_argument("--since", metavar="WHEN", help=WHEN)
    parser.add_argument("-n", metavar="N", type=count, help="only the last N that match")
    add(parser, JSON_LINES)


def _verify(parser: Parser) -> None:
    parser.add_argument(
        "--file",
        metavar="PATH",
        action="append",
        help="check this copy of a log alone; repeatable where homes share a store",
    )
    parser.add_argument(
        "--home",
        metavar="DIR",
        action="append",
        help="check the log of this home; repeatable, of all homes that share the store",
    )
    add(parser, JSON)


_EXPORTED = """\
To stdout, to a file (-o), or with --to to an HTTP server or syslog. With --to, and with -o and
--follow, a cursor remembers what was accepted, and the next run goes on there. Delivery is at least
once: a record that is sent again has the same id. Closed files and other writers are not missed."""


def _export_audit(parser: Parser) -> None:
    parser.add_argument("--format", choices=("jsonl", "ocsf", "csv"), default="jsonl")
    parser.add_argument("--since", metavar="WHEN", help=WHEN)
    add(parser, FOLLOW)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", metavar="FILE", help="default: stdout")
    where.add_argument(
        "--to", metavar="URL", help="http(s)://..., syslog:, syslog+unix|udp|tcp|tls://..."
    )
    parser.add_argument("--token-env", metavar="NAME", help="the variable with the bearer token")
    parser.add_argument(
        "--cursor", metavar="FILE", help="where it is remembered; none: by --since alone"
    )
    parser.add_argument(
        "--retry", metavar="S", type=count, help="how long a sink is tried; default 60, or no end"
    )
    parser.add_argument(
        "--home", metavar="DIR", action="append", help="the log of this home; repeatable"
    )


def _events(parser: Parser) -> None:
    add(parser, OF_SESSION)
    parser.add_argument("--since", metavar="CURSOR", help="only what came after it")
    parser.add_argument("--type", metavar="T", action="append", help="of this type; repeatable")
    parser.add_argument("-n", metavar="N", type=count, help="only the last N of those there are")
    add(parser, FOLLOW, JSON_LINES)


def _list(parser: Parser) -> None:
    add(
        parser.add_mutually_exclusive_group(),
        WORKSPACE,
        Option("--all", help="those of every workspace"),
    )
    parser.add_argument("-n", metavar="N", type=positive, default=20, help="how many; default 20")
    parser.add_argument("--cursor", metavar="C", help="go on where a list ended")
    add(parser, Option("--workers", help="also the sessions of workers"), JSON)


def _export(parser: Parser) -> None:
    parser.add_argument("--format", choices=_FORMATS, default="markdown")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: stdout")


_PRUNED_RECORDS = """\
What [retention] in settings.toml bounds goes, or what --older-than names. A session that a process
has open, or with a question or a call that has not ended, stays. The audit log is pruned with
--audit, or if audit_days is set."""


def _prune(parser: Parser) -> None:
    parser.add_argument(
        "--older-than", metavar="AGE", help="such as 30d; in place of the bounds in the settings"
    )
    add(
        parser,
        Option("--sessions", help="only sessions, with their events, calls and messages"),
        Option("--artifacts", help="only output that was too large to show"),
        Option("--audit", help="only files of the audit log"),
        Option("--dry-run", help="say what would go, and delete nothing"),
        Option("--vacuum", help="write the store anew, so that it shrinks; no instance may run"),
        YES,
        JSON,
    )


_MOVED_STORE = """\
Everything moves under the same ids and numbers, in one transaction, from the store that the
settings name, or the one behind --from. The target has to be empty, and no callgate may use
either of them. What was copied is read back and compared before it counts. The source stays."""


def _move(parser: Parser) -> None:
    parser.add_argument(
        "--to", metavar="STORE", required=True, help="postgresql://..., or sqlite: the file"
    )
    parser.add_argument("--from", metavar="STORE", dest="source", help="default: by the settings")
    parser.add_argument("--schema", metavar="NAME", help="in the database; default callgate")
    add(
        parser,
        Option("--write-settings", help="have settings.toml name the target afterwards"),
        Option("--dry-run", help="say what would be moved, and move nothing"),
        YES,
        JSON,
    )


COMMANDS: Mapping[str, Command] = {
    "watch": Command(
        "show every call of every client as it happens",
        "",
        takes(
            Option("--session", metavar="ID", help="only calls of this session"),
            Option("--tool", metavar="NAME", help="only calls of this tool"),
            Option("--errors", help="only calls that end badly"),
            Option("--answer", help="ask here what is to be asked"),
            Option("--json", help="the events, one JSON object a line"),
        ),
    ),
    "audit tail": Command("show the last calls on record", "", _tail),
    "audit search": Command("find calls on record", "", _search),
    "audit verify": Command(
        "check that the record was not changed and says what the store says",
        "",
        _verify,
    ),
    "audit export": Command("give the calls on record to others", "", _export_audit, _EXPORTED),
    "events": Command("show what happened in the sessions", "", _events),
    "sessions list": Command("list the sessions of this directory, newest first", "", _list),
    "sessions show": Command("say what is known of a session", "ID", takes(JSON), IDS),
    "sessions export": Command("print a session to read, or as lines of JSON", "ID", _export, IDS),
    "sessions fork": Command(
        "copy a session",
        "ID",
        takes(
            Option("--turn", metavar="T", help="the last turn to copy, by id or number"),
            Option("--title", metavar="TEXT", help="default: that of the original"),
            JSON,
        ),
        IDS,
    ),
    "sessions rename": Command("give a session a title", "ID TITLE", takes(JSON), IDS),
    "sessions delete": Command("delete sessions for good", "ID ...", takes(YES, JSON), IDS),
    "prune": Command(
        "delete records that are older than they are kept", "", _prune, _PRUNED_RECORDS
    ),
    "store status": Command("say where sessions are kept, and how that is", "", takes(JSON)),
    "store move": Command("move all sessions to another store", "", _move, _MOVED_STORE),
}
