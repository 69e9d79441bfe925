"""The lines of a .gitignore file as git reads them, matched without going back.

    *.o           a name, wherever it lies          /doc/*.html   a path from that directory
    build/        only a directory                  !keep.o       taken back in
    a/**/b        any directories between           \\#, \\!       these characters

A line that git would never match (an open bracket, a backslash at its end) is left out.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NamedTuple

from callgate.core.text.path_globs import Part, PathGlob, split_names
from callgate.core.text.wildcards import (
    ANY,
    STAR,
    Match,
    OneOf,
    Token,
    character_class,
    compile_tokens,
)

MOST_LINES = 10_000
"""Of one directory; further ones do not count."""
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
    """False: it takes back in what an earlier line left out."""
    only_directories: bool
    name: Match | None
    """Of the last name; None where the rule is about a path."""
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
    """Unless a backslash stands before them."""
    end = len(line.rstrip(" "))
    backslashes = end - len(line[:end].rstrip("\\"))
    return line[: end + 1] if backslashes % 2 else line[:end]


def _tokens(pattern: str) -> list[Token] | None:
    """None if nothing can match it."""
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
    """`**` is any directories where it is all of a name; at the end at least one name."""
    components: list[Part] = []
    for name in split_names(tokens):
        is_deep = len(name) > 1 and all(each is STAR for each in name)
        components.append(None if is_deep else compile_tokens(name))
    if components[-1] is None:
        components.append(compile_tokens([STAR]))
    return PathGlob(components)


def _character_class(pattern: str, at: int) -> tuple[OneOf, int] | None:
    """What is between brackets, and where they are closed."""
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
