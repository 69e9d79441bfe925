"""Find matching lines within a bounded time, whatever the pattern.

A pattern that can only take a short time is matched here; any other in a process of its
own, which is ended when it takes too long.
"""

from __future__ import annotations

import os
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from callgate.core.errors import ToolCancelled, ToolExecutionError, ToolValidationError
from callgate.workspace import match_lines
from callgate.workspace.paths import opening

MAX_PATTERN = 1_000
_SECONDS = 3.0
"""For the lines of one text."""
_START_SECONDS = 20.0
_LOOK_UP_MS = 50
"""Between two looks at whether to go on."""
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
        """The numbers of the first matching lines, from 0."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        answers = select.poll()  # select() knows only the first 1024 descriptors
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
    """Whether a pattern has no way to take long: at most one repetition, and no groups."""
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
