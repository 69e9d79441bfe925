"""Commands about what may run: what the policy says, and what a person answers."""

from __future__ import annotations

from collections.abc import Mapping

from callgate.cli.families.command import (
    HERE,
    IDS,
    KEY_VALUE_HELP,
    OF_SESSION,
    WHEN,
    WORKSPACE_AND_MODE,
    Command,
    Parser,
    add,
    positive,
    takes,
)
from callgate.cli.options import ARGS, JSON, Option

HEADING = "decide what may run"

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
_ANSWERS = ("once", "destination", "session", "always")
_SCOPES = f"""\
once covers this call alone, session the same tool for the rest of the session, and always
saves a rule. At a terminal all that would be allowed is shown first, unless --sha256 says
that it was seen. {IDS}"""


def _explain(parser: Parser) -> None:
    add(parser, ARGS, *WORKSPACE_AND_MODE)
    parser.add_argument("--caller", choices=CALLERS, default="cli", help="who calls; default cli")
    parser.add_argument(
        "--by-agent", action="store_true", help="an agent with a hook would run it itself"
    )
    parser.add_argument("--said", metavar="TEXT", help="as if the user had written this before")
    parser.add_argument(
        "--read",
        action="append",
        choices=("private", "untrusted"),
        default=[],
        help="as if the session had read such content; may be repeated",
    )
    add(
        parser,
        Option("--session", metavar="ID", help="in this session: its mode and budgets"),
        JSON,
    )


def _test(parser: Parser) -> None:
    parser.add_argument("--since", metavar="WHEN", default="7d", help=f"{WHEN}; default 7d")
    parser.add_argument("--limit", metavar="N", type=positive, help="only the last N of them")
    add(parser, Option("--check", help="exit with 1 if any decision is loosened"), *HERE)


def _suggest(parser: Parser) -> None:
    parser.add_argument("--since", metavar="WHEN", default="30d", help=f"{WHEN}; default 30d")
    parser.add_argument("--limit", metavar="N", type=positive, help="only the last N calls")
    parser.add_argument("--tool", metavar="NAME", help="of this tool only")
    parser.add_argument(
        "--least", metavar="N", type=positive, default=3, help="agreed to so often; default 3"
    )
    add(parser, OF_SESSION, Option("--write", help="save the rules that are suggested"), *HERE)


def _answer(parser: Parser) -> None:
    parser.add_argument("--scope", choices=_ANSWERS, default="once", help="default once")
    parser.add_argument("--reason", metavar="TEXT", help="told to the agent with a no")
    parser.add_argument(
        "--sha256", metavar="HASH", help="of the arguments, as the list shows it: refuse others"
    )
    add(parser, JSON)


COMMANDS: Mapping[str, Command] = {
    "policy explain": Command(
        "say what would be decided about a call, and by which rule",
        "TOOL [key=value ...]",
        _explain,
        f"{KEY_VALUE_HELP}\n\nExits with 0 whatever the decision is.",
    ),
    "policy test": Command(
        "say which calls on record other settings would decide otherwise",
        "FILE|-",
        _test,
        "FILE is checked and read as settings.toml would be. Nothing is run: each call is judged\n"
        "by what its record says, and paths by their text, without a look at the disk.",
    ),
    "policy suggest": Command(
        "print narrow rules for what was allowed again and again",
        "",
        _suggest,
        "Looks at calls in the workspace and below it that a person allowed or that ran, and that\n"
        "would be asked about today. Each rule is as narrow as what was seen: these words of a\n"
        "command, this file, this recipient. One that would allow a call that was denied is not\n"
        "suggested. Nothing is run, and nothing is saved without --write.",
    ),
    "policy export": Command("print the saved rules, as rules.toml has them", "", takes()),
    "policy import": Command(
        "save the rules of a file, beside those that there are",
        "FILE",
        takes(
            Option("--replace", help="where homes share a store: remove those not in the file"),
            JSON,
        ),
        "FILE has [[rules]], as rules.toml and what policy export prints. None is saved twice.",
    ),
    "trust": Command(
        "let a directory bring settings of its own, which may only narrow",
        "[DIR]",
        takes(
            Option("--list", help="print the trusted directories"),
            Option("--remove", help="take the trust back"),
            JSON,
        ),
    ),
    "confirmations": Command(
        "list the questions that wait for an answer", "", takes(OF_SESSION, JSON)
    ),
    "confirmations list": Command("the same", "", takes(OF_SESSION, JSON)),
    "confirmations allow": Command("let a call run that waits for it", "ID", _answer, _SCOPES),
    "confirmations deny": Command("refuse a call that waits for an answer", "ID", _answer, _SCOPES),
}
