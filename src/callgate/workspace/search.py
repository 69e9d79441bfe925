"""Find files by name and lines by content, within limits that the result reports.

A pattern that can only take a short time is matched in this process. Any other pattern is matched
in a separate process, which is killed at its time limit.
"""

from __future__ import annotations

import os
import re
import select
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Self

import msgspec

from callgate.core.errors import ToolCancelled, ToolExecutionError, ToolValidationError
from callgate.workspace import match_lines
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.match_lines import LONGEST_LINE
from callgate.workspace.opening import READ, Opener
from callgate.workspace.paths import opening
from callgate.workspace.tree import File, Glob, Tree

MAX_PATTERN = 1_000
_SECONDS = 3.0
"""Time limit for the lines of one text."""
_START_SECONDS = 20.0
_LOOK_UP_MS = 50
"""Interval between checks whether to continue."""
_BACKREFERENCE = re.compile(r"\\[1-9]")
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class LineMatcher:
    """One pattern for many texts. Raises `ToolValidationError` for a wrong pattern."""

    def __init__(
        self,
        pattern: str,
        *,
        ignore_case: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        if len(pattern) > MAX_PATTERN:
            raise ToolValidationError("The pattern is too long", reason="invalid_pattern")
        self._flags = re.IGNORECASE if ignore_case else re.NOFLAG
        try:
            self._pattern = re.compile(pattern, self._flags)
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            raise ToolValidationError(
                f"Not a regular expression: {error}", reason="invalid_pattern"
            ) from error
        self._should_stop = should_stop
        self._process: subprocess.Popen[bytes] | None = None

    def lines(self, text: bytes, most: int) -> list[int]:
        """Return the numbers of the first matching lines, from 0."""
        if is_quick(self._pattern.pattern):
            deadline = time.monotonic() + _SECONDS
            return match_lines.matching(
                self._pattern,
                text.decode("utf-8", "replace"),
                most,
                lambda: self._look_up(deadline),
            )
        try:
            if self._process is None:
                self._process = _started()
                self._send(bytes([int(self._flags)]) + self._pattern.pattern.encode())
                self._receive(_START_SECONDS)
            self._send(struct.pack("<I", most) + text)
            answer = self._receive(_SECONDS)
        except BaseException:
            self._end()
            raise
        return [number for (number,) in struct.iter_unpack("<I", answer)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _send(self, body: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            left = memoryview(match_lines.frame(body))
            while left:
                left = left[self._process.stdin.write(left) :]
        except OSError as error:
            raise _broken() from error

    def _receive(self, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        (length,) = struct.unpack("<I", self._read(4, deadline))
        return self._read(length, deadline)

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        fd, chunks = self._process.stdout.fileno(), []
        answers = select.poll()  # select() supports only the first 1024 descriptors
        answers.register(fd, select.POLLIN)
        while count:
            self._look_up(deadline)
            if not answers.poll(_LOOK_UP_MS):
                continue
            part = os.read(fd, min(count, 1 << 16))
            if not part:
                raise _broken()
            chunks.append(part)
            count -= len(part)
        return b"".join(chunks)

    def _look_up(self, deadline: float) -> None:
        if self._should_stop():
            raise ToolCancelled
        if time.monotonic() > deadline:
            raise _too_slow()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.__exit__(None, None, None)  # closes the pipes and waits


def is_quick(pattern: str) -> bool:
    """Whether a pattern cannot take long: at most one repetition, and no groups."""
    if any(char in pattern for char in "({") or _BACKREFERENCE.search(pattern):
        return False
    return sum(map(pattern.count, "*+?")) <= 1


def _started() -> subprocess.Popen[bytes]:
    try:
        with opening():
            return subprocess.Popen(
                [sys.executable, "-I", "-S", match_lines.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={name: os.environ[name] for name in _LIBRARIES if name in os.environ},
            )
    except OSError as error:
        raise _broken() from error


def _broken() -> ToolExecutionError:
    return ToolExecutionError("Matching stopped unexpectedly", reason="matching_broken")


def _too_slow() -> ToolExecutionError:
    return ToolExecutionError(
        "The pattern takes too long to match; avoid repetitions inside repetitions",
        reason="pattern_too_slow",
    )


MAX_FILE = 8 * 1024 * 1024
"""Maximum bytes of a file that is searched."""
MAX_TOTAL = 1024 * 1024 * 1024
MAX_SECONDS = 30.0
_SNIFF = 8_192
"""Bytes at the beginning in which a NUL marks a file as not text."""


def _never() -> bool:
    return False


class Paths(msgspec.Struct, frozen=True):
    paths: list[str]
    complete: bool
    """False if there may be more, because a limit was reached."""


class Match(msgspec.Struct, frozen=True):
    path: str
    line: int
    """From 1."""
    text: str
    before: list[str] = []
    after: list[str] = []


class Matches(msgspec.Struct, frozen=True):
    matches: list[Match]
    complete: bool
    files_searched: int
    too_large: list[str]
    """Files that were not searched because of their size."""


def find(
    files: WorkspaceFileAPI,
    pattern: str,
    path: str = ".",
    limit: int = 1_000,
    *,
    should_stop: Callable[[], bool] = _never,
) -> Paths:
    """Return the sorted files below `path` whose name or relative path matches a glob."""
    tree = Tree(files, path, Glob(pattern), should_stop, time.monotonic() + MAX_SECONDS)
    found: list[str] = []
    for file in tree:
        if len(found) >= limit:
            return Paths(found, complete=False)
        found.append(file.path)
    return Paths(found, complete=tree.complete)


def search(
    files: WorkspaceFileAPI,
    pattern: str,
    path: str = ".",
    *,
    glob: str | None = None,
    ignore_case: bool = False,
    context: int = 0,
    limit: int = 1_000,
    should_stop: Callable[[], bool] = _never,
) -> Matches:
    """Return the lines below `path` that a regular expression matches.

    Binary files are skipped, and only the first 2,000 characters of a line count.
    """
    deadline = time.monotonic() + MAX_SECONDS
    tree = Tree(files, path, Glob(glob) if glob else None, should_stop, deadline)
    matches: list[Match] = []
    too_large: list[str] = []
    searched, total, complete = 0, 0, True
    with LineMatcher(pattern, ignore_case=ignore_case, should_stop=should_stop) as matcher:
        for file in tree:
            if should_stop():
                raise ToolCancelled
            if total > MAX_TOTAL or time.monotonic() > deadline:
                complete = False
                break
            content = _content(files.wall.opener, file)
            if content is None:
                too_large.append(file.path)
                continue
            searched, total = searched + 1, total + len(content)
            if b"\0" in content[:_SNIFF]:
                continue
            numbers = matcher.lines(content, limit - len(matches) + 1)
            matches.extend(_matches(file.path, content, numbers, context))
            if len(matches) > limit:
                del matches[limit:]
                complete = False
                break
    return Matches(matches, complete and tree.complete, searched, too_large)


def _content(opener: Opener, file: File) -> bytes | None:
    """Return the bytes of a file; None if it is too large, empty if it is unreadable."""
    try:
        fd = opener.step(file.dir_fd, file.name, READ)
    except OSError:
        return b""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return b""
        if status.st_size > MAX_FILE:
            return None
        blocks, size = [], 0
        while size <= MAX_FILE and (block := os.read(fd, 1 << 20)):
            blocks.append(block)
            size += len(block)
        return b"".join(blocks) if size <= MAX_FILE else None
    except OSError:
        return b""
    finally:
        os.close(fd)


def _matches(path: str, content: bytes, numbers: list[int], context: int) -> Iterator[Match]:
    if not numbers:
        return
    lines = content.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    for number in numbers:
        if number >= len(lines):
            continue  # a pattern that matches nothing matches after the last line, too
        yield Match(
            path,
            number + 1,
            _line(lines[number]),
            [_line(line) for line in lines[max(number - context, 0) : number]],
            [_line(line) for line in lines[number + 1 : number + 1 + context]],
        )


def _line(line: str) -> str:
    return line[:LONGEST_LINE].removesuffix("\r")
