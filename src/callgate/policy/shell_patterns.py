"""Values of the shell command reader, and patterns over the words of one command.

A pattern is a list of words. A last word `*` matches any further words, including none;
without it no more words are allowed. Elsewhere `*`, `?` and `[...]` match within one
word, and quotes or a backslash make them literal.

An allowing rule matches narrowly (`matches`), a restricting one widely (`touches`): the first must
not assume too much, the second must not miss anything.

Result and state of reading a shell command line: segments, redirections and doubts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache

import msgspec

from callgate.core import patterns

MAX_CHARACTERS = 65_536
MAX_SEGMENTS = 1_000
MAX_TOKENS = 8_192
"""Total number of words, operators and nested texts."""
MAX_DEPTH = 20
"""A command beyond any of these limits cannot be reviewed: it is denied without a question."""


class Doubt(StrEnum):
    """Reason why a command is not (fully) understood. The value completes "it contains ..."."""

    TOO_LONG = "more than can be reviewed: too long, too many commands or nested too deeply"
    INVISIBLE = "a control character, or one that is invisible or looks like a blank"
    SYNTAX = "something that is not a complete command line"
    UNBALANCED = "a quote or bracket that is never closed"
    CONTINUATION = "a backslash at the end of a line"
    VARIABLE = "a variable, which the shell replaces by a value"
    SUBSTITUTION = "another command in $( ), whose output becomes part of this one"
    BACKTICKS = "another command in backticks, whose output becomes part of this one"
    PROCESS = "another command in <( ) or >( )"
    ARITHMETIC = "arithmetic, which the shell computes"
    TILDE = "a ~ that the shell replaces by a home directory"
    GLOB = "a file name pattern (* ? [ ]) that the shell replaces by file names"
    BRACES = "braces that only some shells expand"
    SPECIAL_QUOTES = "$'...' or $\"...\", which shells read differently"
    HERE_DOCUMENT = "a here-document or here-string"
    ASSIGNMENT = "a variable assignment, which may change what the command does"
    COMPOUND = "a shell keyword (if, for, while, case, {, [[, !, time, ...)"
    PARENTHESES = "parentheses: a subshell, a function or a pattern"
    BACKGROUND = "a command in the background (&)"
    DIALECT = "an operator that shells read differently (|&, &>, 10>, {name}>, >&word)"
    SHELL_STATE = "a command that changes how the shell reads or finds the ones after it"
    OPTION = "a first character (- or +) with which a shell's own options begin"
    JOB = "a job (%...) in place of a command"


class Redirect(msgspec.Struct, frozen=True):
    operator: str
    target: str | None
    """The word after the operator; None if it is missing or not literal."""
    writes: bool = False
    """The redirection creates or changes the file `target`."""
    descriptor: str = ""
    """The number before the operator, as written."""

    @property
    def harmless(self) -> bool:
        """Whether only the three standard streams and /dev/null are involved."""
        if self.operator in (">&", "<&"):
            return self.target in ("0", "1", "2")
        return self.target == "/dev/null" and not self.operator.startswith("<<")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One simple command: a program and its arguments, between two operators."""

    text: str
    """As written in the command line."""
    argv: tuple[str, ...]
    """The words after quote removal. Text that a shell would expand is unchanged."""
    literal: bool = True
    """Whether the program would receive exactly the words of `argv`."""
    redirects: tuple[Redirect, ...] = ()
    assignments: tuple[str, ...] = ()
    joined_by: str = ""
    """The operator before it: one of ; & && || | newline, or nothing for the first."""
    nested: bool = False
    """Whether it is inside a substitution or parentheses of another segment."""
    emptied: tuple[str, ...] = ()
    """`argv` if all expansions were empty; only if not literal."""
    inputs: tuple[str, ...] = ()
    """Texts for its standard input: here-documents, here-strings, text that echo pipes into it."""


class ParsedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A whole command line. If there are no doubts, a shell would run exactly `segments`."""

    text: str
    segments: tuple[Segment, ...]
    """In the order of their starts. If there are doubts: the recognized ones."""
    doubts: tuple[Doubt, ...] = ()

    @property
    def understood(self) -> bool:
        return not self.doubts

    @property
    def too_long(self) -> bool:
        return Doubt.TOO_LONG in self.doubts


class TooMuch(Exception):
    """A limit is exceeded; parsing stops."""


class Reading:
    """The state of one pass over one text: position and doubts."""

    __slots__ = ("arithmetic", "depth", "doubts", "pos", "read_nested", "read_text", "text")

    def __init__(
        self,
        text: str,
        depth: int,
        doubts: dict[Doubt, None],
        read_nested: Callable[[Reading], None],
        read_text: Callable[[Reading, str], None],
    ) -> None:
        self.text = text
        self.pos = 0
        self.depth = depth
        self.doubts = doubts
        self.read_nested = read_nested
        """Parses the commands up to and including the next `)`."""
        self.read_text = read_text
        """Parses another text, such as the inside of backticks, as commands."""
        self.arithmetic = False
        """`((` or `[` occurred, so `#` and `<<` may be arithmetic and must hide nothing."""

    def doubt(self, doubt: Doubt) -> None:
        self.doubts[doubt] = None

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooMuch

    def exit(self) -> None:
        self.depth -= 1


class Word(msgspec.Struct, frozen=True):
    text: str
    literal: bool
    quoted: bool
    """Whether a part of it is quoted: then it is neither a keyword nor a number before a `>`."""
    emptied: tuple[str, ...]


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
