"""The list of commands, their help and their parsers. No implementation is imported here.

Options end at the first `--`. All later words are positional, so an untrusted name or value after
it never becomes an option (`read`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from callgate.cli.command import Command, add
from callgate.cli.errors import CliError, described_exit_codes
from callgate.cli.options import DEBUG, VERBOSE
from callgate.core.errors import ToolErrorClass
from callgate.feature import FEATURES, PACK_COMMANDS, Listed, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from callgate.cli.parsers import Parser

HEADINGS: Mapping[str, tuple[str, ...]] = {
    "work with tools": (
        "chat",
        "run",
        "tools",
        "call",
        "preview",
        "undo",
        "diff",
        "checkout",
        "parse",
    ),
    "decide what may run": (
        "policy explain",
        "policy test",
        "policy suggest",
        "policy",
        "trust",
        "confirmations",
    ),
    "see what happened": ("watch", "audit", "events", "sessions", "prune", "store"),
    "set up": ("init", "doctor", "keys", "notify", "completion", "demo", "auth"),
    "add tools": ("host", "hosts", "mcp"),
    "keep skills and memory": ("skills", "memory"),
    "serve editors and other programs": (
        "serve",
        "status",
        "servers",
        "stop",
        "dashboard",
        "acp",
        "acp-proxy",
        "protect",
        "hook",
        "sandbox",
        "mcp serve",
        "mcp wrap",
        "worker",
        "workers",
    ),
}
"""The order of the help: names of commands, and first words for the rest of a group."""

SHELLS = ("bash", "zsh", "fish")

FIRST_WEEK: Mapping[str, tuple[str, ...]] = {
    "start": ("demo", "protect", "mcp add", "chat"),
    "decide": ("confirmations", "policy explain"),
    "look back": ("dashboard", "audit tail", "undo"),
    "check": ("doctor",),
}
"""The commands of the short help, by topic."""

_ORDER = {name: rank for rank, name in enumerate(sum(HEADINGS.values(), ()))}
_FIRST_WORDS = dict.fromkeys(name.split()[0] for name in _ORDER)

_of_packages: dict[str, Mapping[str, Command]] = {}
"""Cache: commands of third-party packages, by their first word."""

_HELP = ("-h", "--help")
_ALL = "--all"
_USAGE = "usage: callgate [--version] [--help [--all]] [--debug] COMMAND ..."
_PURPOSE = "The permission layer for the tool calls of AI agents: every call is checked, approved\
 where needed, and recorded."
_MORE = {
    "callgate help --all": "list every command, exit code and environment variable",
    "callgate help COMMAND": "describe one command and its options",
}
_ENVIRONMENT = """\
environment:
  CALLGATE_HOME   directory of settings and records; default ~/.callgate
  CALLGATE_LOG    error, warning, info, debug or trace, on stderr
  NO_COLOR, FORCE_COLOR"""
_NAME_COLUMNS = 19
_USUAL_COLUMNS = 96


def every() -> dict[str, Command]:
    """Return all commands by name, in the order of the help."""
    found = dict(_of_kernel())
    for listed in FEATURES:
        found |= _of_feature(listed.name)
    for first in PACK_COMMANDS:
        found |= _shipped(first)
    return _in_order(found)


def under(heading: str) -> dict[str, Command]:
    """Return the commands under one heading of the help."""
    ranks = {_ORDER[each] for each in HEADINGS[heading]}
    return {name: each for name, each in every().items() if _rank(name) in ranks}


def beginning(first: str) -> dict[str, Command]:
    """Return the commands with this first word: a command, a group, both or none."""
    if first in PACK_COMMANDS:
        return dict(_shipped(first))
    if first not in _FIRST_WORDS:
        return dict(_of_package(first))
    found = dict(_of_kernel())
    for listed in _features_with(first):
        found |= _of_feature(listed.name)
    return _in_order({name: each for name, each in found.items() if name.split()[0] == first})


def _in_order(found: Mapping[str, Command]) -> dict[str, Command]:
    return {name: found[name] for name in sorted(found, key=_rank)}


def _rank(name: str) -> int:
    rank = _ORDER.get(name)
    return _ORDER[name.split()[0]] if rank is None else rank


def parser_of(name: str) -> Parser:
    from callgate.cli import parsers  # lazy: not for help on several commands  # noqa: PLC0415

    command = beginning(name.split()[0])[name]
    usage = " ".join(filter(None, [f"callgate {name}", "[options]", command.usage]))
    parser = parsers.Parser(
        prog=f"callgate {name}",
        usage=usage,
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog=command.more or None,
        formatter_class=parsers.HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", help=parsers.SUPPRESS)
    command.describe(parser)
    if not command.is_local and not command.is_verbose_itself:
        add(parser, VERBOSE)
    add(parser, DEBUG)
    return parser


def read(name: str, given: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command, and the positional `words` before and after `--`."""
    end = given.index("--") if "--" in given else len(given)
    chosen = parser_of(name).parse_intermixed_args(list(given[:end]))
    chosen.words += given[end + 1 :]
    return chosen


