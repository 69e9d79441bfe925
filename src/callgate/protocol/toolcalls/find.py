"""Where the documents are in a model's text, and what else is there.

Beside documents there may be space, fences, tags around calls, and a last semicolon; all else
is prose. What stands in quotation marks is a quotation, never a document. A bracket in prose
is passed over; but after a document of calls that cannot be read nothing more is read, since
where it ends would be a guess, and what follows may be the inside of one of its texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from callgate.protocol.toolcalls.documents import Broken, Document
from callgate.protocol.toolcalls.mend import read
from callgate.protocol.toolcalls.prose import WRAPPING
from callgate.protocol.toolcalls.shortcut import Shortcut
from callgate.protocol.toolcalls.values import Note

# A bracket, if what follows it can be JSON or what is forgiven; most brackets in prose are not.
_OPENING = re.compile(
    r"""\{(?=[\s\ufeff]*(?:["'“‘}A-Za-z_$/#,`]|\Z))"""
    r"""|\[(?=[\s\ufeff]*(?:["'“‘\]{\[0-9tfnNTFI/#,`-]|\Z))"""
)
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|\\.|[\[{]|[\]}]', re.DOTALL)
_START = re.compile(
    r"""\{[\s\ufeff]*(?:["'“‘}]|[A-Za-z_$][\w$-]*[\s\ufeff]*[:=])|\[[\s\ufeff]*[{\]]"""
)
"""What begins a JSON document rather than words."""
_CALL_TAG = re.compile(r"<(?:tool_?calls?|function_?calls?)>", re.IGNORECASE)
_WRAPPER = re.compile(rf"(?:```[A-Za-z0-9_+-]*|{_CALL_TAG.pattern})\s*\Z", re.IGNORECASE)
_NEAR = 64
_LABELS = ("", "json")
MOST_TRIES = 10_000
"""Brackets that are looked at: behind so many all is prose."""
_QUOTES = "\"'“‘„«\\"
_MEANT = re.compile(r"tool_?calls", re.IGNORECASE)


class Outside(NamedTuple):
    """What stands around the documents."""

    start: int
    end: int
    prose: int | None = None
    """Where text begins that should not be there."""
    label: int | None = None
    """Where a fence has a label other than json."""


Piece = Document | Broken | Outside


def unfenced(text: str) -> str:
    """The text without its fence, by the format's own rule."""
    inner = text.strip().strip("\ufeff").strip()
    if inner.startswith("```json"):
        inner = inner[7:]
    elif inner.startswith("```"):
        inner = inner[3:]
    return inner.removesuffix("```").strip()


def document_start(text: str) -> int | None:
    """Where the document begins that a reply was meant to be, whether or not it can be read:
    at its very beginning, or behind a tag around calls. None for words."""
    tag = _CALL_TAG.search(text)
    for start in (0, len(text) if tag is None else tag.end()):
        at = surroundings(text, start, len(text)).prose
        if at is not None and _START.match(text, at):
            return at
    return None


def attempt_start(text: str) -> int | None:
    """Where the document begins that a reply was meant to be, also where nothing in it is JSON:
    `{broken json`. A word in braces with more words behind it is none."""
    start = document_start(text)
    if start is not None:
        return start
    opening = surroundings(text, 0, len(text))
    at = opening.prose
    if at is None or opening.label is not None or not text.startswith("{", at):
        return None
    is_last = surroundings(text, _skip(text, at, 0), len(text)).prose is None
    return at if is_last or _is_json_fenced(text) else None


def is_attempt(text: str) -> bool:
    """Whether a reply was meant as a document of calls: it begins as the format asks."""
    return _is_json_fenced(text) or attempt_start(text) is not None


def _is_json_fenced(text: str) -> bool:
    return text.strip().strip("\ufeff").strip().startswith("```json")


def is_wrapped(text: str, start: int) -> bool:
    """Whether a fence or a tag around calls stands directly before the document."""
    return _WRAPPER.search(text[max(start - _NEAR, 0) : start]) is not None


def pieces(text: str, *, placed: bool) -> Iterator[Piece]:
    """Documents, and what is between them, in order; what is refused on the way is `Broken`.

    Args:
        placed: also find where the calls of each document are, which takes longer.
    """
    at = outside = tries = 0
    shortcut = Shortcut(text)
    while tries < MOST_TRIES and (opening := _OPENING.search(text, at)) is not None:
        tries += 1
        start = opening.start()
        if start and text[start - 1] in _QUOTES:
            at = _skip(text, start, 0)
            continue
        try:
            document = (None if placed else _clean(shortcut, start)) or read(text, start, shortcut)
        except Broken as broken:
            at = broken.at if not broken.begun else _skip(text, broken.at, broken.depth)
            at = max(at, start + 1)
            meant = broken.begun and _MEANT.search(text, start, at) is not None
            if meant or broken.rule == "depth":
                yield surroundings(text, outside, start)
                yield broken
                yield Outside(start, start, prose=start)
                return
            continue
        yield surroundings(text, outside, start)
        yield document
        at = outside = document.end
    yield surroundings(text, outside, len(text))


def _skip(text: str, at: int, depth: int) -> int:
    """Where so many open brackets are closed again; the end of the text if they are not."""
    for found in _BRACKETS.finditer(text, at):
        bracket = found[0]
        if bracket in ("{", "["):
            depth += 1
        elif bracket in ("}", "]"):
            depth -= 1
            if depth <= 0:
                return found.end()
    return len(text)


def surroundings(text: str, start: int, end: int) -> Outside:
    label, at = None, start
    while at < end:
        allowed = WRAPPING.match(text, at, end)
        if allowed is None:
            return Outside(start, end, at, label)
        name = allowed["label"]
        if name is not None and name not in _LABELS and label is None:
            label = at
        at = allowed.end()
    return Outside(start, end, None, label)


def _clean(shortcut: Shortcut, start: int) -> Document | None:
    """The document that begins here if there is nothing to mend in it: most of them, quickly."""
    clean = shortcut.read(start)
    if clean is None:
        return None
    document = Document(start)
    document.value, document.end = clean
    return document


def problem(broken: Broken) -> Note:
    return Note(broken.rule, str(broken), broken.at)
