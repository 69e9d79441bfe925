"""HTML as tags and texts, in one pass over it whatever it holds.

No tree is built and nothing is repaired. Time grows with the length alone: what is searched for
and not found once is not searched for again, so no page can make reading it take long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import unescape
from typing import NamedTuple

RAW = frozenset(
    {"script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title", "plaintext"}
)
"""What is in these is no markup."""

_LONGEST_ATTRIBUTES = 8_192
_NAME = re.compile(r"[a-zA-Z][^\s/>]{0,63}")
_ATTRIBUTE = re.compile(r"""([^\s=/>"']{1,64})(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?""")
_NUMBER = re.compile(r"&#(?:[xX][0-9a-fA-F]{7,}|[0-9]{8,});?")
"""No character has such a number, and to read it would take long."""


class Text(NamedTuple):
    text: str
    """With its entities resolved."""


class Start(NamedTuple):
    name: str
    attributes: Mapping[str, str]


class End(NamedTuple):
    name: str


Token = Text | Start | End


def tokens(page: str) -> Iterator[Token]:
    """The tags and the texts of a page, in order; comments and the like are left out."""
    reader = _Reader(page)
    text = at = 0
    while (found := page.find("<", at)) >= 0:
        token, end = reader.tag(found)
        if isinstance(token, Text):  # a sign like any other, and part of the text around it
            at = end
            continue
        if found > text:
            yield Text(plain(page[text:found]))
        at = end
        if token is not None:
            yield token
        if isinstance(token, Start) and token.name in RAW:
            end = reader.raw_end(token.name, at)
            if end > at:
                yield Text(plain(page[at:end]) if token.name in ("title", "textarea") else "")
            at = end
        text = at
    if text < len(page):
        yield Text(plain(page[text:]))


def plain(text: str) -> str:
    """With its entities resolved."""
    if "&" not in text:
        return text
    return unescape(_NUMBER.sub("\ufffd", text))


class _Reader:
    def __init__(self, page: str) -> None:
        self._page = page
        self._missing: dict[str, int] = {}
        """What is not found from some place on."""
        self._found: dict[str, tuple[int, int]] = {}
        """From where on something was searched for last, and where it is."""
        self._ends: dict[str, re.Pattern[str]] = {}

    def tag(self, at: int) -> tuple[Token | None, int]:
        """What begins with the `<` there, and where it has ended."""
        page = self._page
        if page.startswith("<!--", at):
            return None, self._after("-->", at + 2)
        if page.startswith(("<!", "<?"), at):
            return None, self._after(">", at)
        closing = page.startswith("</", at)
        name = _NAME.match(page, at + 1 + closing)
        if name is None:
            if closing:
                return None, self._after(">", at)
            return Text("<"), at + 1
        end = self._tag_end(name.end())
        word = name[0].lower()
        if closing:
            return End(word), end
        attributes = page[name.end() : min(end - 1, name.end() + _LONGEST_ATTRIBUTES)]
        return Start(word, _attributes(attributes)), end

    def raw_end(self, name: str, at: int) -> int:
        """Where the end tag of a text begins."""
        if name not in self._ends:
            self._ends[name] = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
        if name in self._missing or name == "plaintext":
            return len(self._page)
        found = self._ends[name].search(self._page, at)
        if found is None:
            self._missing[name] = at
            return len(self._page)
        return found.start()

    def _tag_end(self, at: int) -> int:
        """Behind the `>` of a tag; one in a quoted value is none."""
        page = self._page
        while True:
            end = self._find(">", at)
            if end < 0:
                return len(page)
            quote = _quote(page, at, end)
            if quote < 0:
                return end + 1
            closed = self._find(page[quote], quote + 1)
            if closed < 0:
                return end + 1
            at = closed + 1

    def _find(self, text: str, at: int) -> int:
        """As `str.find`, which is asked with places that only grow: what it found ahead counts."""
        if self._missing.get(text, at + 1) <= at:
            return -1
        searched, found = self._found.get(text, (0, -1))
        if searched <= at <= found:
            return found
        found = self._page.find(text, at)
        if found < 0:
            self._missing[text] = at
        else:
            self._found[text] = (at, found)
        return found

    def _after(self, text: str, at: int) -> int:
        found = self._find(text, at)
        return len(self._page) if found < 0 else found + len(text)


_VALUE = re.compile(r"=\s{0,64}([\"'])")


def _quote(page: str, at: int, end: int) -> int:
    """Where a quoted value begins before the end."""
    found = _VALUE.search(page, at, end)
    return -1 if found is None else found.start(1)


def _attributes(text: str) -> Mapping[str, str]:
    if not text.strip(" /"):
        return {}
    found: dict[str, str] = {}
    for each in _ATTRIBUTE.finditer(text):
        value = each[2] or ""
        if value[:1] in ("'", '"'):
            value = value[1:-1]
        found.setdefault(each[1].lower(), plain(value))
    return found