def split(given: Sequence[str]) -> tuple[str, list[str]]:
    """Take the command's name off the front."""
    first, following = given[0], list(given[1:])
    _ensure_installed(given)
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
    known = [*_FIRST_WORDS]
    meant = _meant(first, known, "callgate ", "callgate help --all")
    raise CliError(f"there is no command {first!r}", hint=meant)


def _meant(word: str, known: Sequence[str], before: str, help: str) -> str:
    from callgate.core.texts import nearest  # lazy: only for a word that is misspelt  # noqa: PLC0415

    near = nearest(word, known)
    return f"See {help}." if near is None else f"Did you mean {before}{near}? See {help}."


def help_text(given: Sequence[str], room: int | None = None) -> str | None:
    """Return the help on all commands or on a group; None if `given` names one command.

    `room`: the columns of the terminal; None: do not wrap.
    """
    if given[:1] == ["help"]:
        return _help_on(given[1:], room)
    if not given or given[0] in _HELP:
        return _help_on_all(room) if _ALL in given[1:] else _short_help(room)
    first, found = given[0], beginning(given[0])
    if found and first not in found and given[1:2] and given[1] in _HELP:
        return _help_on_group(first, found, room)
    return None


def _help_on(words: Sequence[str], room: int | None) -> str:
    """Return the text of `callgate help WORD ...`, which equals `callgate WORD ... --help`."""
    if _ALL in words[:1]:
        return _help_on_all(room)
    text = help_text([*words, "--help"], room)
    return parser_of(split(words)[0]).format_help().rstrip() if text is None else text


def _short_help(room: int | None) -> str:
    """Return the help on the commands of `FIRST_WEEK`."""
    known = {
        name: each
        for first in {name.split()[0] for names in FIRST_WEEK.values() for name in names}
        for name, each in beginning(first).items()
    }
    topics = (
        _listed(topic, {name: known[name] for name in names if name in known}, room)
        for topic, names in FIRST_WEEK.items()
    )
    more = "\n".join(_rows(_MORE, room))
    return "\n\n".join([_filled(_USAGE, room), _filled(_PURPOSE, room), *topics, more])


def _help_on_all(room: int | None) -> str:
    headings = (_listed(each, under(each), room) for each in HEADINGS)
    paragraphs = [
        _filled(_USAGE, room),
        _filled(_PURPOSE, room),
        *headings,
        _filled(described_exit_codes(), room),
        _filled(_ENVIRONMENT, room),
        "callgate help COMMAND describes one command.",
    ]
    return "\n\n".join(paragraphs)


