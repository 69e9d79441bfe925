"""`Command`, its `Parser`, and the options and help texts that several commands share."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from callgate.cli.errors import CliError
from callgate.cli.options import JSON, MODE, WORKSPACE, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn, Protocol

    class ArgumentGroup(Protocol):
        """A parser, or a group of its options."""

        def add_argument(self, *flags: str, **settings: Any) -> Any: ...

    class Family(Protocol):
        """A module of commands that are for one thing."""

        HEADING: str
        COMMANDS: Mapping[str, Command]


JSON_LINES = Option("--json", help="one JSON object a line")
NAMES = Option("--names", help="names only, one a line")
FOLLOW = Option("-f", "--follow", help="go on with new ones")
YES = Option("--yes", help="do not ask")
OF_SESSION = Option("--session", metavar="ID", help="of this session only")

WORKSPACE_AND_MODE = (WORKSPACE, MODE)
HERE = (WORKSPACE, JSON)
APPROVAL = (YES, *HERE)

WHEN = "2026-01-31, 2026-01-31T12:00, or 90s, 15m, 2h, 7d ago"
KEY_VALUE_HELP = """\
key=value is read by the tool's schema: limit=20 is a number where the schema says number and
a text where it says text; true and false are booleans; a list is a repeated key or JSON; an
object is JSON. Everything behind -- is taken as it is, never as an option."""
IDS = """\
The beginning or the end of an id is enough, if no other begins or ends like it."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in our words and with our exit code."""

    def error(self, message: str) -> NoReturn:
        raise CliError(message, hint=f"See {self.prog} --help.")


class Command(NamedTuple):
    summary: str
    usage: str
    """What follows the command's name."""
    describe: Callable[[Parser], None]
    """Adds the options to its parser."""
    more: str = ""
    run: Callable[[argparse.Namespace], int] | None = None
    """None for a command of ours: `command_modules` has its function."""


def add(parser: ArgumentGroup, *added: Option) -> None:
    for each in added:
        parser.add_argument(*each.flags, **each.for_argparse)


def takes(*added: Option) -> Callable[[Parser], None]:
    """Describes a command that takes these options, and no other."""
    return lambda parser: add(parser, *added)


def count(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 31:
        raise ValueError
    return number


def positive(text: str) -> int:
    number = count(text)
    if not number:
        raise ValueError
    return number


positive.__name__ = "number"  # argparse puts it into words


def bounds(parser: ArgumentGroup, **network: Any) -> None:
    """What an MCP server may do. `network` says which values that option takes."""
    parser.add_argument(
        "--network", help="default none; all for programs that fetch it first", **network
    )
    parser.add_argument("--profile", choices=("workspace", "open"), help="default workspace")
    parser.add_argument(
        "--effect",
        choices=("none", "read", "write", "network", "execute"),
        help="the most that its tools can do; default execute",
    )
    parser.add_argument(
        "--trusted", action="store_true", help="believe what it says of its tools' effects"
    )
