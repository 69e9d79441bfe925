"""Result and state of reading a shell command line: segments, redirections and doubts."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

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
