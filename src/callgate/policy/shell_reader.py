"""Reads a shell command line into its simple commands, without running or expanding anything.

The language is the common part of `bash -c` and `sh -c`: words, quotes, the operators
; && || | and newline, redirections, comments. Everything else is a doubt. A reading without
doubts is exact. A reading with doubts still lists every command that could be made out,
also inside substitutions and compound commands, so that a denied one is recognised there.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from callgate.policy.shell_lists import Draft, TextReader
from callgate.policy.shell_reading import TooMuch
from callgate.policy.shell_values import MAX_CHARACTERS, Doubt, ParsedCommand, Segment

_SHELL_STATE = frozenset(
    {".", "source", "eval", "exec", "command", "builtin", "enable", "hash", "fc", "trap"}
    | {"alias", "unalias", "set", "shopt", "unset", "export", "readonly", "local", "declare"}
    | {"typeset", "read", "mapfile", "readarray", "getopts", "let", "bind", "umask", "ulimit"}
)
"""They decide what the commands after them mean, or where they are found."""
_COMPUTING = _SHELL_STATE | {"[", "test", "printf", "wait"}


@lru_cache(maxsize=16)
def read_command(text: str) -> ParsedCommand:
    """Read a command line. Never raises; what is not understood is in `doubts`.

    One call is evaluated several times (before and after each wait), so the last readings are
    remembered."""
    doubts: dict[Doubt, None] = {}
    drafts: list[Draft] = []
    if len(text) > MAX_CHARACTERS:
        doubts[Doubt.TOO_LONG] = None
    else:
        if not text.replace("\n", " ").replace("\t", " ").isprintable():
            doubts[Doubt.INVISIBLE] = None
        if text.startswith(("-", "+")):
            doubts[Doubt.OPTION] = None
        try:
            TextReader(doubts, drafts).read(text)
        except (TooMuch, RecursionError):
            doubts[Doubt.TOO_LONG] = None
    segments = _with_piped_text([draft.finish() for draft in drafts])
    _doubt_builtins(segments, doubts)
    return ParsedCommand(text=text, segments=segments, doubts=tuple(doubts))


def _with_piped_text(segments: list[Segment]) -> tuple[Segment, ...]:
    """Give each segment the text that is plainly written before its pipe: `echo ls | sh`."""
    for at in range(1, len(segments)):
        before, segment = segments[at - 1], segments[at]
        if segment.joined_by not in ("|", "|&") or not before.argv or segment.inputs:
            continue
        writes = before.argv[0] in ("echo", "printf")
        inputs = (" ".join(before.argv[1:]),) if writes else before.inputs
        if inputs:
            segments[at] = msgspec.structs.replace(segment, inputs=inputs)
    return tuple(segments)


def _doubt_builtins(segments: tuple[Segment, ...], doubts: dict[Doubt, None]) -> None:
    """Some commands are the shell itself: they change it, or compute with their words."""
    for number, segment in enumerate(segments, 1):
        program, *arguments = segment.argv or ("",)
        if program.startswith("%"):
            doubts[Doubt.JOB] = None
        if number < len(segments) and _changes_shell(program, arguments):
            doubts[Doubt.SHELL_STATE] = None
        if program in _COMPUTING and any(map(_may_run, arguments)):
            doubts[Doubt.ARITHMETIC] = None


def _changes_shell(program: str, arguments: list[str]) -> bool:
    first = arguments[0] if arguments else ""
    if program == "command":
        return first not in ("-v", "-V")
    return program in _SHELL_STATE or (program == "printf" and first.startswith("-v"))


def _may_run(word: str) -> bool:
    """bash computes the index in `test -v 'a[$(id)]'`, and so runs the command in it."""
    return "[" in word and ("$" in word or "`" in word)
