"""Glob patterns over relative paths: `*`, `?`, `[ab]`, `{a,b}`, and `**` for any directories.

A pattern without a slash is about the last name, wherever it lies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from callgate.core.errors import ToolValidationError
from callgate.core.text.path_globs import DEEP, PathGlob
from callgate.core.text.wildcards import compile_tokens, parse_wildcards
from callgate.workspace.paths import shown

_MAX_PATTERN = 1_000
_MAX_CHOICES = 256
_BRACES = re.compile(r"\{([^{}]*)\}")


class Glob:
    """A compiled pattern. Raises `ToolValidationError` if it cannot be one."""

    def __init__(self, pattern: str) -> None:
        if not pattern or "\0" in pattern or len(pattern) > _MAX_PATTERN:
            raise ToolValidationError(f"Not a usable glob pattern: {shown(pattern)}")
        self._choices = [_read(choice) for choice in _expanded(pattern)]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(choice.matches(names) for choice in self._choices)


def _expanded(pattern: str) -> Iterator[str]:
    """Write out `{a,b}`, innermost first."""
    pending, count = [pattern], 0
    while pending:
        text = pending.pop()
        braces = _BRACES.search(text)
        if braces is None:
            yield text
            continue
        choices = braces[1].split(",")
        count += len(choices)
        if count > _MAX_CHOICES:
            raise ToolValidationError(f"Too many choices in glob pattern: {shown(pattern)}")
        pending.extend(text[: braces.start()] + one + text[braces.end() :] for one in choices)


def _read(pattern: str) -> PathGlob:
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if "/" not in pattern:
        names = [DEEP, *names]
    return PathGlob(
        None if name == DEEP else compile_tokens(parse_wildcards(name, classes=True))
        for name in names
    )
