"""Convert HTML to Markdown: text, headings, lists, tables, code and links.

Content that a browser would hide is marked `[hidden: ...]`, because it often targets models instead
of people. Style sheets are not read, so elements that only a style sheet hides are not detected.
Scripts, styles and comments are omitted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, urljoin

from callgate import ToolCancelled
from callgate_catalogue.web.html import End, Start, Text, is_hidden, tokens

_VOID = frozenset(
    {
        "area",
        "base",
        "br",
        "col",
        "embed",
        "frame",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    }
)
_LEFT_OUT = frozenset(
    {
        "script",
        "style",
        "template",
        "svg",
        "math",
        "iframe",
        "object",
        "canvas",
        "audio",
        "video",
        "noembed",
        "noframes",
        "select",
        "datalist",
    }
)
_BLOCKS = frozenset(
    {
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "center",
        "dd",
        "details",
        "dialog",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "header",
        "html",
        "legend",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "tfoot",
        "thead",
        "tr",
        "ul",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "title",
        "textarea",
    }
)
_ENDED_BY = {
    "p": ("p",),
    "li": ("li",),
    "tr": ("tr", "td", "th"),
    "td": ("td", "th"),
    "th": ("td", "th"),
    "dt": ("dt", "dd"),
    "dd": ("dt", "dd"),
    "option": ("option",),
}
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
    "\U000e0000-\U000e0fff]+"
)
_NO_END_OF_MARK = str.maketrans("[]", "()")
"""Replaces brackets within a mark, so that the content cannot end the mark."""
_SPACES = re.compile(r"\s+")
_CELL = "| "
_FENCE = re.compile(r"`{3,}")
_LARGEST_NUMBER = 1_000_000
_DEEPEST = 500
_DEEPEST_SHOWN = 8
"""Maximum indentation of nested lists and quotations."""
MOST_TOKENS = 100_000
"""Maximum tags and texts of a page; a long article has a third of it."""
_LOOK_UP = 2_000
"""Tokens between two checks for cancellation."""
_IN_A_LINK = "!#$%&'*+,/:;=?@~-._"
_LONGEST_BASE = 2_048
_MOST_OF_LINKS = 1_000_000
"""Total characters of all URLs: with a long base even many short links become long."""


class _Table:
    """Enclosing table. One with a head contains data; others often serve as layout."""

    __slots__ = ("cells", "has_head", "is_begun")

    def __init__(self) -> None:
        self.cells = 0
        """Number of cells in the row."""
        self.has_head = self.is_begun = False


class Page(NamedTuple):
    title: str
    markdown: str
    links: int


def without_unseen(text: str) -> str:
    """Remove invisible characters and characters that control a display."""
    return _UNSEEN.sub("", text)


def convert(html: str, base: str, should_stop: Callable[[], bool] = lambda: False) -> Page:
    """Create a writer. `base` is the URL of the page, for relative links."""
    writer = _Writer(base)
    for count, token in enumerate(tokens(html)):
        if count % _LOOK_UP == 0 and should_stop():
            raise ToolCancelled
        if count >= MOST_TOKENS:
            writer.cut()
            break
        match token:
            case Text(text=text):
                writer.text(text)
            case Start():
                writer.start(token)
            case End(name=name):
                writer.end(name)
    return writer.finish()


class _Writer:
    def __init__(self, base: str) -> None:
        self._base = base
        self._open: list[tuple[str, bool]] = []
        """Enclosing elements, and whether each hides its content."""
        self._count: Counter[str] = Counter()
        self._hidden = 0
        self._left_out = 0
        self._lists: list[int] = []
        """Number of the next item of each enclosing list; -1 for an unordered list."""
        self._tables: list[_Table] = []
        self._quotes = 0
        self._pre = 0
        self._blocks: list[str] = []
        self._line: list[str] = []
        self._prefix = ""
        self._marked = False
        """Whether the line is within a mark for hidden content."""
        self._link: tuple[str, int] | None = None
        self._title = ""
        self._links = 0
        self._room = _MOST_OF_LINKS

    # --- input --------------------------------------------------------------------------

    def text(self, text: str) -> None:
        if self._left_out or not text:
            return
        text = _UNSEEN.sub("", text)
        if self._count["title"]:
            self._title += text
            return
        if self._hidden:
            text = text.translate(_NO_END_OF_MARK)
        if self._is_in_cell():
            text = text.replace("|", "\\|")
        self._mark(bool(self._hidden) and bool(text.strip() or self._marked))
        verbatim = self._pre and not self._is_in_cell()
        self._line.append(text if verbatim else _SPACES.sub(" ", text))

    def start(self, tag: Start) -> None:
        name = tag.name
        self._end_implied(name)
        if name in _VOID:
            self._void(tag)
            return
        if name in _BLOCKS:
            self._break()
        hides = is_hidden(tag)
        if len(self._open) < _DEEPEST:
            self._open.append((name, hides))
            self._count[name] += 1
            self._hidden += hides
            self._left_out += name in _LEFT_OUT
            self._enter(tag)
        elif hides or name in _LEFT_OUT:
            self._hidden += 1  # too deep to track its end

    def end(self, name: str) -> None:
        if name in ("p", "br"):
            self._break()
        if not self._count[name]:
            return
        while self._open:
            last = self._close_tag()
            if last == name:
                return

    def cut(self) -> None:
        """Append a note about omitted content, outside of all open elements."""
        while self._open:
            self._close_tag()
        self._break()
        self._blocks.append(f"[The rest is omitted: more than {MOST_TOKENS:,} tags and texts.]")

    def finish(self) -> Page:
        while self._open:
            self._close_tag()
        self._break()
        title = _SPACES.sub(" ", self._title).strip()
        return Page(title, _joined(self._blocks), self._links)

    # --- elements -------------------------------------------------------------------------

    def _end_implied(self, name: str) -> None:
        ended = _ENDED_BY.get(name, ())
        while ended and name != "p" and self._open and self._open[-1][0] == "p":
            self._close_tag()
        if ended and self._open and self._open[-1][0] in ended:
            self._close_tag()
            if name == "tr" and self._open and self._open[-1][0] == "tr":
                self._close_tag()

    def _void(self, tag: Start) -> None:
        name, attributes = tag.name, tag.attributes
        if self._left_out:
            return
        if name == "br":
            self._line.append(" " if self._is_in_cell() else "\n")
        elif name == "hr":
            self._break()
            self._blocks.append("---")
        elif name == "frame" and (where := _joined_url(self._base, attributes.get("src", ""))):
            self._break()
            self._blocks.append(f"[frame]({where})")
            self._links += 1
        elif name == "base" and attributes.get("href"):
            base = _joined_url(self._base, attributes["href"])
            self._base = base if base and len(base) <= _LONGEST_BASE else self._base
        elif name == "img" and (alt := _SPACES.sub(" ", attributes.get("alt", "")).strip()):
            self._mark(bool(self._hidden) or is_hidden(tag))
            seen = _UNSEEN.sub("", alt).translate(_NO_END_OF_MARK)
            self._line.append(f"[image: {seen}]")

    def _enter(self, tag: Start) -> None:
        name = tag.name
        if name in ("ul", "ol"):
            self._lists.append(_number(tag, "start", 1) if name == "ol" else -1)
        elif name == "li":
            item = self._item(tag)
            if self._is_in_cell():
                self._line.append(item)
            else:
                self._prefix = "  " * min(len(self._lists) - 1, _DEEPEST_SHOWN) + item
        elif name in ("h1", "h2", "h3", "h4", "h5", "h6") and not self._is_in_cell():
            self._prefix = "#" * int(name[1]) + " "
        elif name == "table":
            self._tables.append(_Table())
        elif name == "blockquote":
            self._quotes += 1
        elif name == "pre":
            self._pre += 1
        elif name in ("code", "kbd", "samp") and not self._pre:
            self._line.append("`")
        elif name in ("td", "th"):
            self._line.append(_CELL)
            if self._tables:
                self._tables[-1].cells += 1
                self._tables[-1].has_head |= name == "th"
        elif name == "a":
            self._close_link()
            self._link = (tag.attributes.get("href", ""), len(self._line))

    def _close_tag(self) -> str:
        name, hides = self._open.pop()
        self._count[name] -= 1
        self._left_out -= name in _LEFT_OUT
        if name == "a":
            self._close_link()
        elif name in ("code", "kbd", "samp") and not self._pre:
            self._line.append("`")
        elif name in ("td", "th"):
            self._line.append(" ")
        elif name == "tr" and self._line and not self._is_alone():
            self._line.append("|")
        if name in _BLOCKS:
            self._break()
        if name == "tr" and self._tables:
            self._end_row(self._tables[-1])
        elif name == "table" and self._tables:
            self._tables.pop()
        if hides:
            self._hidden -= 1
            self._mark(bool(self._hidden))
        if name in ("ul", "ol") and self._lists:
            self._lists.pop()
        elif name == "blockquote":
            self._quotes -= 1
        elif name == "pre":
            self._pre -= 1
        return name

    def _is_in_cell(self) -> bool:
        """Start or end a cell of a data table, whose rows are single lines."""
        if not self._tables or not self._tables[-1].has_head:
            return False
        return self._count["td"] + self._count["th"] >= len(self._tables)

    def _is_alone(self) -> bool:
        """Return whether a cell is a whole row of a table without a head, as in layouts."""
        return bool(self._tables) and not self._tables[-1].has_head and self._tables[-1].cells == 1

    def _end_row(self, table: _Table) -> None:
        if table.has_head and not table.is_begun and table.cells:
            self._put("|" + " --- |" * min(table.cells, _DEEPEST))
        table.cells, table.is_begun = 0, True

    def _item(self, tag: Start) -> str:
        if not self._lists or self._lists[-1] < 0:
            return "- "
        self._lists[-1] = _number(tag, "value", self._lists[-1])
        self._lists[-1] += 1
        return f"{self._lists[-1] - 1}. "

    # --- output --------------------------------------------------------------------------

    def _mark(self, hidden: bool) -> None:
        if hidden != self._marked:
            self._line.append("[hidden: " if hidden else "]")
            self._marked = hidden

    def _close_link(self) -> None:
        """Turn the text since the start of a link into the link."""
        if self._link is None:
            return
        (href, start), self._link = self._link, None
        text = _SPACES.sub(" ", "".join(self._line[start:])).strip()
        if not text or self._pre or self._room <= 0:
            return
        where = _joined_url(self._base, href)
        if where is not None:
            self._links += 1
            self._room -= len(where)
            self._line[start:] = [f"[{text}]({where})"]

    def _break(self) -> None:
        if self._is_in_cell():
            self._line.append(" ")
            return
        link, text = self._link, ""
        if link is not None:
            text = "".join(self._line[link[1] :]).strip()
        self._close_link()
        if link is not None and not text:  # a card: its first text becomes the link
            self._link = (link[0], 0)
        self._mark(False)
        if self._line[:1] == [_CELL] and self._is_alone():
            del self._line[0]
        text = "".join(self._line)
        self._line = []
        if self._pre:
            text = text.strip("\n")
            if text.strip():
                fence = "`" * max(3, *(len(each) + 1 for each in _FENCE.findall(text)), 0)
                self._put(f"{fence}\n{text}\n{fence}")
            return
        lines = [line for each in text.split("\n") if (line := _SPACES.sub(" ", each).strip())]
        if lines and lines != ["|"]:
            inside = " " * len(self._prefix)
            prefix, self._prefix = self._prefix, ""
            self._put(f"\n{inside}".join([prefix + lines[0], *lines[1:]]))

    def _put(self, block: str) -> None:
        if self._quotes:
            depth = "> " * min(self._quotes, _DEEPEST_SHOWN)
            block = "\n".join(depth + line for line in block.split("\n"))
        self._blocks.append(block)


def _number(tag: Start, name: str, usual: int) -> int:
    value = tag.attributes.get(name, "")
    is_number = value.isascii() and value.isdigit() and len(value) < 8
    return min(int(value), _LARGEST_NUMBER) if is_number else usual


def _joined_url(base: str, href: str) -> str | None:
    """Return the URL of a link; None unless it is on the web."""
    href = _UNSEEN.sub("", href).strip()
    if not href or href.startswith("#"):
        return None
    try:
        joined = urljoin(base, href)
    except ValueError:
        return None
    if not joined.lower().startswith(("http://", "https://", "mailto:")):
        return None
    return quote(joined, safe=_IN_A_LINK)


_ITEM = re.compile(r"\s*(?:- |\d+\. )|\| ")


def _joined(blocks: list[str]) -> str:
    """Join blocks, with an empty line unless both are items of one list or table."""
    pieces: list[str] = []
    for before, block in zip(["", *blocks], blocks, strict=False):
        together = _ITEM.match(before) is not None and _ITEM.match(block) is not None
        pieces += ["\n" if together else "\n\n", block]
    return "".join(pieces[1:])
