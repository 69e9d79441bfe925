"""Patterns over the words of one command, as rules write them: `git log *`, `rm -rf *`.

A pattern is a list of words. A last word `*` matches any further words, including none;
without it no more words are allowed. Elsewhere `*`, `?` and `[...]` match within one
word, and quotes or a backslash make them literal.

An allowing rule matches narrowly (`matches`), a restricting one widely (`touches`): the first must
not assume too much, the second must not miss anything.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from callgate.core import patterns

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_PLAIN = re.compile(r"[^\s'\"\\;&|<>()`*?\[]+")
_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./^~-]+")
_CLASS = re.compile(r"\[[!^]?\]?[^\]\s]*\]")
_FEW_LETTERS = 4
"""An option with more different letters is one long option, such as -march or -delete."""


def program_name(word: str) -> str:
    """Return a program's name without its directory, in lower case, as some systems find it."""
    return word.rpartition("/")[2].casefold()


class Token(msgspec.Struct, frozen=True):
    """One word of a pattern: literal text, or wildcards."""

    literal: str
    wildcards: tuple[patterns.Token, ...] | None = None

    def covers(self, word: str) -> bool:
        """Match narrowly: a wildcard matches neither an option nor a path with `..`."""
        if self.wildcards is None:
            return word == self.literal
        if word.startswith("-") and not self.literal.startswith("-"):
            return False
        if ".." in word.split("/"):
            return False
        return _compile(self.wildcards)(word)

    def reaches(self, word: str) -> bool:
        if self.wildcards is None:
            return word == self.literal
        return _compile(self.wildcards)(word)

    def reaches_program(self, word: str) -> bool:
        """Match widely: also with another path or another case, which some file systems ignore."""
        if self.reaches(word):
            return True
        name = program_name(word)
        if self.wildcards is None:
            return name == self.literal.casefold()
        return _compile(self.wildcards, ignore_case=True)(name)


class CommandPattern(msgspec.Struct, frozen=True):
    text: str
    """As written."""
    tokens: tuple[Token, ...]
    rest: bool
    """Whether any further words may follow."""

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def _compile(tokens: tuple[patterns.Token, ...], *, ignore_case: bool = False) -> patterns.Match:
    return patterns.compile_tokens(tokens, ignore_case=ignore_case)


def matches(pattern: CommandPattern, argv: tuple[str, ...]) -> bool:
    """Whether the pattern matches exactly these words."""
    tokens = pattern.tokens
    if len(argv) < len(tokens) or (len(argv) > len(tokens) and not pattern.rest):
        return False
    return bool(argv) and all(map(Token.covers, tokens, argv))


def touches(pattern: CommandPattern, argv: tuple[str, ...]) -> bool:
    """Whether the pattern could mean these words: options in any order, any path."""
    tokens = pattern.tokens
    if not argv:
        return False
    if not tokens:
        return pattern.rest
    if not tokens[0].reaches_program(argv[0]):
        return False
    fits = len(argv) == len(tokens) or (len(argv) > len(tokens) and pattern.rest)
    if fits and all(map(Token.reaches, tokens[1:], argv[1:])):
        return True
    return pattern.rest and _touches_in_any_order(tokens[1:], argv[1:])


def _touches_in_any_order(tokens: tuple[Token, ...], words: tuple[str, ...]) -> bool:
    """Match `-rf` with `-r -f` and `-fr` too; an option before the first word may have a value."""
    options = [word for word in words if word.startswith("-")]
    names = [word.partition("=")[0] for word in options]
    letters = frozenset[str]().union(*map(_cluster, options))
    for token in tokens:
        if not token.literal.startswith("-"):
            continue
        wanted = _cluster(token.literal) if token.wildcards is None else None
        if wanted and wanted <= letters:
            continue
        if not any(map(token.reaches, options)) and not any(map(token.reaches, names)):
            return False
    expected = [token for token in tokens if not token.literal.startswith("-")]
    at = 0
    for before, word in zip(("", *words), words, strict=False):
        if at == len(expected):
            break
        if word.startswith("-"):
            continue
        if expected[at].reaches(word):
            at += 1
        elif not before.startswith("-") or "=" in before:
            return False
    return at == len(expected)


