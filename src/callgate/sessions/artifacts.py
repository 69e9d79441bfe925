"""What calls put aside for their sessions: one directory each, removed with the session."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

_log = logging.getLogger("callgate.sessions")


def drop_artifacts(root: str, session: str) -> int:
    """Remove the directory of a session; the bytes that were in it."""
    directory = directory_of(root, session)
    if directory is None:
        return 0
    size = size_of(directory)
    import shutil  # lazy: heavy, and few delete anything  # noqa: PLC0415

    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return 0
    except OSError as error:
        _log.warning("%s could not be removed: %s", directory, error)
        return max(0, size - size_of(directory))
    return size


def directory_of(root: str, session: str) -> str | None:
    """None for an id that is no name that we gave."""
    if session in ("", ".", "..") or os.path.basename(session) != session:
        return None
    return os.path.join(root, session)


def directories(root: str) -> list[tuple[str, float]]:
    """The sessions that have one, and when something was last put there."""
    try:
        with os.scandir(root) as entries:
            return [
                (entry.name, entry.stat(follow_symlinks=False).st_mtime)
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []


def old_files(directory: str, before: float) -> dict[str, int]:
    """Files that were last changed before a moment, with their sizes."""
    return {path: size for path, size, changed in _files(directory) if changed < before}


def size_of(directory: str) -> int:
    return sum(size for _, size, _ in _files(directory))


def _files(directory: str) -> Iterator[tuple[str, int, float]]:
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            try:
                status = os.lstat(path)
            except OSError:  # removed meanwhile
                continue
            yield path, status.st_size, status.st_mtime
