"""A log that nobody can fill: a line that repeats is counted, and a file that grows is rotated."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import TextIO

_MOST = 5
"""Lines alike, of one logger and one message, that are written within a while ..."""
_WHILE_S = 60.0
"""... after which it is said how many more there were."""
_MOST_KINDS = 500
LARGEST = 1024 * 1024
"""Bytes of a log file; the one before is kept beside it."""


class Repeats:
    """Which lines are written, and how many of each kind are not."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: dict[tuple[str, int, str], tuple[float, int]] = {}
        """By kind: when the first came, and how many did."""

    def admits(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:  # somebody looks for a fault, and wants all of it
            return True
        kind = record.name, record.levelno, str(record.msg)
        since, count = self._counts.get(kind, (self._now(), 0))
        if count or len(self._counts) < _MOST_KINDS:
            self._counts[kind] = since, count + 1
        return count < _MOST

    def due(self, *, all: bool = False) -> Iterator[logging.LogRecord]:
        """For each kind whose while is over, how many lines of it were left out, if any."""
        over = self._now() - _WHILE_S
        for kind, (since, count) in list(self._counts.items()):
            if since <= over or all:
                del self._counts[kind]
                if count > _MOST:
                    yield _left_out(kind, count - _MOST)


class LimitedLog(logging.StreamHandler[TextIO]):
    """A log on a stream, within limits."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        for summary in self._repeats.due():
            super().emit(summary)
        if self._repeats.admits(record):
            super().emit(record)

    def close(self) -> None:
        try:
            for summary in self._repeats.due(all=True):
                super().emit(summary)
        finally:
            super().close()


def _left_out(kind: tuple[str, int, str], count: int) -> logging.LogRecord:
    name, level, message = kind
    return logging.LogRecord(name, level, "", 0, f"{count} more like this: {message}", None, None)


def rotate(path: str, largest: int = LARGEST) -> None:
    """Begin the log file anew that our stdout and stderr go to, if they do and it is large."""
    try:
        status, ours = os.stat(path, follow_symlinks=False), os.fstat(2)
        if not os.path.samestat(status, ours) or status.st_size <= largest:
            return
        os.replace(path, f"{path}.1")
        write_to(path)
    except OSError:  # there is no room for another, or no file can be opened: later
        return


def write_to(path: str) -> None:
    """Have stdout and stderr go to a file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)
