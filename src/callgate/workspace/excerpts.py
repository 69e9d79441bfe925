"""Excerpts of long files and outputs: the visible lines, and the location of the rest.

The lines of a file are chosen by pure functions. Output beyond the limits is written to a file that
the excerpt names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import msgspec

from callgate.core.errors import ToolExecutionError
from callgate.workspace.paths import opening

MAX_LINES = 2_000
"""Default number of lines."""
MAX_TEXT = 256 * 1024
"""Maximum number of bytes, for any request."""

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class Excerpt(msgspec.Struct, frozen=True):
    text: str
    total: int | None
    """Number of lines of the whole file; None if only a part was read."""
    truncated: bool
    """Whether the text is shorter than requested; the text then ends with a mark."""


def image_type(content: bytes) -> str | None:
    """Return the media type of an image, from its first bytes."""
    for signature, media_type in _SIGNATURES:
        if content.startswith(signature):
            return media_type
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return None


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends. A line ends at a line feed only, as in every editor."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def excerpt(text: str, offset: int = 1, limit: int | None = None) -> Excerpt:
    """Return `limit` lines from `offset`, unchanged."""
    lines = lines_of(text)
    if offset > max(len(lines), 1):
        raise ToolExecutionError(
            f"There is no line {offset:,}: the file has {len(lines):,} lines",
            reason="out_of_range",
        )
    chosen = lines[offset - 1 :] if limit is None else lines[offset - 1 : offset - 1 + limit]
    return _shown(chosen, offset, limit, len(lines))


def excerpt_of_part(part: str, offset: int = 1, limit: int | None = None) -> Excerpt:
    """Return an excerpt of a part of a file, which begins at the line `offset` of the file."""
    lines = lines_of(part)
    if not lines and offset > 1:
        raise ToolExecutionError(
            f"There is no line {offset:,}: the file ends before it", reason="out_of_range"
        )
    all_seen = limit is None or len(lines) < limit
    return _shown(lines[:limit], offset, limit, offset - 1 + len(lines) if all_seen else None)


def _shown(lines: list[str], offset: int, limit: int | None, total: int | None) -> Excerpt:
    shown, cut = _fitting(lines if limit is not None else lines[:MAX_LINES])
    if not cut and len(shown) == len(lines):
        return Excerpt("".join(shown), total, truncated=False)
    last = offset + len(shown) - 1
    where = f"lines {offset:,}-{last:,}{'' if total is None else f' of {total:,}'} shown"
    if cut:
        where += f", line {last:,} only in part"
    onward = "" if last == total else f"; continue with offset={last + 1}"
    return Excerpt(_marked(shown, f"[truncated: {where}{onward}]"), total, truncated=True)


def matching(
    text: str, numbers: Iterable[int], offset: int = 1, limit: int | None = None
) -> Excerpt:
    """Return the lines with these numbers (from 0), each with its number (from 1)."""
    lines = lines_of(text)
    found = [n for n in numbers if offset - 1 <= n < len(lines)]
    numbered = [f"{n + 1}:{lines[n].rstrip(chr(10))}\n" for n in found[: limit or len(found)]]
    shown, cut = _fitting(numbered if limit is not None else numbered[:MAX_LINES])
    if not numbered:
        return Excerpt("No line matches", len(lines), truncated=False)
    if not cut and len(shown) == len(numbered):
        return Excerpt("".join(shown), len(lines), truncated=False)
    onward = found[len(shown)] + 1 if len(shown) < len(found) else None
    mark = f"[truncated: {len(shown):,} of {len(found):,} matching lines shown"
    mark += f"; continue with offset={onward}]" if onward else "]"
    return Excerpt(_marked(shown, mark), len(lines), truncated=True)


def _fitting(lines: list[str]) -> tuple[list[str], bool]:
    """Return the lines that fit, and whether the last one was truncated."""
    size = 0
    for count, line in enumerate(lines):
        size += len(line.encode())
        if size > MAX_TEXT:
            if count:
                return lines[:count], False
            return [line.encode()[:MAX_TEXT].decode("utf-8", "ignore")], True
    return lines, False


def _marked(lines: list[str], mark: str) -> str:
    text = "".join(lines)
    return text + ("" if text.endswith("\n") else "\n") + mark


MAX_BYTES = 256 * 1024

Artifact = Callable[[str], str | None]
"""Write an artifact of this call and return its path; None if artifacts are not stored."""


class Shown(msgspec.Struct, frozen=True):
    text: str
    truncated: bool


def show(
    lines: Sequence[str],
    most: int,
    artifact: Artifact,
    *,
    name: str,
    complete: bool = True,
    unit: str = "lines",
) -> Shown:
    """Return the first lines as text. If there are more, all lines go into an artifact that the
    text names.

    `complete` is False if `lines` itself is incomplete.
    """
    fitting = _fitting_count(lines, most)
    if fitting == len(lines) and complete:
        return Shown("\n".join(lines), truncated=False)
    of = f"of {len(lines):,}" if complete else f"of at least {len(lines):,}"
    artifact_path = _keep(lines, artifact, name) if fitting < len(lines) else None
    where = f"; all of them: {artifact_path}" if artifact_path else ""
    mark = f"[truncated: {fitting:,} {of} {unit} shown{where}]"
    return Shown("\n".join([*lines[:fitting], mark]), truncated=True)


def _fitting_count(lines: Sequence[str], most: int) -> int:
    size = 0
    for count, line in enumerate(lines[:most]):
        size += len(line.encode("utf-8", "replace")) + 1
        if size > MAX_BYTES:
            return count
    return min(most, len(lines))


def _keep(lines: Sequence[str], artifact: Artifact, name: str) -> str | None:
    path = artifact(name)
    if path is None:
        return None
    try:
        with opening():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            left = memoryview("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
    except OSError:
        return None  # the result is more important than the artifact
    return path
