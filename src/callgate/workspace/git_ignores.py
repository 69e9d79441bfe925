"""Ignore rules of .gitignore files, at every level, as git reads them.

    *.o           a name, at any depth              /doc/*.html   a path from that directory
    build/        only a directory                  !keep.o       included again
    a/**/b        any directories between           \\#, \\!       these characters

A deeper file overrides a shallower one, and in one directory .callgateignore overrides .ignore,
which overrides .gitignore. A file in an ignored directory cannot be included again. A line that git
would never match (an open bracket, a backslash at its end) is skipped. Matching never backtracks.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NamedTuple

from callgate.core.patterns import (
    ANY,
    STAR,
    Match,
    OneOf,
    Part,
    PathGlob,
    Token,
    character_class,
    compile_tokens,
    split_names,
)

MOST_LINES = 10_000
"""Maximum lines of one directory; others are ignored."""
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "space": "\\t-\\r ",
    "punct": "".join("\\" + each for each in string.punctuation),
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class IgnoreRule(NamedTuple):
    ignores: bool
    """False: the line includes names again that an earlier line excluded."""
    only_directories: bool
    name: Match | None
    """Matches the last name; None if the rule is about a path."""
    path: PathGlob | None

    def matches(self, names: Sequence[str], is_directory: bool) -> bool:
        if self.only_directories and not is_directory:
            return False
        if self.name is not None:
            return self.name(names[-1])
        return self.path is not None and self.path.matches(names)


def read_rules(text: str) -> list[IgnoreRule]:
    lines = text.removeprefix("\ufeff").split("\n")[:MOST_LINES]
    rules = (_rule(line.removesuffix("\r")) for line in lines)
    return [rule for rule in rules if rule is not None]


def _rule(line: str) -> IgnoreRule | None:
    line = _without_trailing_spaces(line)
    if line.startswith("#"):
        return None
    pattern = line.removeprefix("!")
    ignores = pattern == line
    only_directories = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    tokens = _tokens(pattern.removeprefix("/"))
    if not tokens:
        return None
    if "/" not in pattern:
        return IgnoreRule(ignores, only_directories, compile_tokens(tokens), None)
    return IgnoreRule(ignores, only_directories, None, _path(tokens))


def _without_trailing_spaces(line: str) -> str:
    """Remove trailing blanks, unless a backslash precedes them."""
    end = len(line.rstrip(" "))
    backslashes = end - len(line[:end].rstrip("\\"))
    return line[: end + 1] if backslashes % 2 else line[:end]


def _tokens(pattern: str) -> list[Token] | None:
    """Parse a pattern; None if it can match no name."""
    tokens: list[Token] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
            if at == len(pattern):
                return None
            tokens.append(pattern[at])
        elif char == "[":
            found = _character_class(pattern, at + 1)
            if found is None:
                return None
            one_of, at = found
            tokens.append(one_of)
        else:
            tokens.append(STAR if char == "*" else ANY if char == "?" else char)
        at += 1
    return tokens


def _path(tokens: list[Token]) -> PathGlob:
    """Parse a path; `**` means any directories if it is a whole name, at the end at least one."""
    components: list[Part] = []
    for name in split_names(tokens):
        is_deep = len(name) > 1 and all(each is STAR for each in name)
        components.append(None if is_deep else compile_tokens(name))
    if components[-1] is None:
        components.append(compile_tokens([STAR]))
    return PathGlob(components)


def _character_class(pattern: str, at: int) -> tuple[OneOf, int] | None:
    """Parse a character class; return it, and the position after its closing bracket."""
    negated = pattern[at : at + 1] in ("!", "^")
    at = start = at + negated
    items: list[tuple[str, str]] = []
    more, before = "", ""  # `before`: the character with which a range can begin
    while at < len(pattern):
        char = pattern[at]
        if char == "]" and at > start:
            return character_class(items, negated=negated, more=more), at
        if pattern.startswith("[:", at):
            close = pattern.find("]", at + 2)
            if close < 0:
                return None
            if close > at + 2 and pattern[close - 1] == ":":
                posix = _POSIX.get(pattern[at + 2 : close - 1])
                if posix is None:
                    return None
                more, before, at = more + posix, "", close + 1
                continue
        is_range = char == "-" and before and pattern[at + 1 : at + 2] not in ("", "]")
        at += bool(is_range)
        escaped = pattern[at] == "\\"
        at += escaped
        if at == len(pattern):
            return None
        items.append((before if is_range else pattern[at], pattern[at]))
        before = "" if is_range else pattern[at]
        at += 1
    return None


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
        """Return the rules one directory deeper, with the texts of its ignore files."""
        depth = self._depth + 1
        if not texts:
            return Ignores(self._levels, depth)
        rules = [rule for text in texts for rule in read_rules(text)]
        rules.reverse()  # the last that matches counts
        return Ignores(((depth, rules), *self._levels), depth)

    def cover(self, names: Sequence[str], is_directory: bool) -> bool:
        """Whether a path from the root, given by its names, is ignored."""
        if names[-1] in ALWAYS:
            return True
        for depth, rules in self._levels:
            below = names[depth - 1 :]
            for rule in rules:
                if rule.matches(below, is_directory):
                    return rule.ignores
        return False
