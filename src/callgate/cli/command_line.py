"""Which commands there are, and how a command line is read. No command is loaded here.

Options end at the first `--`. Everything behind it is a word, whatever it looks like, so a
name or a value that came from elsewhere can never become an option (`read`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import cast

from callgate import shipped
from callgate.cli.errors import CliError, described_exit_codes
from callgate.cli.families.command import Parser, add
from callgate.cli.options import DEBUG, VERBOSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from callgate.cli.families.command import Command, Family

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "work": ("chat", "run", "tools", "call", "preview", "undo", "parse"),
    "permissions": ("policy", "trust", "confirmations"),
    "records": ("watch", "audit", "events", "sessions", "prune", "store"),
    "setup": ("init", "doctor", "keys", "auth", "notify", "completion", "demo"),
    "sources": ("host", "hosts", "mcp"),
    "knowledge": ("skills", "memory"),
    "instances": (
        "serve",
        "status",
        "servers",
        "stop",
        "dashboard",
        "acp",
        "acp-proxy",
        "hook",
        "sandbox",
        "mcp",
        "worker",
        "workers",
    ),
}
"""With the first words of their commands: a command waits for its own family alone. Those that
`shipped` names too are described by a package."""

_of_packages: dict[str, Mapping[str, Command]] = {}
"""Commands of packages of others that were looked for, by their first word."""

VERBOSE_THEMSELVES = ("call", "acp")
"""Commands whose own -v says more than who answered."""
_LOCAL = frozenset(
    ("init", "keys", "auth", "completion", "demo", "parse", "trust", "host", "skills", "memory",
     "worker", "hook", "sandbox", "policy export", "policy import", "notify")
)  # fmt: skip
"""Commands, or first words of several."""
_HELP = ("-h", "--help")
_ENVIRONMENT = """\
environment:
  CALLGATE_HOME   where settings and records lie; default ~/.callgate
  CALLGATE_LOG    error, warning, info, debug or trace, on stderr
  NO_COLOR, FORCE_COLOR"""


def every() -> dict[str, Command]:
    """All commands by name, in the order in which the help shows them."""
    return {name: each for family in FAMILIES for name, each in of_family(family).items()}


def of_family(family: str) -> dict[str, Command]:
    """Those that the help shows under one heading."""
    found = dict(_loaded(family).COMMANDS)
    for word in FAMILIES[family]:
        if word in shipped.COMMANDS:
            found |= _shipped(word)
    return found


def beginning(first: str) -> dict[str, Command]:
    """Those with this first word: a command, a group, or both; none where there is neither."""
    if first in shipped.COMMANDS:
        return dict(_shipped(first))
    families = [family for family, words in FAMILIES.items() if first in words]
    if not families:
        return dict(_of_package(first))
    return {
        name: each
        for family in families
        for name, each in _loaded(family).COMMANDS.items()
        if name.split()[0] == first
    }


def is_local(name: str) -> bool:
    """Whether a command has to do with no instance, no runtime and none of their records."""
    first = name.split()[0]
    return name in _LOCAL or first in _LOCAL or first in _of_packages


def parser_of(name: str) -> Parser:
    command = beginning(name.split()[0])[name]
    usage = " ".join(filter(None, [f"callgate {name}", "[options]", command.usage]))
    parser = Parser(
        prog=f"callgate {name}",
        usage=usage,
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog=command.more or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    command.describe(parser)
    if not is_local(name) and name not in VERBOSE_THEMSELVES:
        add(parser, VERBOSE)
    add(parser, DEBUG)
    return parser


def read(name: str, given: Sequence[str]) -> argparse.Namespace:
    """The options of a command, and its `words`: what stands beside them and behind `--`."""
    end = given.index("--") if "--" in given else len(given)
    chosen = parser_of(name).parse_intermixed_args(list(given[:end]))
    chosen.words += given[end + 1 :]
    return chosen


def split(given: Sequence[str]) -> tuple[str, list[str]]:
    """Take the command's name off the front."""
    first, following = given[0], list(given[1:])
    found = beginning(first)
    if following and f"{first} {following[0]}" in found:
        return f"{first} {following[0]}", following[1:]
    if first in found:
        return first, following
    if found:
        known = [name.split()[1] for name in found]
        if not following or following[0].startswith("-"):
            problem = f"{first} needs one of: {', '.join(known)}"
            raise CliError(problem, hint=f"See callgate {first} --help.")
        meant = _meant(following[0], known, f"callgate {first} ", f"callgate {first} --help")
        raise CliError(f"there is no command '{first} {following[0]}'", hint=meant)
    if first.startswith("-"):
        raise CliError(f"there is no option {first!r}", hint="See callgate --help.")
    known = [word for words in FAMILIES.values() for word in words]
    meant = _meant(first, known, "callgate ", "callgate help")
    raise CliError(f"there is no command {first!r}", hint=meant)


