"""Reads what stands between two lines of `---` at the top of a file: a strict, small part of YAML.

    ---
    description: >
      Looks at a change
      before it is sent.
    delegate: true
    ---
    The text itself.

A key that is asked for must be understood completely, or the whole is refused with a reason;
under any other key anything may stand. Pure: text goes in, values come out.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

MOST_LINES = 200
MOST_CHARS = 16_000
_MARK = "---"

_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(?:[ ]+(.*))?\Z")
_BLOCK = re.compile(r"([>|])[+-]?(?:[ ]+#.*)?\Z")
_SINGLE = re.compile(r"'((?:[^']|'')*)'[ ]*(?:(?<=[ ])#.*)?\Z")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"[ ]*(?:(?<=[ ])#.*)?\Z')
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)")
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "n": "\n", "r": "\r", "t": "\t", " ": " "}
_COMMENT = re.compile(r"(?:\A|(?<=[ ]))#.*\Z")
_NOT_PLAIN = tuple("&*!|>%@`[]{},'\"")
"""With these begins what is not simply text."""


class FrontMatterError(ValueError):
    """It is not there, or cannot be understood; the text says why."""


class Parted(NamedTuple):
    fields: dict[str, str]
    quoted: frozenset[str]
    """Those of the fields that stand in quotes: text, whatever they look like."""
    body: str


def part(text: str, keys: Collection[str]) -> Parted:
    """Take the front matter off a text, and read these keys of it."""
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
    return Parted(fields, frozenset(quoted), "\n".join(lines[end + 1 :]).strip("\n").rstrip())


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
    if block := _BLOCK.match(first):
        return _block(more, folded=block[1] == ">"), False
    lines = [line for line in more if line.strip()]
    if first.startswith(("'", '"')):
        if lines:
            raise FrontMatterError("a text in quotes must end in its line")
        return _quoted(first), True
    return _plain([first, *lines]), False


def _quoted(text: str) -> str:
    if single := _SINGLE.match(text):
        return single[1].replace("''", "'")
    double = _DOUBLE.match(text)
    if double is None:
        raise FrontMatterError("its quotes do not close, or something follows them")
    return _ESCAPE.sub(_unescaped, double[1])


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if len(code) == 1:
        if code not in _ESCAPED:
            raise FrontMatterError(f"it has an escape \\{code}, which is not understood")
        return _ESCAPED[code]
    char = chr(int(code[1:], 16))
    if "\ud800" <= char <= "\udfff":
        raise FrontMatterError("it has half a character")
    return char


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


def _block(more: list[str], *, folded: bool) -> str:
    """The lines below a `>` or `|`, without what they are indented by."""
    indent = 0
    lines = []
    for line in more:
        if not line.strip(" "):
            lines.append("")
            continue
        depth = len(line) - len(line.lstrip(" "))
        indent = indent or depth
        if depth < indent or not depth:
            raise FrontMatterError("its lines are not indented alike")
        lines.append(line[indent:])
    text = "\n".join(lines).strip("\n")
    return re.sub(r"\n+", lambda ends: ends[0][1:] or " ", text) if folded else text
