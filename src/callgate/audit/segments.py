"""Where the audit log lies: the file being written, and the older ones beside it.

    audit.jsonl            written now
    audit.000012.jsonl     closed, newest first ... down to the oldest that is kept
    audit.lock             held by whoever writes; exclusively while the files change
"""

from __future__ import annotations

import os
import re

_CLOSED = re.compile(r"\.(\d{6,})\.jsonl\Z")


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
        if each.startswith(stem + ".") and (number := _CLOSED.search(each)) is not None
        and each == f"{stem}.{number[1]}.jsonl"
    ]  # fmt: skip
    return [os.path.join(directory, each) for _, each in sorted(found)]


def all_segments(path: str) -> list[str]:
    """Every file of a log, oldest first."""
    return closed_segments(path) + ([path] if os.path.exists(path) else [])


def next_segment(path: str) -> str:
    """The name under which the file being written is to be closed."""
    segments = closed_segments(path)
    number = int(_CLOSED.search(segments[-1])[1]) + 1 if segments else 1  # type: ignore[index]
    return f"{path.removesuffix('.jsonl')}.{number:06d}.jsonl"


def lock_path(path: str) -> str:
    return path.removesuffix(".jsonl") + ".lock"
