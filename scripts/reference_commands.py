"""Generate the page of all commands from their parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from callgate.cli import command_line as commands
from callgate.cli.errors import described_exit_codes
from callgate.cli.parsers import Parser

_HEAD = """\
# Commands

<!-- Made by `make reference` from the parsers of the commands: do not edit. -->

`callgate COMMAND --help` prints the same. Every command also takes `--help` and `--debug`, which
shows tracebacks. Options end at `--`; what follows is never an option. Pages about the commands:
[calls](../use/call.md), [chat](../use/chat.md), [run](../use/run.md),
[sessions](../use/sessions.md), [policy](../decide/policy.md), [audit](../decide/audit.md),
[instances](../build/socket.md).
"""
_EVERYWHERE = ("--help", "--debug")


def commands_page() -> str:
    parts = [_HEAD, *_contents(), *_sections(), *_ends()]
    return "\n".join(parts)


def _contents() -> Iterator[str]:
    yield "| command | |\n|---|---|"
    for name, command in commands.every().items():
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {command.summary} |"
    yield ""


def _sections() -> Iterator[str]:
    for name, command in commands.every().items():
        parser = commands.parser_of(name)
        yield f"## {name}\n"
        yield f"{command.summary[0].upper()}{command.summary[1:]}.\n"
        yield f"```text\n{parser.usage}\n```\n"
        options = list(_options(parser))
        if options:
            yield "\n".join([*options, ""])
        if command.more:
            yield f"{_paragraphs(command.more)}\n"


def _paragraphs(text: str) -> str:
    """Return prose unchanged; indented lines keep their line breaks."""
    blocks = text.strip("\n").split("\n\n")
    return "\n\n".join(
        f"```text\n{block}\n```" if block.startswith(" ") else _plain(block) for block in blocks
    )


def _plain(text: str) -> str:
    """Escape Markdown characters, except in backticks."""
    return re.sub(r"(`[^`]*`)|([<>*_\[\]])", lambda m: m[1] or f"\\{m[2]}", text)


def _options(parser: Parser) -> Iterator[str]:
    alone = {id(a): g for g in parser._mutually_exclusive_groups for a in g._group_actions}
    for action in parser._actions:
        if not action.option_strings or action.option_strings[-1] in _EVERYWHERE:
            continue
        others = [
            f"`{other.option_strings[-1]}`"
            for other in (alone[id(action)]._group_actions if id(action) in alone else ())
            if other is not action
        ]
        excluded = f" (not with {', '.join(others)})" if others else ""
        flags = ", ".join(action.option_strings)
        yield f"- `{flags}{_value(action)}`: {_plain(action.help or '')}{excluded}"


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return f" {'|'.join(map(str, action.choices))}"
    return f" {action.metavar or action.dest.upper()}"


def _ends() -> Iterator[str]:
    codes = described_exit_codes().splitlines()[1:]
    rows = [line.strip().split(None, 1) for line in codes]
    yield "## Exit codes\n"
    yield "| code | how a call ended |\n|---|---|"
    yield from (f"| {code} | {ends} |" for code, ends in rows)
    yield "\n`chat` and `run` say how the [turn ended](../use/run.md#exit-codes).\n"
    yield f"## Environment\n\n```text\n{_environment()}\n```\n"


def _environment() -> str:
    text = commands.help_text(["help", "--all"]) or ""
    return next(part for part in text.split("\n\n") if part.startswith("environment:"))
