"""`Command`: the declaration of a command, in the package of its implementation.

    COMMANDS = deferred({"sessions list": Command(...), ...}, module)

Also defines the options and help texts that several commands share. Help and completion read all
declarations, so this module imports neither argparse nor an implementation.
"""

from __future__ import annotations

from typing import NamedTuple

from callgate.cli.options import JSON, MODE, WORKSPACE, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, Protocol

    from callgate.cli.parsers import Parser

    class ArgumentGroup(Protocol):
        """A parser, or a group of its options."""

        def add_argument(self, *flags: str, **settings: Any) -> Any: ...


JSON_LINES = Option("--json", help="one JSON object per line")
NAMES = Option("--names", help="names only, one per line")
FOLLOW = Option("-f", "--follow", help="keep running and print new entries")
YES = Option("--yes", help="do not ask")
OF_SESSION = Option("--session", metavar="ID", help="only this session")

WORKSPACE_AND_MODE = (WORKSPACE, MODE)
HERE = (WORKSPACE, JSON)
APPROVAL = (YES, *HERE)

WHEN = "2026-01-31, 2026-01-31T12:00, or 90s, 15m, 2h, 7d ago"
KEY_VALUE_HELP = """\
The tool's schema determines the type of a value: limit=20 is a number or a text; true and
false are booleans; a list is a repeated key or JSON; an object is JSON. Words after -- are
never options."""
IDS = """\
The first or last characters of an id are enough if they match only one id."""
TOOL_NAMES = "tools --names"
SKILL_NAMES = "skills list --names"


class Command(NamedTuple):
    summary: str
    usage: str
    """The words after the command's name."""
    describe: Callable[[Parser], None]
    """Adds the options to the command's parser."""
    more: str = ""
    run: Callable[[Namespace], int] | None = None
    """Runs the command and returns its exit code. `deferred` sets it for callgate's commands."""
    is_local: bool = False
    """The command uses no instance, no runtime and none of their records."""
    is_verbose_itself: bool = False
    """The command declares its own -v, which shows more than the instance that answered."""
    reports_settings: bool = False
    """The command reports a mistake in the settings itself, or does not start with one."""
    completes: str | tuple[str, ...] = ()
    """Next words for shell completion, or the command that prints them."""


class Deferred:
    """The function of a command, whose module is imported when the command runs."""

    def __init__(self, name: str, module: Callable[[str], ModuleType]) -> None:
        self._name = name
        self._module = module

    @property
    def function(self) -> Callable[[Namespace], int]:
        """The module's function with the name of the command's last word."""
        last = self._name.split()[-1].replace("-", "_")
        found: Callable[[Namespace], int] = getattr(self._module(self._name), last)
        return found

    def __call__(self, options: Namespace) -> int:
        return self.function(options)


def deferred(
    commands: Mapping[str, Command], module: Callable[[str], ModuleType]
) -> dict[str, Command]:
    """Return the commands with their functions. `module` imports a command's module by name."""
    return {name: each._replace(run=Deferred(name, module)) for name, each in commands.items()}


def add(parser: ArgumentGroup, *added: Option) -> None:
    for each in added:
        parser.add_argument(*each.flags, **each.for_argparse)


def takes(*added: Option) -> Callable[[Parser], None]:
    """Return the `describe` function of a command that has exactly these options."""
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


positive.__name__ = "number"  # argparse shows it in its error message


def bounds(parser: ArgumentGroup, **network: Any) -> None:
    """Add the options that restrict an MCP server. `network` has the settings of `--network`."""
    parser.add_argument("--network", help="default none; mcp add asks at a terminal", **network)
    parser.add_argument("--profile", choices=("workspace", "open"), help="default workspace")
    parser.add_argument(
        "--effect",
        choices=("none", "read", "write", "network", "execute"),
        help="maximum effect of its tools; default execute",
    )
    parser.add_argument(
        "--trusted", action="store_true", help="trust the effects that it declares for its tools"
    )
