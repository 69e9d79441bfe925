"""Text of files: changes and their diffs, and excerpts of long files and outputs.

The lines of a file are chosen by pure functions. Output beyond the limits is written to a file that
the excerpt names.

Changes to text, and their diffs: pure functions.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from callgate.core.errors import ToolExecutionError, ToolValidationError
from callgate.workspace.paths import opening

_CONTEXT = 3
_COMPARABLE = 4_000_000
"""Maximum product of the numbers of old and new lines that are compared line by line. A larger
change is described as one block, because a comparison could take minutes.
"""
_MOST_EQUAL = 50_000
"""Pairs of a line before and an equal one after: each is compared again for each change."""

_Change = tuple[str, int, int, int, int]


def replace_once(text: str, old: str, new: str) -> str:
    """Replace `old` with `new`; `old` must occur exactly once."""
    if not old:
        raise ToolValidationError("The text to replace is empty", reason="empty_match")
    first = text.find(old)
    if first < 0:
        raise ToolExecutionError(_not_found(text, old), reason="no_match")
    if text.find(old, first + 1) >= 0:
        raise ToolExecutionError(
            "The text to replace occurs more than once; add lines around it until it is unique",
            reason="many_matches",
        )
    return text[:first] + new + text[first + len(old) :]


def _not_found(text: str, old: str) -> str:
    message = "The text to replace does not occur in the file"
    if "\r\n" in text and old in text.replace("\r\n", "\n"):
        return f"{message}: its lines end with CRLF"
    return message


def diff(old: str, new: str, path: str, *, max_lines: int = 400) -> str:
    """Return the change as a unified diff; cut after `max_lines`, with a mark."""
    lines = list(_unified(_lines(old), _lines(new), path))
    if len(lines) > max_lines:
        hidden = len(lines) - max_lines
        lines[max_lines:] = [f"[{hidden} more lines of this change are not shown]"]
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
    else:
        lines.pop()
    return lines


def _unified(before: list[str], after: list[str], path: str) -> Iterator[str]:
    changes = _changes(before, after)
    if not changes:
        return
    yield f"--- {path}" if before else "--- /dev/null"
    yield f"+++ {path}"
    for hunk in _hunks(changes):
        first, last = hunk[0], hunk[-1]
        start, end = max(first[1] - _CONTEXT, 0), min(last[2] + _CONTEXT, len(before))
        shift, tail = first[3] - first[1], last[4] - last[2]
        yield f"@@ -{_span(start, end)} +{_span(start + shift, end + tail)} @@"
        at = start
        for _, i, j, k, m in hunk:
            yield from (f" {line}" for line in before[at:i])
            yield from (f"-{line}" for line in before[i:j])
            yield from (f"+{line}" for line in after[k:m])
            at = j
        yield from (f" {line}" for line in before[at:end])


def _changes(before: list[str], after: list[str]) -> list[_Change]:
    """Return the differences. Equal beginnings and ends are skipped before the comparison."""
    head, shorter = 0, min(len(before), len(after))
    while head < shorter and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if not old and not new:
        return []
    if not old or not new:
        return [("replace", head, head + len(old), head, head + len(new))]
    if len(old) * len(new) > _COMPARABLE or _equal_pairs(old, new) > _MOST_EQUAL:
        return [("replace", head, head + len(old), head, head + len(new))]
    from difflib import SequenceMatcher  # lazy: most calls show no change  # noqa: PLC0415

    return [
        (kind, i + head, j + head, k + head, m + head)
        for kind, i, j, k, m in SequenceMatcher(None, old, new).get_opcodes()
        if kind != "equal"
    ]


def _equal_pairs(old: list[str], new: list[str]) -> int:
    counts = Counter(old)
    return sum(map(counts.__getitem__, new))


def _hunks(changes: list[_Change]) -> Iterator[list[_Change]]:
    hunk: list[_Change] = []
    for change in changes:
        if hunk and change[1] - hunk[-1][2] > 2 * _CONTEXT:
            yield hunk
            hunk = []
        hunk.append(change)
    yield hunk


def _span(start: int, end: int) -> str:
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


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