def _meant(word: str, known: Sequence[str], before: str, help: str) -> str:
    from callgate.core.text.spelling import nearest  # lazy: only for a word that is misspelt  # noqa: PLC0415

    near = nearest(word, known)
    return f"See {help}." if near is None else f"Did you mean {before}{near}? See {help}."


def help_text(given: Sequence[str]) -> str | None:
    """What helps, where no command is named: on all of them, or on a group. Else None."""
    if given[:1] == ["help"]:
        return _help_on(given[1:])
    if not given or given[0] in _HELP:
        return _help_on_all()
    first, found = given[0], beginning(given[0])
    if found and first not in found and given[1:2] and given[1] in _HELP:
        return _help_on_group(first, found)
    return None


def _help_on(words: Sequence[str]) -> str:
    """`callgate help WORD ...`: the same as `--help` behind the words."""
    text = help_text([*words, "--help"])
    return parser_of(split(words)[0]).format_help().rstrip() if text is None else text


def _help_on_all() -> str:
    paragraphs = [
        "usage: callgate [--version] [--help] [--debug] COMMAND ...",
        "Every tool call of an AI agent through one guarded door.",
        *(_listed(_loaded(family).HEADING, of_family(family)) for family in FAMILIES),
        described_exit_codes(),
        _ENVIRONMENT,
        "callgate help COMMAND says more.",
    ]
    return "\n\n".join(paragraphs)


def _help_on_group(first: str, found: Mapping[str, Command]) -> str:
    paragraphs = [
        f"usage: callgate {first} COMMAND ...",
        _listed("commands", found),
        f"callgate {first} COMMAND --help says more.",
    ]
    return "\n\n".join(paragraphs)


def _listed(heading: str, found: Mapping[str, Command]) -> str:
    rows = [f"  {name:<21}{command.summary}" for name, command in found.items()]
    return "\n".join([f"{heading}:", *rows])


def _loaded(family: str) -> Family:
    module: ModuleType
    match family:
        case "work":
            from callgate.cli.families import work as module  # lazy: this family alone  # noqa: PLC0415
        case "permissions":
            from callgate.cli.families import permissions as module  # lazy: this family alone  # noqa: PLC0415
        case "records":
            from callgate.cli.families import records as module  # lazy: this family alone  # noqa: PLC0415
        case "setup":
            from callgate.cli.families import setup as module  # lazy: this family alone  # noqa: PLC0415
        case "sources":
            from callgate.cli.families import sources as module  # lazy: this family alone  # noqa: PLC0415
        case "knowledge":
            from callgate.cli.families import knowledge as module  # lazy: this family alone  # noqa: PLC0415
        case "instances":
            from callgate.cli.families import instances as module  # lazy: this family alone  # noqa: PLC0415
        case _:
            raise ValueError(family)
    return cast("Family", module)


def _shipped(first: str) -> Mapping[str, Command]:
    module, _, table = shipped.COMMANDS[first].partition(":")
    __import__(module)
    found: Mapping[str, Command] = getattr(sys.modules[module], table)
    return found


def _of_package(first: str) -> Mapping[str, Command]:
    if not first.replace("-", "_").isidentifier() or first.startswith("-"):
        return {}
    if first not in _of_packages:
        from callgate.cli.pack_commands import commands_of  # lazy: it reads all metadata  # noqa: PLC0415

        _of_packages[first] = commands_of(first)
    return _of_packages[first]
