"""A page of HTML as Markdown: its text, headings, lists, tables, code and links.

What a browser would not show is marked `[hidden: ...]`, because it is often meant for whoever
reads the page in place of a person. A style sheet is not read, so what it alone hides is not
known to be hidden. Scripts, styles and comments are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, urljoin

from callgate.core.errors import ToolCancelled
from callgate.tools.web.html import End, Start, Text, tokens

_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source",
     "track", "wbr"}
)  # fmt: skip
_LEFT_OUT = frozenset(
    {"script", "style", "template", "svg", "math", "iframe", "object", "canvas", "audio", "video",
     "noembed", "noframes", "select", "datalist"}
)  # fmt: skip
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "body", "center", "dd", "details", "dialog",
     "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "html",
     "legend", "li", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody",
     "tfoot", "thead", "tr", "ul", "h1", "h2", "h3", "h4", "h5", "h6", "title", "textarea"}
)  # fmt: skip
_ENDED_BY = {"p": ("p",), "li": ("li",), "tr": ("tr", "td", "th"), "td": ("td", "th"),
             "th": ("td", "th"), "dt": ("dt", "dd"), "dd": ("dt", "dd"),
             "option": ("option",)}  # fmt: skip
_HIDING = re.compile(
    r"display:none|visibility:(hidden|collapse)|opacity:0*(\.0+)?(?![.\d])|font-size:0(?![.\d])"
    r"|font-size:[01]?(\.\d+)?p[xt]|text-indent:-\d{3,}|(left|top|right|bottom):-\d{3,}"
    r"|clip:rect\(0|clip-path:(inset\((50|100)%|circle\(0)|color:transparent"
    r"|(transform:|[\s)])scale[xy]?\(0*(\.0+)?[,)]|content-visibility:hidden"
)
_CSS_NOTHING = re.compile(r"/\*.*?(?:\*/|\Z)|\s+", re.DOTALL)
_CSS_ESCAPE = re.compile(r"\\([0-9a-fA-F]{1,6})\s?|\\(.)", re.DOTALL)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
    "\U000e0000-\U000e0fff]+"
)
_NO_END_OF_MARK = str.maketrans("[]", "()")
"""What stands within a mark must not look as if the mark was over."""
_SPACES = re.compile(r"\s+")
_DEEPEST = 500
_DEEPEST_SHOWN = 8
"""Lists and quotations in one another, which each stand further to the right."""
_LOOK_UP = 2_000
"""Tokens between two looks at whether to stop."""
_IN_A_LINK = "!#$%&'*+,/:;=?@~-._"
_LONGEST_BASE = 2_048
_MOST_OF_LINKS = 1_000_000
"""Characters of all addresses together: with a long base each of many short links has them all."""


class Page(NamedTuple):
    title: str
    markdown: str
    links: int


def without_unseen(text: str) -> str:
    """Without characters that are not seen, or act on whatever shows them."""
    return _UNSEEN.sub("", text)


def convert(
    html: str, base: str, should_stop: Callable[[], bool] = lambda: False
) -> Page:
    """`base` is the address of the page, from which its links count."""
    writer = _Writer(base)
    for count, token in enumerate(tokens(html)):
        if count % _LOOK_UP == 0 and should_stop():
            raise ToolCancelled
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
        """The elements around, and whether each hides what is in it."""
        self._count: Counter[str] = Counter()
        self._hidden = 0
        self._left_out = 0
        self._lists: list[int] = []
        """For each list around, the number of its next item; -1 for one without numbers."""
        self._quotes = 0
        self._pre = 0
        self._blocks: list[str] = []
        self._line: list[str] = []
        self._prefix = ""
        self._marked = False
        """Whether the line is within a mark for what is hidden."""
        self._link: tuple[str, int] | None = None
        self._title = ""
        self._links = 0
        self._room = _MOST_OF_LINKS

    # --- what comes -----------------------------------------------------------------------

    def text(self, text: str) -> None:
        if self._left_out or not text:
            return
        text = _UNSEEN.sub("", text)
        if self._count["title"]:
            self._title += text
            return
        if self._hidden:
            text = text.translate(_NO_END_OF_MARK)
        self._mark(bool(self._hidden) and bool(text.strip() or self._marked))
        self._line.append(text if self._pre else _SPACES.sub(" ", text))

    def start(self, tag: Start) -> None:
        name = tag.name
        self._end_implied(name)
        if name in _VOID:
            self._void(tag)
            return
        if name in _BLOCKS:
            self._break()
        hides = _is_hidden(tag)
        if len(self._open) < _DEEPEST:
            self._open.append((name, hides))
            self._count[name] += 1
            self._hidden += hides
            self._left_out += name in _LEFT_OUT
            self._enter(tag)
        elif hides or name in _LEFT_OUT:
            self._hidden += 1  # so deep nobody knows where it ends

    def end(self, name: str) -> None:
        if name in ("p", "br"):
            self._break()
        if not self._count[name]:
            return
        while self._open:
            last = self._leave()
            if last == name:
                return

    def finish(self) -> Page:
        while self._open:
            self._leave()
        self._break()
        title = _SPACES.sub(" ", self._title).strip()
        return Page(title, _joined(self._blocks), self._links)

    # --- elements -------------------------------------------------------------------------

    def _end_implied(self, name: str) -> None:
        ended = _ENDED_BY.get(name, ())
        if ended and self._open and self._open[-1][0] in ended:
            self._leave()
            if name == "tr" and self._open and self._open[-1][0] == "tr":
                self._leave()

    def _void(self, tag: Start) -> None:
        name, said = tag.name, tag.attributes
        if self._left_out:
            return
        if name == "br":
            self._line.append("\n")
        elif name == "hr":
            self._break()
            self._blocks.append("---")
        elif name == "base" and said.get("href"):
            base = _joined_url(self._base, said["href"])
            self._base = base if base and len(base) <= _LONGEST_BASE else self._base
        elif name == "img" and (alt := _SPACES.sub(" ", said.get("alt", "")).strip()):
            self._mark(bool(self._hidden) or _is_hidden(tag))
            seen = _UNSEEN.sub("", alt).translate(_NO_END_OF_MARK)
            self._line.append(f"[image: {seen}]")

    def _enter(self, tag: Start) -> None:
        name = tag.name
        if name in ("ul", "ol"):
            self._lists.append(1 if name == "ol" else -1)
        elif name == "li":
            self._prefix = "  " * min(len(self._lists) - 1, _DEEPEST_SHOWN) + self._item()
        elif name in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self._prefix = "#" * int(name[1]) + " "
        elif name == "blockquote":
            self._quotes += 1
        elif name == "pre":
            self._pre += 1
        elif name in ("code", "kbd", "samp") and not self._pre:
            self._line.append("`")
        elif name in ("td", "th"):
            self._line.append("| ")
        elif name == "a":
            self._close_link()
            self._link = (tag.attributes.get("href", ""), len(self._line))

    def _leave(self) -> str:
        name, hides = self._open.pop()
        self._count[name] -= 1
        self._left_out -= name in _LEFT_OUT
        if name == "a":
            self._close_link()
        elif name in ("code", "kbd", "samp") and not self._pre:
            self._line.append("`")
        elif name in ("td", "th"):
            self._line.append(" ")
        elif name == "tr" and self._line:
            self._line.append("|")
        if name in _BLOCKS:
            self._break()
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

    def _item(self) -> str:
        if not self._lists or self._lists[-1] < 0:
            return "- "
        self._lists[-1] += 1
        return f"{self._lists[-1] - 1}. "

    # --- what is written ------------------------------------------------------------------

    def _mark(self, hidden: bool) -> None:
        if hidden != self._marked:
            self._line.append("[hidden: " if hidden else "]")
            self._marked = hidden

    def _close_link(self) -> None:
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
        self._close_link()
        self._mark(False)
        text = "".join(self._line)
        self._line = []
        if self._pre:
            text = text.strip("\n")
            if text.strip():
                self._put(f"```\n{text}\n```")
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


def _is_hidden(tag: Start) -> bool:
    said = tag.attributes
    if "hidden" in said or "popover" in said or (tag.name == "dialog" and "open" not in said):
        return True
    style = said.get("style", "")
    return bool(style) and _HIDING.search(_plain_style(style)) is not None


def _plain_style(style: str) -> str:
    """As a browser understands it, in one spelling."""
    if "\\" in style:
        style = _CSS_ESCAPE.sub(_unescaped, style)
    return _CSS_NOTHING.sub("", style).lower()


def _unescaped(found: re.Match[str]) -> str:
    if found[2]:
        return found[2]
    number = int(found[1], 16)
    return chr(number) if 0 < number <= 0x10FFFF else "\ufffd"


def _joined_url(base: str, href: str) -> str | None:
    """Where a link leads; None where that is no place on the web."""
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
    """With an empty line between two blocks that are not items of one list or table."""
    parts: list[str] = []
    for before, block in zip(["", *blocks], blocks, strict=False):
        together = _ITEM.match(before) is not None and _ITEM.match(block) is not None
        parts += ["\n" if together else "\n\n", block]
    return "".join(parts[1:])
