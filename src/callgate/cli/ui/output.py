"""Output on stdout: one JSON object, or a result's text.

Text of a tool goes to a terminal only through `visible`, and unchanged to a pipe or a file.
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
    """Print the result of a command; an object also gets `answered_by`."""
    if isinstance(value, dict) and "answered_by" not in value:
        from callgate.cli.ui import provenance  # lazy: an instance's answer names itself  # noqa: PLC0415

        by = provenance.current()
        value = value if by is None else {**value, "answered_by": by}
    print_json_line(value)


def print_json_line(value: Any) -> None:
    """Print one line of JSON; on a terminal only ASCII, so that no text can control it."""
    text = dumps(value, ascii=is_terminal(sys.stdout))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = dumps(value)
    print(text)


def print_error(error: CliError, **more: Any) -> None:
    """Print the JSON envelope of a command that failed before a call."""
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
    """Print a result as text, with a final line end."""
    if is_terminal(sys.stdout):
        text = safe(text)
    # A lone surrogate has no UTF-8 form, so it becomes an escape.
    data = text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")
    sys.stdout.flush()
    sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")