def _help_on_group(first: str, found: Mapping[str, Command], room: int | None) -> str:
    paragraphs = [
        f"usage: callgate {first} COMMAND ...",
        _listed("commands", found, room),
        f"callgate {first} COMMAND --help describes one command.",
    ]
    return "\n\n".join(paragraphs)


def _listed(heading: str, found: Mapping[str, Command], room: int | None) -> str:
    rows = {name: command.summary for name, command in found.items()}
    lines = _rows(rows, None if room is None else room - 2)
    return "\n".join([f"{heading}:", *(f"  {line}" for line in lines)])


def _rows(texts: Mapping[str, str], room: int | None) -> Iterator[str]:
    from callgate.cli.ui.tables import Column, list_lines  # lazy: only for help  # noqa: PLC0415
    from callgate.cli.ui.terminal import Paint  # lazy: only for help  # noqa: PLC0415

    headings = (Column("command", least=_NAME_COLUMNS), Column("does"))
    return list_lines(headings, [*texts.items()], room, Paint(False))


def _filled(text: str, room: int | None) -> str:
    from callgate.cli.ui.tables import reflow  # lazy: only for help  # noqa: PLC0415

    return reflow(text, room or _USUAL_COLUMNS)


def _of_kernel() -> Mapping[str, Command]:
    from callgate.cli.commands import COMMANDS as commands  # lazy: not for packages  # noqa: PLC0415
    from callgate.cli.hosts import COMMANDS as hosts  # lazy: the same  # noqa: PLC0415

    return {**commands, **hosts, "completion": _COMPLETION}


def _of_feature(name: str) -> Mapping[str, Command]:
    """Return the commands of a feature; none if it was removed."""
    feature = load(name)
    return {} if feature is None else feature.commands()


def _features_with(first: str) -> list[Listed]:
    return [each for each in FEATURES if first in {name.split()[0] for name in each.commands}]


def _ensure_installed(words: Sequence[str]) -> None:
    """Raise `CliError` for a command of a feature that was removed."""
    names = (words[0], " ".join(words[:2]))
    for listed in _features_with(words[0]):
        if {*names} & {*listed.commands} and load(listed.name) is None:
            raise CliError(
                f"callgate {words[0]} needs the feature {listed.name!r}, which is not installed",
                hint="Install callgate with all its features.",
                error_class=ToolErrorClass.NOT_FOUND,
                reason="feature_not_installed",
            )


def _completion_options(parser: Parser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--install", action="store_true", help="install the script for the shell")
    group.add_argument("--remove", action="store_true", help="undo --install")


def _completion(options: argparse.Namespace) -> int:
    from callgate.cli.completion import Shown, completion  # lazy: when it runs  # noqa: PLC0415

    known = {
        name: Shown(sorted(parser_of(name)._option_string_actions), command.completes)
        for name, command in every().items()
    }
    return completion(options, known, SHELLS)


_COMPLETION = Command(
    "print or install a completion script",
    "|".join(SHELLS),
    _completion_options,
    "--install and --remove default to the shell in $SHELL. They change only files that callgate\n"
    "wrote, and a marked block in .zshrc.",
    _completion,
    is_local=True,
    completes=SHELLS,
)


def _shipped(first: str) -> Mapping[str, Command]:
    module, _, table = PACK_COMMANDS[first].partition(":")
    __import__(module)
    return _local(getattr(sys.modules[module], table))


def _of_package(first: str) -> Mapping[str, Command]:
    if not first.replace("-", "_").isidentifier() or first.startswith("-"):
        return {}
    if first not in _of_packages:
        from callgate.cli.pack_commands import commands_of  # lazy: it reads all metadata  # noqa: PLC0415

        _of_packages[first] = _local(commands_of(first))
    return _of_packages[first]


def _local(commands: Mapping[str, Command]) -> Mapping[str, Command]:
    """Mark the commands as local: commands of packages use no runtime of callgate."""
    return {name: each._replace(is_local=True) for name, each in commands.items()}
