"""Changes to text, and their diffs: pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from callgate.core.errors import ToolExecutionError, ToolValidationError

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
