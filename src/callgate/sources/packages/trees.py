"""Whether a directory is as it was: its names, modes, sizes and times. No link is followed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator

from callgate.core.errors import ToolError

MOST_ENTRIES = 500_000
_BLOCK = 512
"""The unit of `st_blocks`, on every file system."""


def fingerprint(directory: str) -> str:
    """Raises OSError, or a `ToolError` where there is too much of it."""
    found = hashlib.sha256()
    for line in sorted(_lines(directory)):
        found.update(line)
    return found.hexdigest()


def disk_usage(directory: str) -> int:
    """Bytes that it takes on the disk while others write to it: what goes away meanwhile is not
    counted. Raises a `ToolError` where there is more than can be looked at, or was hidden."""
    taken: dict[tuple[int, int], int] = {}
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        facts = entry.stat(follow_symlinks=False)
                        taken[facts.st_dev, facts.st_ino] = facts.st_blocks * _BLOCK
                        if stat.S_ISDIR(facts.st_mode):
                            waiting.append(entry.path)
                    if len(taken) > MOST_ENTRIES:
                        raise ToolError(f"It has more than {MOST_ENTRIES} files.")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            raise ToolError("It has a directory that cannot be looked into.") from None
    return sum(taken.values())


def _lines(directory: str) -> Iterator[bytes]:
    for path, facts in _entries(directory):
        name = os.fsencode(os.path.relpath(path, directory))
        detail = b""
        if stat.S_ISLNK(facts.st_mode):
            detail = os.fsencode(os.readlink(path))
        elif _is_file(facts):
            detail = f"{facts.st_size} {facts.st_mtime_ns}".encode()
        yield b"%d:%s %o %d:%s\n" % (len(name), name, facts.st_mode, len(detail), detail)


def _entries(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    waiting, count = [directory], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if count > MOST_ENTRIES:
                    raise ToolError(f"It has more than {MOST_ENTRIES} files.")
                yield entry.path, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def _is_file(facts: os.stat_result) -> bool:
    return stat.S_ISREG(facts.st_mode)
