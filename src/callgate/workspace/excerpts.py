"""What of a file is shown: some of its lines, and how to get at the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from callgate.core.errors import ToolExecutionError

MAX_LINES = 2_000
"""Lines that are shown if no `limit` is asked for."""
MAX_TEXT = 256 * 1024
"""Bytes that are shown, whatever is asked for."""

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class Excerpt(msgspec.Struct, frozen=True):
    text: str
    total: int | None
    """Lines of the whole file; None where only a part of it was seen."""
    truncated: bool
    """Less is shown than was asked for; the text ends with a mark that says so."""


def image_type(content: bytes) -> str | None:
    """The media type of an image, told by its first bytes."""
    for signature, media_type in _SIGNATURES:
        if content.startswith(signature):
            return media_type
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return None


def lines_of(text: str) -> list[str]:
    """The lines with their ends; only a line feed ends one, as in every editor."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def excerpt(text: str, offset: int = 1, limit: int | None = None) -> Excerpt:
    """`limit` lines from `offset`, exactly as they stand in the file."""
    lines = lines_of(text)
    if offset > max(len(lines), 1):
        raise ToolExecutionError(
            f"There is no line {offset:,}: the file has {len(lines):,} lines",
            reason="out_of_range",
        )
    chosen = lines[offset - 1 :] if limit is None else lines[offset - 1 : offset - 1 + limit]
    return _shown(chosen, offset, limit, len(lines))


def excerpt_of_part(part: str, offset: int = 1, limit: int | None = None) -> Excerpt:
    """The same of a text that was cut elsewhere: it begins at the line `offset` of its file."""
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
    """The lines with these numbers (from 0), each after its own number (from 1)."""
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
    """The lines that may be shown, and whether the last of them had to be cut."""
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
