"""What a reading of a shell command line consists of: segments, redirections and doubts."""

from __future__ import annotations

from enum import StrEnum

import msgspec

MAX_CHARACTERS = 65_536
MAX_SEGMENTS = 1_000
MAX_TOKENS = 8_192
"""Words, operators and nested texts together."""
MAX_DEPTH = 20
"""Beyond any of these nobody can review a command: it is denied, not asked about."""


class Doubt(StrEnum):
    """Why a command is not (fully) understood. The value completes "it contains ..."."""

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
    """The word after the operator; None where it is missing or not literal."""
    writes: bool = False
    """The target is a file, and it is created or changed."""
    descriptor: str = ""
    """The number before the operator, as written."""

    @property
    def harmless(self) -> bool:
        """Nothing but the three standard streams and /dev/null is involved."""
        if self.operator in (">&", "<&"):
            return self.target in ("0", "1", "2")
        return self.target == "/dev/null" and not self.operator.startswith("<<")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One simple command: a program and its arguments, between two operators."""

    text: str
    """As written in the command line."""
    argv: tuple[str, ...]
    """The words after quote removal. What a shell would still replace stays as written."""
    literal: bool = True
    """Every word of `argv` is exactly what the program would be given."""
    redirects: tuple[Redirect, ...] = ()
    assignments: tuple[str, ...] = ()
    joined_by: str = ""
    """The operator before it: one of ; & && || | newline, or nothing for the first."""
    nested: bool = False
    """It stands in a substitution or in parentheses of another one."""
    emptied: tuple[str, ...] = ()
    """`argv` as it would be if every replacement came out empty; only where not literal."""
    inputs: tuple[str, ...] = ()
    """Texts that reach its input: here-documents, here-strings, what echo pipes into it."""


class ParsedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A whole command line. Without doubts, `segments` is exactly what a shell would run."""

    text: str
    segments: tuple[Segment, ...]
    """In the order of their beginnings. With doubts: as many as could be made out."""
    doubts: tuple[Doubt, ...] = ()

    @property
    def understood(self) -> bool:
        return not self.doubts

    @property
    def too_long(self) -> bool:
        return Doubt.TOO_LONG in self.doubts
