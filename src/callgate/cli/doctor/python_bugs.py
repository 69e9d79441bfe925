"""Faults that releases of Python had, found by trying them out and not by a version number.

A distribution mends a bug without a new version, or ships an old release with it. To add one,
write a probe that returns whether this Python has the bug, and put it into `BUGS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from callgate.protocol.toolcalls.preview import Preview
from callgate.redaction.texts import redact
from callgate.sandbox.allowed_hosts import is_public

_SECRET = "hunter2-9f8e7d6c5b4a"  # noqa: S105 - an invented one

_LETTERS = r"(?:[^\\]|\\(?:[^u]|u[0-9a-f]{4}))*"


class PythonBug(NamedTuple):
    is_present: Callable[[], bool]
    """Whether this Python has it."""
    text: str
    breaks_promise: bool
    """Callgate cannot do what it promises on such a Python, and must not be used with it."""


def _preview_is_wrong() -> bool:
    preview = Preview(strict=False)
    text = '{"type": "send_chat", "parameters": {"content": "a\\u00'
    return preview.feed(text) != "a"


def _secret_is_written() -> bool:
    return _SECRET in redact(f"curl -u me:{_SECRET} https://example.com && export TOKEN={_SECRET}")


def _loopback_is_public() -> bool:
    return any(map(is_public, ("127.0.0.1", "::1", "::ffff:127.0.0.1", "2002:7f00:1::")))


def _possessive_is_wrong() -> bool:
    found = re.match(f"{_LETTERS}+", "a\\u00")
    return found is None or found[0] != "a"


def _path_is_cut() -> bool:
    return os.path.normpath("a\0b") != "a\0b"


BUGS = (
    PythonBug(_preview_is_wrong, "its patterns misread a model's reply", True),
    PythonBug(_secret_is_written, "its patterns let secrets into the audit log", True),
    PythonBug(_loopback_is_public, "it takes this machine's own addresses for public ones", True),
    PythonBug(
        _possessive_is_wrong,
        "`re` mismatches possessive quantifiers and atomic groups (callgate uses none; see your "
        "own tools)",
        False,
    ),
    PythonBug(
        _path_is_cut,
        "os.path.normpath cuts a path at a zero byte (callgate refuses such paths first; see your "
        "own tools)",
        False,
    ),
)


def bugs_here(bugs: Iterable[PythonBug] = BUGS) -> list[PythonBug]:
    """Those that the running Python has."""
    return [bug for bug in bugs if bug.is_present()]
