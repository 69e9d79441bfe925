"""Commands of the kernel that need one module each, and their declarations."""

# ruff: noqa: PLC0415

from __future__ import annotations

from callgate.cli import options
from callgate.cli.command import (
    FOLLOW,
    IDS,
    JSON_LINES,
    KEY_VALUE_HELP,
    NAMES,
    OF_SESSION,
    TOOL_NAMES,
    WHEN,
    WORKSPACE_AND_MODE,
    YES,
    Command,
    add,
    count,
    deferred,
    positive,
    takes,
)
from callgate.cli.options import ARGS, JSON, MODE, NO_INPUT, WORKSPACE, Option, minutes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from callgate.cli.parsers import Parser

NOW = Option("--now", help="also stop calls in flight; default: [instance] drain_seconds")
_DECISIONS = ("allow", "deny")
_FORMATS = ("markdown", "json")
_PRUNED_RECORDS = """\
Deletes records older than [retention] in settings.toml or --older-than. Sessions that are open,
or have an unfinished call or question, remain. The audit log is pruned only with --audit, or if
audit_days is set."""
_MOVED_STORE = """\
Copies everything with its ids and numbers, in one transaction, from the store of the settings
or of --from. The target must be empty, and no callgate may use either store. The copy is read
back and compared before it takes effect. The source remains."""
CALLERS = (
    "cli",
    "plugin",
    "agent",
    "llm",
    "acp",
    "http",
    "mcp",
    "library",
    "renderer",
    "internal",
)
_ANSWERS = ("once", "run", "destination", "session", "always")
_SCOPES = f"""\
once answers for this call only, session for the same tool until the session ends, and always
saves a rule. A terminal first shows everything that would be allowed, unless --sha256 is
given. {IDS}"""


def _tail(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=count, default=20, help="how many; default 20")
    add(parser, FOLLOW, JSON_LINES)


def _search(parser: Parser) -> None:
    parser.add_argument("--text", metavar="T", help="text anywhere in the record")
    parser.add_argument("--tool", metavar="NAME", help="only this tool")
    parser.add_argument("--session", metavar="ID", help="only this session")
    parser.add_argument("--decision", choices=_DECISIONS, help="only this decision")
    parser.add_argument("--error", metavar="CLASS", help="only this error class, such as timeout")
    parser.add_argument("--since", metavar="WHEN", help=WHEN)
    parser.add_argument("-n", metavar="N", type=count, help="only the last N that match")
    add(parser, JSON_LINES)


def _verify(parser: Parser) -> None:
    parser.add_argument(
        "--file",
        metavar="PATH",
        action="append",
        help="check only this copy of a log; repeatable if homes share a store",
    )
    parser.add_argument(
        "--home",
        metavar="DIR",
        action="append",
        help="check the log of this home; repeat for all homes that share the store",
    )
    add(parser, JSON)


def _events(parser: Parser) -> None:
    add(parser, OF_SESSION)
    parser.add_argument("--since", metavar="CURSOR", help="only events after this cursor")
    parser.add_argument("--type", metavar="T", action="append", help="only this type; repeatable")
    parser.add_argument("-n", metavar="N", type=count, help="only the last N existing events")
    add(parser, FOLLOW, JSON_LINES)


def _list(parser: Parser) -> None:
    add(
        parser.add_mutually_exclusive_group(),
        WORKSPACE,
        Option("--all", help="sessions of every workspace"),
    )
    parser.add_argument("-n", metavar="N", type=positive, default=20, help="how many; default 20")
    parser.add_argument("--cursor", metavar="C", help="continue after an earlier list")
    add(parser, Option("--workers", help="also sessions of workers"), JSON)


def _export(parser: Parser) -> None:
    parser.add_argument("--format", choices=_FORMATS, default="markdown", help="default markdown")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: stdout")


def _prune(parser: Parser) -> None:
    parser.add_argument(
        "--older-than", metavar="AGE", help="such as 30d; replaces the limits of the settings"
    )
    add(
        parser,
        Option("--sessions", help="only sessions, with their events, calls and messages"),
        Option("--artifacts", help="only stored output that was too large to show"),
        Option("--audit", help="only files of the audit log"),
        Option("--dry-run", help="show the result without deleting"),
        Option("--vacuum", help="compact the store file; no instance may run"),
        YES,
        JSON,
    )


