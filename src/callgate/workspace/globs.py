"""Glob patterns over relative paths: `*`, `?`, `[ab]`, `{a,b}`, and `**` for any directories.

A pattern without a slash is about the last name, wherever it lies. Matching takes linear
time in a name, whatever the pattern.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from callgate.core.errors import ToolValidationError
from callgate.workspace.paths import shown

_MAX_PATTERN = 1_000
_MAX_CHOICES = 256
_BRACES = re.compile(r"\{([^{}]*)\}")

_Part = re.Pattern[str] | None
"""One name of a pattern; None stands for `**`."""


class Glob:
    """A compiled pattern. Raises `ToolValidationError` if it cannot be one."""

    def __init__(self, pattern: str) -> None:
        if not pattern or "\0" in pattern or len(pattern) > _MAX_PATTERN:
            raise ToolValidationError(f"Not a usable glob pattern: {shown(pattern)}")
        self._choices = [_parts(choice) for choice in _expanded(pattern)]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(_match(parts, names) for parts in self._choices)


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


def _parts(pattern: str) -> list[_Part]:
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if "/" not in pattern:
        names = ["**", *names]
    parts: list[_Part] = []
    for name in names:
        if name != "**":
            parts.append(re.compile(fnmatch.translate(name)))
        elif not parts or parts[-1] is not None:
            parts.append(None)
    return parts


def _match(parts: list[_Part], names: list[str]) -> bool:
    """Whether all parts cover all names; `reached` holds how many parts are used up so far."""
    reached = _passed(parts, {0})
    for name in names:
        reached = _passed(
            parts,
            {
                at if part is None else at + 1
                for at in reached
                if at < len(parts) and ((part := parts[at]) is None or part.match(name))
            },
        )
    return len(parts) in reached


def _passed(parts: list[_Part], reached: set[int]) -> set[int]:
    """`**` may also stand for no directory at all."""
    return reached | {at + 1 for at in reached if at < len(parts) and parts[at] is None}
