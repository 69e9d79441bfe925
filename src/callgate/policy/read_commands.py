"""Read-only command lines: the words are understood, and each program is in a fixed list.

    text -> read_command -> every command: program, options, operands in `read_programs` -> Reads

A line does not count as reading if it has an option outside the list, an abbreviated option, a
variable, a file name pattern or a redirection to a file. The list describes
programs of this kind on Linux and macOS. It is not the boundary: such a line runs in the read-only
sandbox without network, because a repository can make git run programs. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeGuard

import msgspec

from callgate.policy.read_programs import (
    AWK_COLUMN,
    AWK_LINES,
    FIND_TESTS,
    GIT,
    GIT_OPTIONS,
    JQ_DOORS,
    PRINTF_DOORS,
    PROGRAMS,
    SED_LINES,
    UNARY_TESTS,
    VERSIONS,
    Reader,
)
from callgate.policy.shell_patterns import Segment
from callgate.policy.shell_reader import read_command

_MOST_COMMANDS = 20
_LONGEST = 4_000
"""Maximum characters; a longer line needs approval, so that it is reviewed."""
_COUNT = re.compile(r"-\d+")
_FORMAT = re.compile(r"\+.*", re.DOTALL)


class Reads(msgspec.Struct, frozen=True):
    """Files and directories in a read-only command line."""

    paths: tuple[str, ...] = ()
    """Words that may be paths, relative to `directory` if that is not empty."""
    files: frozenset[str] = frozenset()
    """Members of `paths` that must not be directories, because links in them would be followed."""
    directory: str = ""
    """The directory of a leading `cd`."""
    repositories: frozenset[str] = frozenset()
    """Directories in which git starts to look for its repository; "": the working directory."""


@lru_cache(maxsize=64)
def reads_only(command: str) -> Reads | None:
    """Return what the line reads, or None if it may do anything else."""
    if len(command) > _LONGEST:
        return None
    parsed = read_command(command)
    segments = parsed.segments
    if parsed.doubts or not segments or len(segments) > _MOST_COMMANDS:
        return None
    directory = ""
    if segments[0].argv[:1] == ("cd",):
        moved = _directory(segments)
        if moved is None:
            return None
        directory, segments = moved, segments[1:]
    paths: list[str] = []
    files: set[str] = set()
    repositories: set[str] = set()
    for segment in segments:
        found = _paths(segment)
        if found is None:
            return None
        paths += found
        reader = PROGRAMS.get(segment.argv[0])
        if reader is not None and reader.operands == "files":
            files.update(found)
        if segment.argv[0] == "git" and segment.argv[1:] != ("--version",):
            repositories.add(_git_directory(segment.argv))
    return Reads(tuple(dict.fromkeys(paths)), frozenset(files), directory, frozenset(repositories))


def _directory(segments: Sequence[Segment]) -> str | None:
    """Return the directory of `cd DIRECTORY && ...`, or None if commands could run if it fails."""
    first, *others = segments
    joined = all(each.joined_by in ("&&", "|") for each in others)
    if not others or others[0].joined_by != "&&" or not joined or not _is_plain(first):
        return None
    words = first.argv[1:]
    return words[0] if len(words) == 1 and not words[0].startswith(("-", "+")) else None


def _is_plain(segment: Segment) -> bool:
    return (
        bool(segment.argv)
        and segment.literal
        and not segment.nested
        and not segment.assignments
        and all(redirect.harmless for redirect in segment.redirects)
    )


def _paths(segment: Segment) -> list[str] | None:
    """Return the words of one command that may be paths, or None if it may do more than read."""
    if not _is_plain(segment):
        return None
    program, *words = segment.argv
    if program in VERSIONS and words and " ".join(words) in VERSIONS[program]:
        return []
    if program == "git":
        return _git(words)
    if program == "find":
        return _find(words)
    if program in ("test", "["):
        return _test(program, words)
    reader = PROGRAMS.get(program)
    return None if reader is None else _read(reader, words)


def _read(reader: Reader, words: Sequence[str]) -> list[str] | None:
    parsed = _operands(reader, words)
    if parsed is None:
        return None
    operands, options, values = parsed
    if reader.most is not None and len(operands) > reader.most:
        return None
    if reader.needs and not reader.needs & options:
        return None
    if operands and reader.operands_with and not reader.operands_with & options:
        return None
    if reader.script and not options & reader.script_options:
        if not operands or not _is_harmless(reader.script, operands[0]):
            return None
        operands = operands[1:]
    if reader.operands == "none":
        return None if operands else values
    if reader.operands == "text":
        return values
    if reader.operands == "format":
        return values if all(map(_FORMAT.fullmatch, operands)) else None
    return [each for each in (*operands, *values) if each != "-"]


def _is_harmless(kind: str, script: str) -> bool:
    """Whether the first operand, which a program executes or searches for, only reads."""
    if kind == "sed":
        return all(SED_LINES.fullmatch(each.strip(" ")) for each in script.split(";"))
    if kind == "awk":
        return _is_harmless_awk(script)
    if kind == "jq":
        return JQ_DOORS.search(script) is None
    if kind == "printf":
        return PRINTF_DOORS.search(script) is None
    return True  # a pattern


def _is_harmless_awk(script: str) -> bool:
    """Whether a program has at most one test of the line number and one `print` of columns."""
    test, brace, action = script.partition("{")
    if test.strip(" ") and not AWK_LINES.fullmatch(test.strip(" ")):
        return False
    if not brace:
        return bool(test.strip(" "))
    action = action.strip(" ")
    printed = action.removesuffix("}").strip(" ").removeprefix("print")
    if not action.startswith("print") or not action.endswith("}") or printed[:1] not in ("", " "):
        return False
    columns = printed.split(",") if printed else []
    return all(AWK_COLUMN.fullmatch(each.strip(" ")) for each in columns)


def _operands(
    reader: Reader, words: Iterable[str]
) -> tuple[list[str], frozenset[str], list[str]] | None:
    """Return operands, options and the values of options, or None for an unlisted option."""
    operands: list[str] = []
    options: set[str] = set()
    values: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            operands += left
        elif word == "-" or not word.startswith("-"):
            operands.append(word)
            if reader.options_first:
                operands += left
        elif reader.counts and _COUNT.fullmatch(word):
            continue
        else:
            read = _long(reader, word[2:]) if word.startswith("--") else _letters(reader, word[1:])
            if read is None:
                return None
            names, takes_next = read
            options |= names
            if not takes_next:
                continue
            value = next(left, None)
            if not _is_value(value):
                return None
            if not names & reader.texts:
                values.append(value)
    return operands, frozenset(options), values


def _long(reader: Reader, option: str) -> tuple[set[str], bool] | None:
    """Return the name of a long option and whether the next word is its value; None: not listed."""
    name, equals, value = option.partition("=")
    if not equals and name in reader.long_values:
        return {name}, True
    if not equals:
        listed = name in reader.long | reader.long_optional
    elif name in reader.long_formats:
        listed = "%G" not in value
    else:
        listed = name in reader.long_values | reader.long_optional
    return ({name}, False) if listed else None


def _letters(reader: Reader, cluster: str) -> tuple[set[str], bool] | None:
    """Parse combined short options.

    Return their letters, and whether the next word is the value of the last one. None: not listed.
    """
    seen: set[str] = set()
    for at, letter in enumerate(cluster, 1):
        seen.add(letter)
        remainder = cluster[at:]
        if letter in reader.optional:
            return seen, False
        if letter in reader.values:
            is_odd = reader.apart and (at > 1 or (remainder and not remainder.isdecimal()))
            return None if is_odd else (seen, not remainder)
        if letter not in reader.flags:
            return None
    return seen, False


def _is_value(word: str | None) -> TypeGuard[str]:
    """Whether a word can only be the value of the option before it, not another option."""
    return word is not None and (not word.startswith("-") or bool(_COUNT.fullmatch(word)))


def _git(words: list[str]) -> list[str] | None:
    """Parse a git command, whose operands may all be paths.

    git runs programs that the configuration of its repository names, but only in the sandbox.
    """
    paths: list[str] = []
    while words and words[0].startswith("-"):
        if words[0] == "-C" and len(words) > 1 and not words[1].startswith("-"):
            paths.append(words[1])
            words = words[2:]
        elif words[0] in GIT_OPTIONS:
            words = words[1:]
        else:
            return None
    if len(paths) > 1 or not words:
        return None
    name, remainder = words[0], words[1:]
    if remainder and f"{name} {remainder[0]}" in GIT:
        name, remainder = f"{name} {remainder[0]}", remainder[1:]
    reader = GIT.get(name)
    found = None if reader is None else _read(reader, remainder)
    if found is None:
        return None
    below = paths[0] if paths else ""
    return paths + [f"{below}/{each}" if below and each[:1] != "/" else each for each in found]


def _git_directory(argv: Sequence[str]) -> str:
    """Return the directory of `git -C DIRECTORY`, which precedes the first other word."""
    for before, word in pairwise(argv):
        if not word.startswith("-"):
            return word if before == "-C" else ""
    return ""


def _find(words: list[str]) -> list[str] | None:
    """Parse a find command that only tests: no `-exec`, `-delete`, `-fprint` or followed links."""
    at = 0
    while at < len(words) and not words[at].startswith(("-", "(", "!")):
        at += 1
    paths, left = words[:at], iter(words[at:])
    for word in left:
        count = FIND_TESTS.get(word)
        if count is None:
            return None
        values = [next(left, None) for _ in range(count)]
        if None in values:
            return None
        if word == "-newer":
            paths += [each for each in values if each is not None]
    return paths


def _test(program: str, words: list[str]) -> list[str] | None:
    if program == "[":
        if words[-1:] != ["]"]:
            return None
        words = words[:-1]
    if words[:1] == ["!"]:
        words = words[1:]
    if len(words) != 2 or words[0] not in UNARY_TESTS:
        return None
    return [words[1]]