def _move(parser: Parser) -> None:
    parser.add_argument(
        "--to",
        metavar="STORE",
        required=True,
        help="postgresql://..., or sqlite for a file",
    )
    parser.add_argument("--from", metavar="STORE", dest="source", help="default: from the settings")
    parser.add_argument("--schema", metavar="NAME", help="database schema; default callgate")
    add(
        parser,
        Option("--write-settings", help="then write the target into settings.toml"),
        Option("--dry-run", help="show the result without moving"),
        YES,
        JSON,
    )


def _tools(parser: Parser) -> None:
    hidden = Option("--all", help="also list hidden tools and disabled packages, with reasons")
    add(parser, hidden, NAMES, JSON, *WORKSPACE_AND_MODE)
    add(parser.add_mutually_exclusive_group(), *options.TARGETS)


def _call(parser: Parser) -> None:
    add(parser, *options.CALL)
    add(parser.add_mutually_exclusive_group(), *options.TARGETS)


def _preview(parser: Parser) -> None:
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--apply", action="store_true", help="apply the changes without asking")
    chosen.add_argument("--discard", action="store_true", help="only show the changes")
    add(parser, *WORKSPACE_AND_MODE, options.TIMEOUT)
    parser.add_argument("--yes", action="store_true", help="approve the calls that need approval")
    add(parser, NO_INPUT, JSON)


def _undo(parser: Parser) -> None:
    parser.add_argument("--last", action="store_true", help="undo the last changes here")
    parser.add_argument(
        "--from",
        dest="begin",
        metavar="CALL_ID",
        help="undo this call and all later ones of its session",
    )
    parser.add_argument("--session", metavar="S", help="undo all changes of this session")
    parser.add_argument("--to", metavar="TURN", help="only changes after this turn")
    parser.add_argument("--turn", metavar="TURN", help="undo all changes of this turn")
    parser.add_argument("--since", metavar="WHEN", help="undo all changes here since then")
    parser.add_argument("--others", action="store_true", help="leave files that changed since")
    parser.add_argument("--dry-run", action="store_true", help="only show the changes")
    parser.add_argument("--workspace", metavar="DIR", help="default: workspace of the changes")
    add(parser, MODE, YES, NO_INPUT, JSON)


def _checkout(parser: Parser) -> None:
    parser.add_argument("--before", action="store_true", help="as it was before the call")
    add(parser, JSON)


def _explain(parser: Parser) -> None:
    add(parser, ARGS, *WORKSPACE_AND_MODE)
    parser.add_argument("--caller", choices=CALLERS, default="cli", help="default cli")
    parser.add_argument(
        "--by-agent", action="store_true", help="assume that an agent with a hook runs the call"
    )
    parser.add_argument("--said", metavar="TEXT", help="assume that the user wrote this before")
    parser.add_argument(
        "--read",
        action="append",
        choices=("private", "untrusted"),
        default=[],
        help="assume that the session read such content; repeatable",
    )
    add(
        parser,
        Option("--session", metavar="ID", help="use the mode and budgets of this session"),
        JSON,
    )


def _answer(parser: Parser) -> None:
    parser.add_argument("--scope", choices=_ANSWERS, default="once", help="default once")
    parser.add_argument("--reason", metavar="TEXT", help="shown to the agent with a denial")
    parser.add_argument(
        "--sha256", metavar="HASH", help="expected hash of the arguments, from the list"
    )
    add(parser, JSON)


