"""What a host wrote to stderr, and what we noted about it: the last of it, and a bounded file."""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from callgate.core.directories import make_private_directory

TAIL = 4_096
"""Bytes of stderr that an error shows."""
LARGEST = 1024 * 1024
"""Bytes of a log file; what was before is kept in one more."""
STARTING, PROBLEM = "starting: ", "problem: "
QUARANTINED, RESTARTED = "quarantined", "restarted by hand"
"""How the notes begin that tell of its life."""
_NOTE = re.compile(rb"^\[callgate [0-9: -]{19}\] (.*)", re.MULTILINE)
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b")
_LOOK_AT = 64 * 1024
"""Bytes at the end of a log in which the last problem is looked for."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Trouble(NamedTuple):
    problem: str
    given_up: bool
    """It was quarantined."""


def trouble(path: str) -> Trouble | None:
    """What went wrong last, by a log file; None where it was started, or restarted, since.

    Good to show and for nothing else: a host may write whatever it likes into its log.
    """
    problem, given_up = None, False
    for note in _notes(path):
        if note.startswith((STARTING, RESTARTED)):
            problem, given_up = None, False
        elif note.startswith(PROBLEM):
            problem = note.removeprefix(PROBLEM)
        elif note == QUARANTINED:
            given_up = True
    return None if problem is None else Trouble(problem, given_up)


def _notes(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOOK_AT, 0))
            data = file.read(_LOOK_AT)
    except OSError:
        return []
    return [found.decode("utf-8", "replace") for found in _NOTE.findall(data)]


class LifeLog:
    """Without a path nothing is written to the disk."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self._tail = bytearray()
        self._file: int | None = None
        self._size = 0

    @property
    def tail(self) -> str:
        return bytes(self._tail).decode("utf-8", "replace").strip()

    @property
    def last_words(self) -> str:
        """The line that says most of why it ended: the last that names an error, else the last."""
        lines = [line for each in self.tail.splitlines() if (line := each.strip())]
        return ([line for line in lines if _ERROR.match(line)] or lines or [""])[-1]

    def add(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-TAIL]
        self._write(data)

    def note(self, text: str) -> None:
        """Something that we say about the host ourselves."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._write(f"[callgate {stamp}] {text}\n".encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, data: bytes) -> None:
        if self.path is None:
            return
        try:
            if self._file is None or self._size > LARGEST:
                self._open(self.path)
            assert self._file is not None
            self._size += os.write(self._file, data)
        except OSError:
            self.close()  # a full disk: the tail is still there

    def _open(self, path: str) -> None:
        self.close()
        make_private_directory(os.path.dirname(path))
        self._file = os.open(path, _FLAGS, 0o600)
        self._size = os.fstat(self._file).st_size
        if self._size > LARGEST:
            os.replace(path, f"{path}.1")
            os.close(self._file)
            self._file = os.open(path, _FLAGS, 0o600)
            self._size = 0
