"""What goes to stdout: one JSON object, or a result's text.

A terminal never gets the raw text of a tool: there it goes through `visible`. A pipe or a
file gets it as it is.
"""

from __future__ import annotations

import sys

from callgate.cli.ui.terminal import is_terminal, safe
from callgate.protocol.json_texts import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from callgate.cli.errors import CliError


def print_json(value: Any) -> None:
    """What a command gives. An object also says who answered; a list has no place for that."""
    if isinstance(value, dict) and "answered_by" not in value:
        from callgate.cli.ui import provenance  # lazy: an instance's answer names itself  # noqa: PLC0415

        by = provenance.current()
        value = value if by is None else {**value, "answered_by": by}
    print_json_line(value)


def print_json_line(value: Any) -> None:
    """One line. On a terminal only ASCII, so that nothing in a text can act on it."""
    text = dumps(value, ascii=is_terminal(sys.stdout))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = dumps(value)
    print(text)


def print_error(error: CliError, **more: Any) -> None:
    """The envelope of a command that never became a call."""
    from callgate.cli.ui import provenance  # lazy: most commands end without an error  # noqa: PLC0415

    described = {
        "class": error.error_class,
        "message": error.message,
        "reason": error.reason,
        "hint": error.hint,
    }
    by = provenance.known()
    more |= {} if by is None else {"answered_by": by}
    print_json_line({"ok": False, **more, "error": described})


def print_text(text: str) -> None:
    """A result as text, and a line end if it has none."""
    if is_terminal(sys.stdout):
        text = safe(text)
    # A lone surrogate cannot be written as UTF-8; better an escape than no result.
    data = text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")
    sys.stdout.flush()
    sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")