def _serve(parser: Parser) -> None:
    parser.add_argument(
        "--workspace",
        metavar="DIR",
        dest="workspaces",
        action="append",
        help="serve this directory and its subdirectories; repeatable; default: here",
    )
    parser.add_argument("--socket", metavar="PATH", help="default: run/callgate.sock in the home")
    parser.add_argument("--label", metavar="NAME", help="name of the instance")
    parser.add_argument(
        "--trusted", action="store_true", help="serve the trusted directories instead"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--foreground", action="store_true", help="run in this terminal; default")
    where.add_argument("--detach", action="store_true", help="return when the instance is ready")
    http = parser.add_mutually_exclusive_group()
    http.add_argument("--http", metavar="HOST:PORT", help="default: 127.0.0.1:4177, or any port")
    http.add_argument("--no-http", action="store_true", help="listen only on the socket")
    parser.add_argument(
        "--http-allow-remote", action="store_true", help="permit connections from other machines"
    )
    parser.add_argument(
        "--idle",
        metavar="MINUTES",
        type=minutes,
        help="with --no-http: stop after this time without connections and calls",
    )
    from callgate.cli.parsers import SUPPRESS  # lazy: loads argparse

    parser.add_argument("--environment", help=SUPPRESS)  # of the call that starts it
    parser.add_argument(
        "--dev", action="store_true", help="accept changed plugins of hosts without approval"
    )
    add(parser, MODE)


def _module(name: str) -> ModuleType:
    module: ModuleType
    match name.split():
        case ["audit", _]:
            from callgate.cli.commands import audit as module  # lazy: when it runs
        case ["call"]:
            from callgate.cli.commands import call as module  # lazy: when it runs
        case ["checkout"] | ["diff"]:
            from callgate.cli.commands import changes as module  # lazy: when it runs
        case ["confirmations", *_]:
            from callgate.cli.commands import confirmations as module  # lazy: when it runs
        case ["demo"]:
            from callgate.cli.commands import demo as module  # lazy: when it runs
        case ["doctor"]:
            from callgate.cli.commands import doctor as module  # lazy: when it runs
        case ["events"]:
            from callgate.cli.commands import events as module  # lazy: when it runs
        case ["init"]:
            from callgate.cli.commands import init as module  # lazy: when it runs
        case ["policy", _]:
            from callgate.cli.commands import policy as module  # lazy: when it runs
        case ["preview"]:
            from callgate.cli.commands import undo as module  # lazy: when it runs
        case ["prune"] | ["sessions", _]:
            from callgate.cli.commands import sessions as module  # lazy: when it runs
        case ["serve"]:
            from callgate.cli.commands import serve as module  # lazy: when it runs
        case ["status"] | ["stop"]:
            from callgate.cli.commands import serve as module  # lazy: when it runs
        case ["store", _]:
            from callgate.cli.commands import store as module  # lazy: when it runs
        case ["tools"]:
            from callgate.cli.commands import tools as module  # lazy: when it runs
        case ["trust"]:
            from callgate.cli.commands import trust as module  # lazy: when it runs
        case ["undo"]:
            from callgate.cli.commands import undo as module  # lazy: when it runs
        case ["watch"]:
            from callgate.cli.commands import watch as module  # lazy: when it runs
        case _:
            raise ValueError(name)
    return module


_DECLARED = {
    "serve": Command("run an instance for other programs", "", _serve, reports_settings=True),
    "status": Command("list the running instances", "", takes(JSON), reports_settings=True),
    "stop": Command("stop an instance", "[PID|LABEL]", takes(NOW, JSON)),
    "init": Command(
        "write commented settings and a sample tool",
        "",
        takes(
            Option("--workspace", help="write settings for this directory instead"),
            Option(
                "--read-commands",
                choices=("allow", "ask"),
                help="run read-only commands without approval, or ask",
            ),
            JSON,
        ),
        is_local=True,
    ),
    "demo": Command(
        "show a scripted agent behind the gate",
        "",
        takes(Option("--yes", help="allow the edit without asking")),
        "The demo shows a refusal, an approval, a sandboxed command, undo and the audit log. Only\n"
        "the model is scripted. Your files and settings are not used.",
        is_local=True,
    ),
    "tools": Command(
        "list tools, or describe the named ones",
        "[NAME ...]",
        _tools,
        "A description has the tool's purpose, parameters, source and a sample call.",
    ),
    "call": Command(
        "run one tool once",
        "NAME [key=value ...]",
        _call,
        KEY_VALUE_HELP,
        is_verbose_itself=True,
        reports_settings=True,
        completes=TOOL_NAMES,
    ),
    "preview": Command(
        "show a command's changes before applying them",
        "-- COMMAND ...",
        _preview,
        "The command runs without network over an overlay of the workspace. A single word after\n"
        "-- is a command line. If there is no terminal, only --apply applies the changes.",
    ),
    "undo": Command(
        "restore files to their state before a call",
        "[CALL_ID]",
        _undo,
        "If no call is named, the command lists the last calls that changed files.",
    ),
    "diff": Command(
        "show the files that a call changed",
        "CALL_ID",
        takes(JSON),
        "Secrets are replaced by [REDACTED]. callgate undo lists the calls that changed files.",
    ),
    "checkout": Command(
        "write the workspace as it was after a call",
        "CALL_ID DIR",
        _checkout,
        "DIR must be new or empty, and outside the workspace. The workspace is not changed.",
    ),
    "policy explain": Command(
        "explain the decision about a call",
        "TOOL [key=value ...]",
        _explain,
        f"{KEY_VALUE_HELP}\n\nThe exit code is 0 for every decision.",
        completes=TOOL_NAMES,
    ),
    "policy export": Command("print the saved rules as TOML", "", takes(), is_local=True),
    "policy registries": Command(
        "print rules that allow your package registries",
        "",
        takes(),
        "The rules let commands that only install packages connect to the registries in your\n"
        "configuration and this machine's (npm, pip, cargo). policy import saves them.",
        is_local=True,
    ),
    "policy import": Command(
        "add the rules of a file to yours",
        "FILE",
        takes(
            Option("--replace", help="if homes share a store: remove rules that FILE lacks"),
            JSON,
        ),
        "FILE has [[rules]], like rules.toml and the output of policy export. Rules that are\n"
        "already saved are skipped.",
        is_local=True,
    ),
    "trust": Command(
        "let a directory narrow your settings",
        "[DIR]",
        takes(
            Option("--list", help="print the trusted directories"),
            Option("--remove", help="revoke the trust"),
            JSON,
        ),
        is_local=True,
    ),
    "confirmations": Command("list the calls that wait for approval", "", takes(OF_SESSION, JSON)),
    "confirmations list": Command(
        "list the calls that wait for approval", "", takes(OF_SESSION, JSON)
    ),
    "confirmations allow": Command("approve a waiting call", "ID", _answer, _SCOPES),
    "confirmations deny": Command("deny a waiting call", "ID", _answer, _SCOPES),
    "watch": Command(
        "show every call of every client live",
        "",
        takes(
            Option("--session", metavar="ID", help="only calls of this session"),
            Option("--tool", metavar="NAME", help="only calls of this tool"),
            Option("--errors", help="only calls that fail or are refused"),
            Option("--answer", help="ask for approval in this terminal"),
            Option("--json", help="the events, one JSON object per line"),
        ),
    ),
    "audit tail": Command("show the last recorded calls", "", _tail),
    "audit search": Command("search the recorded calls", "", _search),
    "audit verify": Command(
        "verify the audit log against the store",
        "",
        _verify,
    ),
    "events": Command("show the events of sessions", "", _events),
    "sessions list": Command("list the sessions of this directory, newest first", "", _list),
    "sessions show": Command("show a session", "ID", takes(JSON), IDS),
    "sessions export": Command("print a session as Markdown or JSON", "ID", _export, IDS),
    "sessions fork": Command(
        "copy a session",
        "ID",
        takes(
            Option("--turn", metavar="T", help="the last turn to copy, by id or number"),
            Option("--title", metavar="TEXT", help="default: title of the original"),
            JSON,
        ),
        IDS,
    ),
    "sessions rename": Command("give a session a title", "ID TITLE", takes(JSON), IDS),
    "sessions delete": Command("delete sessions permanently", "ID ...", takes(YES, JSON), IDS),
    "prune": Command("delete records past their retention time", "", _prune, _PRUNED_RECORDS),
    "store status": Command("show the store and its state", "", takes(JSON)),
    "store move": Command("move all sessions to another store", "", _move, _MOVED_STORE),
    "doctor": Command(
        "check the installation",
        "",
        takes(Option("--sandbox", help="show the files that sandboxed commands can see"), JSON),
        "The first lines are a summary; -v lists every check. The exit code is 0 if everything\n"
        "works, and 1 if a check failed.",
        reports_settings=True,
    ),
}

COMMANDS = deferred(_DECLARED, _module)
