"""`callgate chat` and `callgate run`: a model works for a person, or for a script.

    chat    the conversation at a terminal (`screen`), with the calls as lines (`cards`)
    run     one prompt, for scripts

The runtime has an event loop in a separate thread (`BackgroundLoop`); the main thread reads the
keyboard. `slash_commands` are the commands that a user types at the prompt.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

from callgate.cli import options
from callgate.cli.command import (
    HERE,
    NAMES,
    SKILL_NAMES,
    WORKSPACE_AND_MODE,
    Command,
    add,
    deferred,
    positive,
    takes,
)
from callgate.cli.options import JSON, NO_INPUT, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from callgate.cli.parsers import Parser

_OUTPUTS = ("text", "json", "stream-json")
_ENDS = """\
Exits with 0 if the model finished, 1 if it did not answer, 3 if it declined, a limit was reached,
or a call was refused and not made up for, 130 if Ctrl-C stopped it. A later call of the same tool
with the same arguments or path makes up for a refusal if it succeeds. The conversation is stored:
--continue continues it."""


def _model_options(parser: Parser) -> None:
    parser.add_argument("--model", metavar="NAME", help="a model of the settings, or KIND/MODEL")
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
        help="continue the newest conversation of this directory",
    )
    before.add_argument("--resume", metavar="ID", help="continue this session")
    parser.add_argument(
        "--allow",
        metavar="TOOL",
        action="append",
        help="approve the calls of this tool; repeatable",
    )


def _chat(parser: Parser) -> None:
    _model_options(parser)
    parser.add_argument(
        "--plain", action="store_true", help="plain text, without colours and cursor movement"
    )


def _run(parser: Parser) -> None:
    _model_options(parser)
    parser.add_argument(
        "--output-format",
        choices=_OUTPUTS,
        default="text",
        help="the model's text; the result as JSON; or one event per line, then the result",
    )
    add(parser, Option("--json", help="the same as stream-json"), NO_INPUT)
    parser.add_argument(
        "--max-turns", metavar="N", type=positive, help="limit the requests to the model"
    )
    parser.add_argument(
        "--max-tokens", metavar="N", type=positive, help="limit the tokens of all requests"
    )
    parser.add_argument(
        "--time-limit", metavar="S", type=options.seconds, help="stop after S seconds"
    )


def _parse(parser: Parser) -> None:
    add(parser, Option("--strict", help="accept only the exact format"), JSON)


def _module(name: str) -> ModuleType:
    module: ModuleType
    match name.split():
        case ["chat"]:
            from callgate.features.chat.commands import chat as module  # lazy: when it runs
        case ["keys", _]:
            from callgate.features.chat.commands import keys as module  # lazy: when it runs
        case ["parse"]:
            from callgate.features.chat.commands import run as module  # lazy: when it runs
        case ["run"]:
            from callgate.features.chat.commands import run as module  # lazy: when it runs
        case ["skills", _]:
            from callgate.features.chat.commands import skills as module  # lazy: when it runs
        case _:
            raise ValueError(name)
    return module


_DECLARED = {
    "chat": Command(
        "talk to a model that uses the tools",
        "[PROMPT]",
        _chat,
        "Ctrl-C stops the model; at the prompt it ends the chat. /help lists the commands.",
        reports_settings=True,
    ),
    "run": Command(
        "give a model one task, for scripts",
        "PROMPT|-",
        _run,
        "Only the model's text goes to stdout. If stdin is not a terminal, it is added to the\n"
        "prompt. If no approver is available, calls that need approval are refused.\n\n" + _ENDS,
        reports_settings=True,
    ),
    "parse": Command(
        "show the tool calls in a model's text",
        "FILE|-",
        _parse,
        "Exits with 0 if there are calls or the list of calls is empty, with 2 if no call could\n"
        "be parsed.",
        is_local=True,
    ),
    "skills list": Command(
        "list the skills",
        "",
        takes(NAMES, *HERE),
        "/NAME in a chat, a run or an editor tells the model to follow a skill.",
        is_local=True,
    ),
    "skills show": Command(
        "show a skill", "NAME", takes(*HERE), is_local=True, completes=SKILL_NAMES
    ),
    "skills new": Command(
        "create a sample skill",
        "NAME",
        takes(Option("--workspace", help="create it in this directory, for all its users"), JSON),
        is_local=True,
    ),
    "keys set": Command(
        "store the key of a model or provider",
        "NAME",
        takes(JSON),
        "NAME is the name of a table [models.NAME], or anthropic, or openai. The key is typed at\n"
        "a hidden prompt or read from stdin. It is never an argument.",
        is_local=True,
    ),
    "keys list": Command(
        "list models and where their keys come from", "", takes(JSON), is_local=True
    ),
    "keys delete": Command("delete a stored key", "NAME", takes(JSON), is_local=True),
    "keys status": Command(
        "show which keys and logins are encrypted",
        "",
        takes(JSON),
        "Shows names and key ids, and nothing secret. Exits with 1 if a secret cannot be read.",
        is_local=True,
    ),
    "keys encrypt": Command(
        "encrypt all keys and logins now",
        "",
        takes(JSON),
        "Otherwise each file is encrypted when it is next written. If servers share a store, the\n"
        "secrets of this home are copied to it, unless it has them. Can be repeated at any time.",
        is_local=True,
    ),
    "keys rotate": Command(
        "encrypt all keys and logins with another key",
        "",
        takes(
            Option("--new-key-env", metavar="NAME", help="the variable that holds the new key"),
            JSON,
        ),
        "NAME starts with CALLGATE_SECRETS_. Afterwards, configure the new key: the encrypted\n"
        "secrets need it. Can be repeated at any time.",
        is_local=True,
    ),
}

COMMANDS = deferred(_DECLARED, _module)