def _cluster(option: str) -> frozenset[str]:
    """Return the letters of combined short options; empty for a long option."""
    letters = frozenset(option[1:])
    if option[1:].isalpha() and len(letters) <= _FEW_LETTERS:
        return letters
    return frozenset()


def parse_pattern(text: str) -> CommandPattern:
    """Parse a pattern. Raises `ValueError` with the problem and its position."""
    for number, char in enumerate(text, 1):
        if not char.isprintable() and char not in "\t\n":
            raise ValueError(f"at character {number}: an invisible or control character")
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        token, at = _parse_token(text, at)
        tokens.append(token)
    if not tokens:
        raise ValueError("a command pattern is empty")
    if _ASSIGNMENT.match(tokens[0].literal):
        raise ValueError("at character 1: a pattern begins with the program, not a variable")
    is_open = tokens[-1].wildcards == (patterns.STAR,)
    return CommandPattern(text, tuple(tokens[:-1] if is_open else tokens), is_open)


def quote(word: str) -> str:
    """Quote a word as a pattern that matches exactly this word."""
    if _SAFE.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\\''") + "'"


def _parse_token(text: str, at: int) -> tuple[Token, int]:
    literal: list[str] = []
    tokens: list[patterns.Token] = []
    wild = False
    while at < len(text) and text[at] not in " \t":
        piece, found, at = _parse_piece(text, at)
        literal.append(piece)
        wild = wild or found is None or isinstance(found, patterns.OneOf)
        tokens += [found] if found != piece else piece
    return Token("".join(literal), tuple(tokens) if wild else None), at


def _parse_piece(text: str, at: int) -> tuple[str, patterns.Token, int]:
    """Parse one piece of a word. Return its text, its wildcard (or the text again) and its end."""
    if run := _PLAIN.match(text, at):
        return run.group(), run.group(), run.end()
    char = text[at]
    if char == "*":
        end = at + 1
        while text.startswith("*", end):
            end += 1
        return "*", patterns.STAR, end
    if char == "?":
        return "?", patterns.ANY, at + 1
    if char == "[":
        return _parse_class(text, at)
    if char in "'\"":
        return _parse_quotes(text, at)
    if char == "\\":
        if at + 1 == len(text):
            raise ValueError(f"at character {at + 1}: nothing follows the backslash")
        return text[at + 1], text[at + 1], at + 2
    if char in ";&|<>()`":
        raise ValueError(
            f"at character {at + 1}: {char} can never match, because every command of a line"
            " is evaluated alone; quote it if the word itself contains it"
        )
    raise ValueError(f"at character {at + 1}: {char!r} must be quoted")


def _parse_class(text: str, at: int) -> tuple[str, patterns.Token, int]:
    if text[at : at + 2].strip() == "[" and (at == 0 or text[at - 1] in " \t"):
        return "[", "[", at + 1  # the command [
    match = _CLASS.match(text, at)
    if match is None:
        raise ValueError(f"at character {at + 1}: [ is never closed; quote a literal [")
    inside = match.group()[1:-1]
    negated = inside[:1] in ("!", "^")
    ranges = patterns.read_ranges(inside[negated:])
    if any(first > last for first, last in ranges):
        raise ValueError(f"at character {at + 1}: {match.group()} is not a valid character set")
    return match.group(), patterns.character_class(ranges, negated=negated), match.end()


def _parse_quotes(text: str, at: int) -> tuple[str, str, int]:
    quoted: list[str] = []
    end = at + 1
    while end < len(text):
        if text[end] == text[at]:
            return "".join(quoted), "".join(quoted), end + 1
        if text[end] == "\\" and text[at] == '"' and text[end + 1 : end + 2] in ('"', "\\"):
            end += 1
        quoted.append(text[end])
        end += 1
    raise ValueError(f"at character {at + 1}: the quote is never closed")
