"""What a search leaves out: the rules of .gitignore files, at every level.

A deeper file speaks before a shallower one, and in one directory .callgateignore before
.ignore before .gitignore. What lies in an ignored directory cannot be taken back in.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

NAMES = (".gitignore", ".ignore", ".callgateignore")
ALWAYS = frozenset({".git", ".hg", ".svn"})


class Ignores:
    """The rules in force in one directory; immutable, each level adds to the one above."""

    def __init__(self, levels: tuple[tuple[int, Any], ...] = (), depth: int = 0) -> None:
        self._levels = levels
        self._depth = depth

    def within(self, texts: Sequence[str]) -> Ignores:
        """The rules one directory deeper, where ignore files with these texts lie."""
        depth = self._depth + 1
        if not texts:
            return Ignores(self._levels, depth)
        lines = [line for text in texts for line in text.splitlines()]
        return Ignores(((depth, _compiled(lines)), *self._levels), depth)

    def cover(self, names: Sequence[str], is_directory: bool) -> bool:
        """Whether a path from the root, given by its names, is left out."""
        if names[-1] in ALWAYS:
            return True
        for depth, spec in self._levels:
            path = "/".join(names[depth - 1 :]) + ("/" if is_directory else "")
            verdict: bool | None = spec.check_file(path).include
            if verdict is not None:
                return verdict
        return False


_compiling = threading.Lock()


def _compiled(lines: list[str]) -> Any:
    with _compiling:  # several searches may meet their first ignore file at once
        # Loaded only then: it takes longer than most calls.
        from pathspec import GitIgnoreSpec

        valid = []
        for line in lines:
            try:
                GitIgnoreSpec.from_lines([line])
            except ValueError:
                continue  # one wrong line must not end the search
            valid.append(line)
        return GitIgnoreSpec.from_lines(valid)
