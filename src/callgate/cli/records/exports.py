"""A whole session outside of the store: lines of JSON, or a page to read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from callgate.cli.errors import CliError
from callgate.cli.ui.output import print_json_line, print_text
from callgate.core.errors import ToolErrorClass
from callgate.core.events import Event
from callgate.core.stored import StoredMessage, StoredSession
from callgate.sessions.ordering import in_order
from callgate.sessions.transcripts import transcript


class SessionExport(NamedTuple):
    session: StoredSession
    messages: Sequence[StoredMessage]
    events: Sequence[Event]


def print_transcript(export: SessionExport) -> None:
    print_text(transcript(*export))


def print_lines(export: SessionExport) -> None:
    for line in lines(export):
        print_json_line(line)


def lines_text(export: SessionExport) -> str:
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines(export))


def lines(export: SessionExport) -> Iterator[dict[str, Any]]:
    """The session, then all that happened in it, one object a line."""
    yield {"kind": "session", **msgspec.to_builtins(export.session)}
    for number, item in in_order(export.messages, export.events):
        if isinstance(item, StoredMessage):
            yield {"kind": "message", "number": number, **msgspec.to_builtins(item)}
        else:
            yield {"kind": "event", "seq": number, **msgspec.to_builtins(item)}


def write_file(path: str, text: str) -> None:
    """Conversations are nobody else's business: a file that is made here is its owner's."""

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    try:
        # A lone surrogate becomes an escape, which JSON reads as the same.
        with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=private) as file:
            file.write(text)
    except OSError as error:
        raise CliError(
            f"the export could not be written: {error}",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="unwritable",
        ) from error
