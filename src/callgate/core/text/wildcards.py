"""Match a text against wildcards without ever going back: no pattern can make it take long.

    tokens --compile_tokens--> Match        `*` is STAR, `?` and `[ab]` are a OneOf

Between two stars stands a piece of fixed length. The leftmost place where a piece fits is as good
as any later one, so each is looked for once, behind the one before it: time grows with the length
of the text and of the pattern, and with nothing else. What runs in `re` here repeats nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple


class OneOf(NamedTuple):
    regex: str
    """A regular expression for exactly one character."""


ANY = OneOf(".")
STAR = None
Token = str | OneOf | None
"""A character, one of several, or any number of any."""
Match = Callable[[str], bool]


def parse_wildcards(pattern: str, *, classes: bool = False) -> list[Token]:
    """`*` and `?`, and with `classes` also `[ab]`, `[a-z]` and `[!ab]`."""
    tokens: list[Token] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        end = _class_end(pattern, at) if classes and char == "[" else -1
        if end > 0:
            negated = pattern.startswith("!", at + 1)
            ranges = read_ranges(pattern[at + 1 + negated : end])
            tokens.append(character_class(ranges, negated=negated))
            at = end
        elif char == "*":
            tokens.append(STAR)
        else:
            tokens.append(ANY if char == "?" else char)
        at += 1
    return tokens


def compile_tokens(tokens: Iterable[Token], *, ignore_case: bool = False) -> Match:
    """Whether a whole text fits."""
    groups: list[list[str | OneOf]] = [[]]
    for token in tokens:
        if token is STAR:
            groups.append([])
        else:
            groups[-1].append(token)
    if any(isinstance(each, OneOf) for group in groups for each in group) or ignore_case:
        return _open_characters(groups, re.IGNORECASE if ignore_case else re.NOFLAG)
    return _plain_pieces(["".join(map(str, group)) for group in groups])


def read_ranges(inside: str) -> list[tuple[str, str]]:
    """What stands between brackets: characters, and ranges such as `a-z`."""
    at, ranges = 0, list[tuple[str, str]]()
    while at < len(inside):
        is_range = inside[at + 1 : at + 2] == "-" and at + 2 < len(inside)
        ranges.append((inside[at], inside[at + 2] if is_range else inside[at]))
        at += 3 if is_range else 1
    return ranges


def character_class(ranges: Iterable[tuple[str, str]], *, negated: bool, more: str = "") -> OneOf:
    """One character that lies in one of these ranges or, if `negated`, in none. `more`: what is
    in it besides, as a regular expression has it between brackets."""
    inside = more + "".join(
        f"{re.escape(first)}-{re.escape(last)}" for first, last in ranges if first <= last
    )
    if not inside:
        return ANY if negated else OneOf("(?!)")
    return OneOf(f"[{'^' if negated else ''}{inside}]")


def _plain_pieces(pieces: list[str]) -> Match:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first.__eq__
    middle = [piece for piece in pieces[1:-1] if piece]
    shortest = len(first) + len(last)
    if not middle:
        return lambda text: len(text) >= shortest and text.startswith(first) and text.endswith(last)

    def matches(text: str) -> bool:
        end = len(text) - len(last)
        if not (end >= len(first) and text.startswith(first) and text.endswith(last)):
            return False
        at = len(first)
        for piece in middle:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches


def _open_characters(groups: list[list[str | OneOf]], flags: re.RegexFlag) -> Match:
    pieces = [_piece(group, flags) for group in groups if group]
    pattern = _piece(groups[0], flags)
    if len(groups) == 1:
        return lambda text: pattern.fullmatch(text) is not None
    first, last = pattern if groups[0] else None, pieces[-1] if groups[-1] else None
    middle = pieces[first is not None : len(pieces) - (last is not None)]
    head, tail = len(groups[0]), len(groups[-1])

    def matches(text: str) -> bool:
        at, end = head, len(text) - tail
        if end < at or (first is not None and first.match(text) is None):
            return False
        if last is not None and last.match(text, end) is None:
            return False
        for piece in middle:
            found = piece.search(text, at, end)
            if found is None:
                return False
            at = found.end()
        return True

    return matches


def _piece(group: list[str | OneOf], flags: re.RegexFlag) -> re.Pattern[str]:
    regexes = (each.regex if isinstance(each, OneOf) else re.escape(each) for each in group)
    return re.compile("".join(regexes), re.DOTALL | flags)


def _class_end(pattern: str, at: int) -> int:
    """Where the class that begins there is closed; -1 if nowhere: then `[` is a character."""
    start = at + 1 + pattern.startswith("!", at + 1)
    return pattern.find("]", start + 1)
