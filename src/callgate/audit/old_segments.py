"""Closed files of the audit log that are old enough to be dropped."""

from __future__ import annotations

import os

from callgate.audit.segments import closed_segments, last_time


def old_segments(path: str, before_ms: int) -> dict[str, int]:
    """Closed files whose every line is older, with their sizes; the oldest first."""
    found: dict[str, int] = {}
    for segment in closed_segments(path):
        try:
            size = os.stat(segment).st_size
            if size and last_time(segment) >= before_ms:
                break
        except FileNotFoundError:  # dropped meanwhile
            continue
        if size:
            found[segment] = size
    return found
