"""A host's log file at the terminal: the last of it, then what comes, through its rotation."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

from callgate.cli.ui.visible import visible_text

_LOOK_EVERY_S = 0.2
_LONGEST = 64 * 1024
"""Bytes of a line that goes on without end, before they are shown anyway."""


class Log:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _open(path)

    def last(self, count: int) -> list[str]:
        """The last lines, of the file before this one, too."""
        data = b""
        for file in (_open(f"{self._path}.1"), self._file):
            data += b"" if file is None else file.read()
            if file is not None and file is not self._file:
                file.close()
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        return [_shown(line) for line in lines[-count:]] if count else []

    def follow(self) -> Iterator[str | None]:
        """What is written after that, line by line; None: nothing at the moment."""
        partial = b""
        while True:
            self._file = self._file or _open(self._path)
            if self._file is not None:
                moved = _is_another(self._file, self._path)  # before the last look at it
                *lines, partial = (partial + self._file.read()).split(b"\n")
                yield from map(_shown, lines)
                if len(partial) > _LONGEST:
                    yield _shown(partial)
                    partial = b""
                if moved:
                    self._file.close()
                    self._file = None
                    continue
            yield None
            time.sleep(_LOOK_EVERY_S)


def _open(path: str) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None


def _is_another(file: BinaryIO, path: str) -> bool:
    """Whether the file at the path is no longer the one that is read."""
    try:
        return not os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return True


def _shown(line: bytes) -> str:
    return visible_text(line.decode("utf-8", "backslashreplace"))


def show(log: Log, lines: int, *, follow: bool) -> None:
    """Print its last lines and, if wanted, what is added, until somebody interrupts."""
    for line in log.last(lines):
        print(line)
    for more in log.follow() if follow else ():
        if more is None:
            sys.stdout.flush()
        else:
            print(more)
