"""Where the audit log lies: the file being written, and the older ones beside it.

    audit.jsonl            written now
    audit.000012.jsonl     closed, newest first ... down to the oldest that is kept
    audit.000012.index     which lines it holds (`indexes`); may be missing
    audit.lock             held by whoever writes; exclusively while a writer opens alone

A file has its number from the beginning: the one being written is the next after the closed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import BinaryIO

_CLOSED = re.compile(r"\.(\d{6,})\.jsonl\Z")
_TIME = re.compile(rb'\A\{"id":"[^"\\]*","ts":(\d{1,15})[,}]')
_LONGEST_LINE = 1024 * 1024


def closed_segments(path: str) -> list[str]:
    """The closed files of a log, oldest first."""
    directory, name = os.path.split(path)
    stem = name.removesuffix(".jsonl")
    try:
        names = os.listdir(directory or ".")
    except FileNotFoundError:
        return []
    found = [
        (int(number[1]), each)
        for each in names
        if each.startswith(stem + ".")
        and (number := _CLOSED.search(each)) is not None
        and each == f"{stem}.{number[1]}.jsonl"
    ]
    return [os.path.join(directory, each) for _, each in sorted(found)]


def all_segments(path: str) -> list[str]:
    """Every file of a log, oldest first."""
    return closed_segments(path) + ([path] if os.path.exists(path) else [])


def open_segments(path: str) -> Iterator[tuple[str, int, BinaryIO]]:
    """Every file of a log with its number, oldest first, opened while it is looked at.

    None is left out because the log goes on meanwhile: the one that is written may be closed
    under a number before its turn comes, and old ones may be dropped."""
    last = 0
    while True:
        for segment in closed_segments(path):
            if number_of(segment) > last:
                last = number_of(segment)
                try:
                    file = open(segment, "rb")  # noqa: SIM115  # closed below
                except FileNotFoundError:  # dropped meanwhile
                    continue
                with file:
                    yield segment, last, file
        try:
            file = open(path, "rb")  # noqa: SIM115  # closed below
        except FileNotFoundError:  # there is none, or it is being closed
            if _newest(path) > last:
                continue
            return
        with file:
            if _newest(path) > last:
                continue
            yield path, last + 1, file
            return


def _newest(path: str) -> int:
    return max(map(number_of, closed_segments(path)), default=0)


def number_of(segment: str) -> int:
    """The number of a closed file."""
    number = _CLOSED.search(segment)
    assert number is not None, segment
    return int(number[1])


def segment_path(path: str, number: int) -> str:
    """The name under which a file is closed."""
    return f"{path.removesuffix('.jsonl')}.{number:06d}.jsonl"


def index_path(segment: str) -> str:
    """Where the index of a closed file lies."""
    return segment.removesuffix(".jsonl") + ".index"


def first_time(segment: str) -> int:
    """Milliseconds since 1970 of the first line of a file; 0 where that cannot be read."""
    try:
        with open(segment, "rb") as file:
            return _time_in(file.readline(_LONGEST_LINE))
    except OSError:
        return 0


def last_time(segment: str) -> int:
    """The same of the last line; of the file itself where that is no record."""
    with open(segment, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LONGEST_LINE))
        lines = file.read().splitlines()
        changed = int(os.fstat(file.fileno()).st_mtime * 1000)
    return (_time_in(lines[-1]) if lines else 0) or changed


def _time_in(line: bytes) -> int:
    found = _TIME.search(line)
    return int(found[1]) if found is not None else 0


def lock_path(path: str) -> str:
    return path.removesuffix(".jsonl") + ".lock"
