"""A whole session outside of the store: lines of JSON, or a page to read."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

import msgspec

from callgate.cli.errors import CliError
from callgate.cli.ui.output import print_json_line, print_text
from callgate.core.errors import ToolErrorClass
from callgate.core.stored import StoredMessage, StoredSession
from callgate.core.stores import Store
from callgate.sessions.ordering import read_in_order
from callgate.sessions.transcripts import write_transcript


async def write_export(
    store: Store, session: StoredSession, path: str | None, *, as_json: bool
) -> None:
    """To a file, or to stdout, as it is read."""
    with _output(path) as output:
        if as_json:
            async for line in lines(store, session):
                output.line(line)
            return
        await write_transcript(store, session, output.text)


class _Output(NamedTuple):
    line: Callable[[dict[str, Any]], object]
    text: Callable[[str], object]


@contextmanager
def _output(path: str | None) -> Iterator[_Output]:
    if path is None:
        yield _Output(print_json_line, print_text)
        return
    with _private_file(path) as file:
        yield _Output(
            lambda line: file.write(f"{json.dumps(line, ensure_ascii=False)}\n"), file.write
        )


async def lines(store: Store, session: StoredSession) -> AsyncIterator[dict[str, Any]]:
    """The session, then all that happened in it, one object a line."""
    yield {"kind": "session", **msgspec.to_builtins(session)}
    async for number, item in read_in_order(store, session.id):
        if isinstance(item, StoredMessage):
            yield {"kind": "message", "number": number, **msgspec.to_builtins(item)}
        else:
            yield {"kind": "event", "seq": number, **msgspec.to_builtins(item)}


@contextmanager
def _private_file(path: str) -> Iterator[TextIO]:
    """Conversations are nobody else's business: a file that is made here is its owner's."""

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    try:
        # A lone surrogate becomes an escape, which JSON reads as the same.
        with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=private) as file:
            yield file
    except OSError as error:
        raise CliError(
            f"the export could not be written: {error}",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="unwritable",
        ) from error
