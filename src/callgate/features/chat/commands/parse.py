"""`callgate parse`: shows the tool calls in a model's reply, and the errors in it. Runs none."""

from __future__ import annotations

import sys
from argparse import Namespace

from callgate.cli.errors import OK, USAGE, CliError
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.terminal import say
from callgate.protocol.json_texts import dumps
from callgate.protocol.toolcalls.parse import parse as read
from callgate.protocol.toolcalls.values import (
    MAX_BYTES,
    FoundCall,
    Parsed,
    error_text,
    note_text,
    to_json,
)


def parse(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("parse takes one FILE, or - for stdin", hint="See callgate parse --help.")
    parsed = read(_text(options.words[0]), strict=options.strict)
    if options.json:
        print_json(to_json(parsed))
    else:
        _show(parsed)
    # An empty list of calls is valid.
    return OK if parsed.calls or not (parsed.errors or parsed.truncated) else USAGE


def _text(name: str) -> str:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CliError(f"{name!r} cannot be read: {error.strerror}", reason="unreadable") from error
    return data.decode(errors="surrogateescape")  # the parser then reports invalid UTF-8


def _show(parsed: Parsed) -> None:
    if parsed.calls:
        print_text("\n".join(map(_line, parsed.calls)))
    for error in parsed.errors:
        say(f"error: {error_text(error)}")
    for note in parsed.diagnostics:
        say(f"note: {note_text(note)}")
    if parsed.repaired and parsed.calls:
        say("note: not in the required format, so calls with effects need approval")


def _line(call: FoundCall) -> str:
    priority = f"  priority {call.priority}" if call.priority else ""
    return f"{dumps(call.id)}  {call.type}  {dumps(call.parameters)}{priority}"
