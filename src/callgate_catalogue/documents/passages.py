"""A text as passages, each short enough for one vector. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MOST_BYTES = 1_000
"""Of one passage: about 250 tokens, of which the smallest models take 256."""
_SHOWN = 200


class Part(NamedTuple):
    """A place in a text."""

    start: int
    stop: int
    line: int


def split(text: str) -> Iterator[Part]:
    """Whole lines where they are not too long, and if possible whole paragraphs."""
    at, start, first, size = 0, 0, 1, 0
    for line, words in enumerate(text.split("\n"), 1):
        length = _bytes(words) + 1 if words.strip() else 0
        if size and (size + length > MOST_BYTES if length else size >= MOST_BYTES // 2):
            yield Part(start, at, first)
            size = 0
        if size == 0:
            start, first = at, line
        size += length
        at += len(words) + 1
        if size > MOST_BYTES:  # one line, and too long
            step = MOST_BYTES if words.isascii() else MOST_BYTES // 4
            for cut in range(start, at - 1, step):
                yield Part(cut, min(cut + step, at - 1), line)
            size = 0
    if size:
        yield Part(start, len(text), first)


def _bytes(words: str) -> int:
    return len(words) if words.isascii() else len(words.encode("utf-8", "replace"))


def snippet(passage: str) -> str:
    shown = " ".join(passage[: 4 * _SHOWN].split())
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN].rstrip() + " …"
