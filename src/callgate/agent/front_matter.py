"""Reads what stands between two lines of `---` at the top of a file: known keys, whose values are
texts.

    ---
    description: >
      Looks at a change
      before it is sent.
    delegate: true
    ---
    The text itself.

A known key must be understood completely, or the whole is refused with a reason; under any other
key anything may stand, even what is not YAML. PyYAML reads quoted texts and blocks, each alone and
only up to its events: no alias, anchor, tag or type is ever resolved, so `no` stays the text `no`.
A plain text is taken as written: a colon in it (`description: use it when: ...`) is an error in
YAML, and common in skills. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

MOST_LINES = 200
MOST_CHARS = 16_000
_MARK = "---"

_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(?:[ ]+(.*))?\Z")
_BLOCK = re.compile(r"[>|][+-]?(?:[ ]+#.*)?\Z")
_COMMENT = re.compile(r"(?:\A|(?<=[ ]))#.*\Z")
_NOT_PLAIN = tuple("&*!|>%@`[]{},'\"")
"""With these begins what is not simply text."""
_ONE_PAIR = 8
"""Events of a document that is a mapping of one key to one scalar."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class FrontMatterError(ValueError):
    """It is not there, or cannot be understood; the text says why."""


class Document(NamedTuple):
    fields: dict[str, str]
    quoted: frozenset[str]
    """The fields written in quotes: texts, whatever they look like."""
    body: str


def parse_document(text: str, keys: Collection[str]) -> Document:
    """Split a text into the front matter, of which these keys are read, and the body."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip(" ") != _MARK:
        raise FrontMatterError("it does not begin with a line ---")
    end = next((at for at, line in enumerate(lines) if at and line.rstrip(" ") == _MARK), None)
    if end is None:
        raise FrontMatterError("its front matter has no end: a second line --- is missing")
    head = lines[1:end]
    if len(head) > MOST_LINES or sum(map(len, head)) > MOST_CHARS:
        raise FrontMatterError(
            f"its front matter has more than {MOST_LINES} lines or {MOST_CHARS:,} characters"
        )
    fields, quoted = {}, set()
    for key, first, more, number in _entries(head):
        if key not in keys:
            continue
        if key in fields:
            raise FrontMatterError(f"line {number}: {key} is there twice")
        try:
            fields[key], in_quotes = _value(first, more)
        except FrontMatterError as error:
            raise FrontMatterError(f"line {number}: {key}: {error}") from None
        if in_quotes:
            quoted.add(key)
    return Document(fields, frozenset(quoted), "\n".join(lines[end + 1 :]).strip("\n").rstrip())


Entry = tuple[str, str, list[str], int]
"""A key, what stands behind it, the indented lines below it, and its line in the file."""


def _entries(head: list[str]) -> list[Entry]:
    found: list[Entry] = []
    for number, line in enumerate(head, 2):
        if not line.strip() or line.startswith((" ", "\t", "- ")) or line == "-":
            if found:
                found[-1][2].append(line)
            elif line.strip():
                raise FrontMatterError(f"line {number} belongs to no key")
        elif not line.startswith("#"):
            key = _KEY.match(line)
            if key is None:
                raise FrontMatterError(f"line {number} is not `key: value`")
            found.append((key[1], (key[2] or "").strip(" "), [], number))
    return found


def _value(first: str, more: list[str]) -> tuple[str, bool]:
    if _BLOCK.match(first):
        text = _scalar("\n".join([first, *more]), "its lines are not indented alike")
        return text.strip("\n"), False
    lines = [line for line in more if line.strip()]
    if first.startswith(("'", '"')):
        if lines:
            raise FrontMatterError("a text in quotes must end in its line")
        return _scalar(first, "its quotes do not close, or something follows them"), True
    return _plain([first, *lines]), False


def _scalar(written: str, problem: str) -> str:
    """A quoted text or a block. Refused with the problem where it is not exactly one scalar."""
    import yaml  # type: ignore[import-untyped]  # lazy: 20 ms, many need none  # noqa: PLC0415

    try:
        # A value of a key, as it was in the file: what a block is indented by depends on it.
        events = list(yaml.parse(f"key: {written}\n", Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        found = str(getattr(error, "problem", ""))
        raise FrontMatterError(found if "escape" in found else problem) from None
    scalars = [event.value for event in events if isinstance(event, yaml.ScalarEvent)]
    if len(scalars) != 2 or len(events) != _ONE_PAIR:
        raise FrontMatterError(problem)
    text = str(scalars[1])
    if _SURROGATE.search(text):
        raise FrontMatterError("it has half a character")
    return text


def _plain(lines: list[str]) -> str:
    """Text without marks; lines below it go on with it."""
    words = []
    for line in lines:
        if line.startswith(("\t", "-")):
            raise FrontMatterError("it is a list or begins with a tab, and must be text")
        words.append(_COMMENT.sub("", line.strip(" ")).rstrip(" "))
    text = " ".join(filter(None, words))
    if text.startswith(_NOT_PLAIN) or text.startswith(("- ", "? ")):
        raise FrontMatterError(f"it begins with {text[0]}, and must be text: put it in quotes")
    return text
