"""Match paths against globs: wildcards within a name, and `**` for any number of directories.

    a/*/b/**/c.py  ->  blocks [a * b] [c.py]

A block is as many names as it has patterns, so the leftmost place where it fits is as good as any
later one: each is looked for once and nothing is tried twice, as `wildcards` does it in a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from callgate.core.text.wildcards import ANY, STAR, Match, Token, compile_tokens

DEEP = "**"
SLASH = "/"
MOST_CHOICES = 64
"""`**` in the middle of a name, as in `a**b`, is within it or not: two ways to read a pattern."""

Part = Match | None
"""The pattern of one name; None is `**`."""


class PathGlob:
    """One way to read a pattern."""

    __slots__ = ("_first", "_last", "_middle", "_shortest")

    def __init__(self, components: Iterable[Part]) -> None:
        blocks: list[list[Match]] = [[]]
        for part in components:
            if part is None:
                blocks.append([])
            else:
                blocks[-1].append(part)
        self._first = blocks[0]
        self._last = blocks[-1] if len(blocks) > 1 else None
        self._middle = [block for block in blocks[1:-1] if block]
        self._shortest = sum(map(len, blocks))

    def matches(self, names: Sequence[str]) -> bool:
        first, last, count = self._first, self._last, len(names)
        if count < self._shortest or (last is None and count != self._shortest):
            return False
        if not _fits(first, names, 0):
            return False
        if last is None:
            return True
        at, end = len(first), count - len(last)
        if not _fits(last, names, end):
            return False
        for block in self._middle:
            while at + len(block) <= end and not _fits(block, names, at):
                at += 1
            at += len(block)
            if at > end:
                return False
        return True


def _fits(block: list[Match], names: Sequence[str], at: int) -> bool:
    for match in block:
        if not match(names[at]):
            return False
        at += 1
    return True


class RuleGlob:
    """A pattern as rules write it: `*` and `?` stay within a name, `**` crosses directories
    wherever it stands. Raises `ValueError` where `**` stands within names too often."""

    __slots__ = ("_choices",)

    def __init__(self, pattern: str) -> None:
        choices: list[list[Token]] = [[]]
        at, count = 0, len(pattern)
        while at < count:
            step = _step(pattern, at)
            choices = [
                [*choice, *way]
                for choice in choices
                for way in _ways(step, not choice or choice[-1] == SLASH, at + len(step) == count)
            ]
            if len(choices) > MOST_CHOICES:
                raise ValueError("** stands in the middle of names too many times")
            at += len(step)
        self._choices = [PathGlob(_components(choice)) for choice in choices]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(choice.matches(names) for choice in self._choices)


def _step(pattern: str, at: int) -> str:
    """The next part of a pattern that has a meaning of its own."""
    for step in ("**/", "**"):
        if pattern.startswith(step, at):
            return step
    return "/**" if pattern[at:] == "/**" else pattern[at]


def _ways(step: str, begins: bool, ends: bool) -> list[list[Token]]:
    """Every way to read it. `begins`: at the beginning of a name, `ends`: of the pattern."""
    match step:
        case "/**":
            return [[SLASH, DEEP]]  # the directory itself, and all that is in it
        case "**/":
            return [[DEEP, SLASH]] if begins else [[], [STAR, SLASH, DEEP, SLASH]]
        case "**" if begins:
            return [[DEEP, SLASH, STAR]]
        case "**" if ends:
            return [[STAR, SLASH, DEEP]]
        case "**":
            return [[STAR], [STAR, SLASH, DEEP, SLASH, STAR]]
    return [[STAR if step == "*" else ANY if step == "?" else step]]


def _components(tokens: Iterable[Token]) -> list[Part]:
    return [None if name == [DEEP] else compile_tokens(name) for name in split_names(tokens)]


def split_names(tokens: Iterable[Token]) -> list[list[Token]]:
    """What stands between the slashes."""
    names: list[list[Token]] = [[]]
    for token in tokens:
        if token == SLASH:
            names.append([])
        else:
            names[-1].append(token)
    return names
