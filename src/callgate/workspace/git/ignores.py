"""What a search leaves out: the rules of .gitignore files, at every level.

A deeper file speaks before a shallower one, and in one directory .callgateignore before
.ignore before .gitignore. What lies in an ignored directory cannot be taken back in.
"""

from __future__ import annotations

from collections.abc import Sequence

from callgate.workspace.git.ignore_rules import IgnoreRule, read_rules

NAMES = (".gitignore", ".ignore", ".callgateignore")
ALWAYS = frozenset({".git", ".hg", ".svn"})


class Ignores:
    """The rules in force in one directory; immutable, each level adds to the one above."""

    def __init__(
        self, levels: tuple[tuple[int, list[IgnoreRule]], ...] = (), depth: int = 0
    ) -> None:
        self._levels = levels
        self._depth = depth

    def within(self, texts: Sequence[str]) -> Ignores:
        """The rules one directory deeper, where ignore files with these texts lie."""
        depth = self._depth + 1
        if not texts:
            return Ignores(self._levels, depth)
        rules = [rule for text in texts for rule in read_rules(text)]
        rules.reverse()  # the last that matches counts
        return Ignores(((depth, rules), *self._levels), depth)

    def cover(self, names: Sequence[str], is_directory: bool) -> bool:
        """Whether a path from the root, given by its names, is left out."""
        if names[-1] in ALWAYS:
            return True
        for depth, rules in self._levels:
            below = names[depth - 1 :]
            for rule in rules:
                if rule.matches(below, is_directory):
                    return rule.ignores
        return False
