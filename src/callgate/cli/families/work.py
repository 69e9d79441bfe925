"""Commands that work with tools: yourself, or a model for you."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli import options
from callgate.cli.families.command import (
    KEY_VALUE_HELP,
    NAMES,
    WORKSPACE_AND_MODE,
    YES,
    Command,
    Parser,
    add,
    positive,
)
from callgate.cli.options import JSON, MODE, NO_INPUT, Option

HEADING = "work with tools"

_OUTPUTS = ("text", "json", "stream-json")
_ENDS = """\
Exits with 0 if the model came to its end, 1 if it did not answer, 3 if it declined or a limit
was reached, 130 if Ctrl-C stopped it. What was said is kept: --continue goes on."""


def _model_options(parser: Parser) -> None:
    parser.add_argument("--model", metavar="NAME", help="one of the settings, or KIND/MODEL")
    add(parser, *WORKSPACE_AND_MODE)
    parser.add_argument(
        "--pool",
        metavar="NAME[/WORKSPACE]",
        help="work on remote workers, through a running server",
    )
    before = parser.add_mutually_exclusive_group()
    before.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="go on with the newest conversation here",
    )
    before.add_argument("--resume", metavar="ID", help="go on with this session")
    parser.add_argument(
        "--allow",
        metavar="TOOL",
        action="append",
        help="say yes to what is asked about it; repeatable",
    )


def _chat(parser: Parser) -> None:
    _model_options(parser)
    parser.add_argument(
        "--plain", action="store_true", help="no colours, and the cursor stays where it is"
    )


def _run(parser: Parser) -> None:
    _model_options(parser)
    parser.add_argument(
        "--output-format",
        choices=_OUTPUTS,
        default="text",
        help="what the model says; its end as JSON; or events, one a line, then the end",
    )
    add(parser, Option("--json", help="the same as stream-json"), NO_INPUT)
    parser.add_argument("--max-turns", metavar="N", type=positive, help="requests to the model")
    parser.add_argument("--max-tokens", metavar="N", type=positive, help="of all requests")
    parser.add_argument(
        "--time-limit", metavar="S", type=options.seconds, help="stop after S seconds"
    )


def _tools(parser: Parser) -> None:
    hidden = Option("--all", help="also those not visible, and packages not enabled, and why")
    add(parser, hidden, NAMES, JSON, *WORKSPACE_AND_MODE)
    add(parser.add_mutually_exclusive_group(), *options.TARGETS)


def _call(parser: Parser) -> None:
    add(parser, *options.CALL)
    add(parser.add_mutually_exclusive_group(), *options.TARGETS)


def _preview(parser: Parser) -> None:
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--apply", action="store_true", help="make the changes without asking")
    chosen.add_argument("--discard", action="store_true", help="only show them")
    add(parser, *WORKSPACE_AND_MODE, options.TIMEOUT)
    parser.add_argument("--yes", action="store_true", help="allow what the policy would ask about")
    add(parser, NO_INPUT, JSON)


def _undo(parser: Parser) -> None:
    parser.add_argument("--last", action="store_true", help="the last call that changed files here")
    parser.add_argument("--session", metavar="S", help="undo in this session, with --to")
    parser.add_argument("--to", metavar="TURN", help="what was done after the end of this turn")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    parser.add_argument("--workspace", metavar="DIR", help="default: that of the changes")
    add(parser, MODE, YES, NO_INPUT, JSON)


def _parse(parser: Parser) -> None:
    add(parser, Option("--strict", help="take the format to the letter"), JSON)


COMMANDS: Mapping[str, Command] = {
    "chat": Command(
        "talk to a model that works with the tools",
        "[PROMPT]",
        _chat,
        "Ctrl-C stops the model, and leaves at the prompt. /help says what else there is.",
    ),
    "run": Command(
        "let a model do one thing, for scripts",
        "PROMPT|-",
        _run,
        "Only what the model says goes to stdout. Stdin, where it is no terminal, is added to\n"
        "the prompt. Where nobody can be asked, what must be asked is refused.\n\n" + _ENDS,
    ),
    "tools": Command(
        "list the tools, or say all about some",
        "[NAME ...]",
        _tools,
        "With a NAME: what it does, its parameters, a call of it, and where it comes from.",
    ),
    "call": Command("run one tool once", "NAME [key=value ...]", _call, KEY_VALUE_HELP),
    "preview": Command(
        "show what a command would change, then apply it or not",
        "-- COMMAND ...",
        _preview,
        "The command runs without network over an overlay of the workspace. A single word behind\n"
        "-- is a command line. Without a terminal nothing is applied unless --apply is given.",
    ),
    "undo": Command(
        "put files back to what they were before a call",
        "[CALL_ID]",
        _undo,
        "Without a call it lists the last calls that changed files; --last undoes the last one\n"
        "of this directory.",
    ),
    "parse": Command(
        "show the tool calls that a model wrote as text; run none",
        "FILE|-",
        _parse,
        "Exits with 0 if there is something to run or nothing to do, with 2 if nothing could be\n"
        "read.",
    ),
}
