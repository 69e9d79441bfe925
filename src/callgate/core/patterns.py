"""Linear-time matching: wildcards, globs over paths, and a search for many words at once.

    tokens --compile_tokens--> Match        `*` is STAR, `?` and `[ab]` are a OneOf
    a/*/b/**/c.py  ->  blocks [a * b] [c.py]

A piece between two stars has a fixed length, and so has a block of names between two `**`. The
leftmost match of a piece is as good as any later one, so the matcher searches each piece once,
after the previous one, and never backtracks. Time grows only with the lengths of text and pattern.
The `re` expressions in this module contain no repetition.

`re` tries alternatives one after another at each character. `Scan` uses the engine of the JSON
Schema validator instead, which compiles all of them into one automaton.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class OneOf(NamedTuple):
    regex: str
    """A regular expression for exactly one character."""


ANY = OneOf(".")
STAR = None
Token = str | OneOf | None
"""A literal character, one of several characters, or (`STAR`) any number of any characters."""
Match = Callable[[str], bool]


def parse_wildcards(pattern: str, *, classes: bool = False) -> list[Token]:
    """Parse `*` and `?`, and with `classes` also `[ab]`, `[a-z]` and `[!ab]`."""
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
    """Return a predicate that is true if the tokens match a whole text."""
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
    """Parse the inside of brackets: characters, and ranges such as `a-z`."""
    at, ranges = 0, list[tuple[str, str]]()
    while at < len(inside):
        is_range = inside[at + 1 : at + 2] == "-" and at + 2 < len(inside)
        ranges.append((inside[at], inside[at + 2] if is_range else inside[at]))
        at += 3 if is_range else 1
    return ranges


def character_class(ranges: Iterable[tuple[str, str]], *, negated: bool, more: str = "") -> OneOf:
    """Return a token for one character in (if `negated`, outside) these ranges.

    `more` adds to the class, in the syntax of a regular expression between brackets.
    """
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
    """Return the index of the closing bracket, or -1: then `[` is a literal character."""
    start = at + 1 + pattern.startswith("!", at + 1)
    return pattern.find("]", start + 1)


DEEP = "**"
SLASH = "/"
MOST_CHOICES = 64
"""Maximum readings of a pattern. `**` inside a name, as in `a**b`, stays within the name or crosses
directories: two readings.
"""

Part = Match | None
"""The pattern of one name; None is `**`."""


class PathGlob:
    """One reading of a path pattern."""

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
    """A path pattern of a rule: `*` and `?` stay within a name, `**` crosses directories anywhere.

    Raises `ValueError` if there are too many `**` within names.
    """

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
                raise ValueError("** appears in the middle of names too many times")
            at += len(step)
        self._choices = [PathGlob(_components(choice)) for choice in choices]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(choice.matches(names) for choice in self._choices)


def _step(pattern: str, at: int) -> str:
    """Return the next token of the pattern: `**` with adjacent slashes, or one character."""
    for step in ("**/", "**"):
        if pattern.startswith(step, at):
            return step
    return "/**" if pattern[at:] == "/**" else pattern[at]


def _ways(step: str, begins: bool, ends: bool) -> list[list[Token]]:
    """Return every reading of a token. `begins`: at the start of a name; `ends`: at the end."""
    match step:
        case "/**":
            return [[SLASH, DEEP]]  # the directory itself and all its contents
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
    """Split the tokens at slashes."""
    names: list[list[Token]] = [[]]
    for token in tokens:
        if token == SLASH:
            names.append([])
        else:
            names[-1].append(token)
    return names


def literally(words: Iterable[str]) -> list[str]:
    """Escape plain words as forms."""
    return [re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", word) for word in words]


class Scan:
    """Search for many forms: regular expressions without look-around and back references."""

    __slots__ = ("_forms", "search")

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms = "|".join(forms)
        self.search: Callable[[str], bool] = self._compile_and_search
        """The engine's method after the first use. Raises `ValueError` for invalid Unicode."""

    def finds(self, text: str) -> bool:
        """Whether a form matches. Also true for invalid Unicode, so that the caller checks it in
        detail.
        """
        try:
            return self.search(text)
        except ValueError:  # a lone surrogate
            return True

    def _compile_and_search(self, text: str) -> bool:
        import jsonschema_rs  # lazy: only a process that redacts needs it  # noqa: PLC0415

        options = jsonschema_rs.RegexOptions()
        schema = {"pattern": self._forms}
        self.search = jsonschema_rs.Draft7Validator(schema, pattern_options=options).is_valid
        return self.search(text)
