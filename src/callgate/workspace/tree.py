r"""Iterate over the files below a directory that match a glob and that no ignore rule excludes.

The search opens every directory beneath its parent and follows no link, so it cannot leave the
workspace. It returns only files that match, that no ignore rule excludes and that may be read.
Globs have `*`, `?`, `[ab]`, `{a,b}`, and `**` for any directories; a pattern without a slash
matches the last name, at any depth.

Ignore rules of .gitignore files, at every level, as git reads them.

    *.o           a name, at any depth              /doc/*.html   a path from that directory
    build/        only a directory                  !keep.o       included again
    a/**/b        any directories between           \#, \!       these characters

A deeper file overrides a shallower one, and in one directory .callgateignore overrides .ignore,
which overrides .gitignore. A file in an ignored directory cannot be included again. A line that git
would never match (an open bracket, a backslash at its end) is skipped. Matching never backtracks.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import string
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from callgate.core.errors import ToolCancelled, ToolPermissionDenied, ToolValidationError
from callgate.core.patterns import (
    ANY,
    DEEP,
    STAR,
    Match,
    OneOf,
    Part,
    PathGlob,
    Token,
    character_class,
    compile_tokens,
    parse_wildcards,
    split_names,
)
from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import DIRECTORY, READ, Directory
from callgate.workspace.paths import shown

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


_MAX_PATTERN = 1_000
_MAX_CHOICES = 256
_BRACES = re.compile(r"\{([^{}]*)\}")


class Glob:
    """A compiled pattern. Raises `ToolValidationError` if it is invalid."""

    def __init__(self, pattern: str) -> None:
        if not pattern or "\0" in pattern or len(pattern) > _MAX_PATTERN:
            raise ToolValidationError(f"Not a usable glob pattern: {shown(pattern)}")
        self._choices = [_read(choice) for choice in _expanded(pattern)]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(choice.matches(names) for choice in self._choices)


def _expanded(pattern: str) -> Iterator[str]:
    """Expand `{a,b}`, innermost first."""
    pending, count = [pattern], 0
    while pending:
        text = pending.pop()
        braces = _BRACES.search(text)
        if braces is None:
            yield text
            continue
        choices = braces[1].split(",")
        count += len(choices)
        if count > _MAX_CHOICES:
            raise ToolValidationError(f"Too many choices in glob pattern: {shown(pattern)}")
        pending.extend(text[: braces.start()] + one + text[braces.end() :] for one in choices)


def _read(pattern: str) -> PathGlob:
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if "/" not in pattern:
        names = [DEEP, *names]
    return PathGlob(
        None if name == DEEP else compile_tokens(parse_wildcards(name, classes=True))
        for name in names
    )


MAX_DEPTH = 100
"""Maximum depth of directories: each is open while the search is inside it."""
MAX_ENTRIES = 500_000
_MAX_RULES = 256 * 1024
_NOTHING = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class File(NamedTuple):
    """A regular file, valid while its directory is open."""

    dir_fd: int
    name: bytes
    path: str
    """Path for other tools: relative to the workspace, or absolute in another root."""


class Tree:
    """The files below `path` whose relative path matches; a file is a tree of one."""

    def __init__(
        self,
        files: WorkspaceFileAPI,
        path: str,
        glob: Glob | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        deadline: float = math.inf,
    ) -> None:
        """`deadline`: end of the search by the monotonic clock."""
        self.complete = True
        """False if a limit or a failure made it incomplete."""
        self._files = files
        self._path = path
        self._glob = glob
        self._should_stop = should_stop
        self._deadline = deadline
        self._seen = 0

    def __iter__(self) -> Iterator[File]:
        fd, real, root = self._files.wall.open(self._path, READ)
        try:
            self._files.judge(real, "read", root, self._path)
            mode = os.fstat(fd).st_mode
            relative = root.relative(real)
            names = [] if relative == "." else relative.split("/")
            if stat.S_ISREG(mode):
                yield from self._alone(root, names)
            elif stat.S_ISDIR(mode):
                start = len(names)
                yield from self._below(fd, root, names, start, self._rules_above(root, names))
            else:
                raise refusals.wrong_type(self._path, "is not a directory")
        finally:
            os.close(fd)

    def _alone(self, root: Directory, names: list[str]) -> Iterator[File]:
        with self._files.wall.spot(self._path) as spot:
            if len(spot.remaining) == 1 and (self._glob is None or self._glob.matches(names[-1])):
                yield File(spot.fd, spot.remaining[0], self._named(root, names))

    def _below(
        self, fd: int, root: Directory, names: list[str], start: int, above: Ignores
    ) -> Iterator[File]:
        try:
            with os.scandir(fd) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            self._passed_over(error)
            return
        ignores = above.within(self._rules(fd, {entry.name for entry in entries}))
        for entry in entries:
            self._seen += 1
            if self._should_stop():
                raise ToolCancelled
            if self._seen > MAX_ENTRIES or time.monotonic() > self._deadline:
                self.complete = False
                return
            path = [*names, entry.name]
            is_directory = entry.is_dir(follow_symlinks=False)
            if not is_directory and not entry.is_file(follow_symlinks=False):
                continue
            if not _is_text(entry.name) or ignores.cover(path, is_directory):
                continue
            if is_directory:
                yield from self._into(fd, root, path, start, ignores)
            elif self._wanted(root, path, start):
                yield File(fd, os.fsencode(entry.name), self._named(root, path))

    def _into(
        self, fd: int, root: Directory, path: list[str], start: int, ignores: Ignores
    ) -> Iterator[File]:
        if len(path) - start > MAX_DEPTH:
            self.complete = False
            return
        try:
            inner = self._files.wall.opener.step(fd, os.fsencode(path[-1]), READ | os.O_DIRECTORY)
        except OSError as error:
            self._passed_over(error)
            return
        try:
            yield from self._below(inner, root, path, start, ignores)
        finally:
            os.close(inner)

    def _passed_over(self, error: OSError) -> None:
        """Handle a skipped directory: without access, or deleted, it counts as empty; otherwise its
        content is unknown."""
        if error.errno not in _NOTHING:
            self.complete = False

    def _wanted(self, root: Directory, path: list[str], start: int) -> bool:
        if self._glob is not None and not self._glob.matches("/".join(path[start:])):
            return False
        try:
            self._files.judge(root.prefix + "/".join(path), "read", root, self._path)
        except ToolPermissionDenied:
            return False
        return True

    def _named(self, root: Directory, path: list[str]) -> str:
        prefix = "" if root is self._files.wall.workspace else root.prefix
        return prefix + "/".join(path)

    def _rules_above(self, root: Directory, names: list[str]) -> Ignores:
        """Return the rules of the directories above the start of the search.

        Rules that would exclude the start are ignored, because it was requested by name.
        """
        opener, ignores, fds = self._files.wall.opener, Ignores(), [root.fd]
        try:
            for depth, name in enumerate(names, start=1):
                ignores = ignores.within(self._rules(fds[-1], NAMES))
                if ignores.cover(names[:depth], is_directory=True):
                    return Ignores(depth=len(names))
                fds.append(opener.step(fds[-1], os.fsencode(name), DIRECTORY))
        except OSError:
            return Ignores(depth=len(names))  # it is changing: search all of it
        finally:
            for fd in fds[1:]:
                os.close(fd)
        return ignores

    def _rules(self, fd: int, present: Iterable[str]) -> list[str]:
        there = frozenset(present)
        texts = (self._rules_in(fd, name) for name in NAMES if name in there)
        return [text for text in texts if text]

    def _rules_in(self, dir_fd: int, name: str) -> str:
        try:
            fd = self._files.wall.opener.step(dir_fd, name.encode(), READ)
        except OSError:
            return ""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            return os.read(fd, _MAX_RULES).decode("utf-8", "replace")
        except OSError:
            return ""
        finally:
            os.close(fd)


def _is_text(name: str) -> bool:
    """Whether a name is valid text: other names can be neither displayed nor requested."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)
