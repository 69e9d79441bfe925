"""Compare the built HTML of a page with an independent parse of its Markdown.

    Markdown --markdown-it (CommonMark and tables)--> HTML --\\
                                                              outline --> first difference
    Markdown --mkdocs (Python-Markdown)-------------> HTML --/

mkdocs reads another dialect than the repository's web page: a block that is code to one of them
may be prose to the other. The outline of a page is the list of its headings, code blocks, tables,
list items, paragraphs, links and images, in order. Both outlines must be equal.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import zip_longest
from typing import Any
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

_LINE = "data-line"
_BLOCKS = {
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "p",
        "pre",
        "hr",
        "blockquote",
        "div",
        "details",
        "summary",
    ),
    *("ul", "ol", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td"),
}
_LISTS = ("ul", "ol")
_NAMES = {"li": "list item", "tr": "table row", "th": "table head", "td": "table cell"}
_VOID = {"br", "hr", "img", "input", "meta", "link", "source", "wbr"}


@dataclass(frozen=True)
class Part:
    """One element of a page: its kind, its text or address, and its line in the source."""

    kind: str
    text: str
    depth: int = 0
    """Number of list items around it."""
    line: int = field(default=0, compare=False)


def expected(markdown: str, page: str) -> list[Part]:
    """Return the outline of a Markdown source; `page` is its path below the root."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse(markdown)
    for token in tokens:
        if token.map and token.nesting >= 0 and token.type != "inline":
            token.attrSet(_LINE, str(token.map[0] + 1))
    return _outline(parser.renderer.render(tokens, parser.options, {}), page)


def built(html: str, page: str) -> list[Part]:
    """Return the outline of the article in a built HTML page."""
    return _outline(html, page, article=True)


def fences(markdown: str) -> list[tuple[int, str]]:
    """Return the line number and the info string of each fenced code block."""
    tokens = MarkdownIt("commonmark").parse(markdown)
    return [
        (token.map[0] + 1, token.info.strip())
        for token in tokens
        if token.type == "fence" and token.map
    ]


def difference(page: str, source: list[Part], site: list[Part]) -> str:
    """Describe the first part of a page that is not built as written; empty if there is none."""
    line = 1
    for wanted, found in zip_longest(source, site):
        if wanted is not None:
            line = wanted.line or line
        if wanted != found:
            return f"{page}:{line}: written: {_shown(wanted)}; on the site: {_shown(found)}"
    return ""


def _shown(part: Part | None) -> str:
    if part is None:
        return "the end of the page"
    where = " in a list item" if part.depth else ""
    return f"{part.kind}{where} {part.text[:90]!r}" if part.text else f"{part.kind}{where}"


def _outline(html: str, page: str, article: bool = False) -> list[Part]:
    reader = _Reader(page, article)
    reader.feed(html)
    reader.close()
    return reader.parts


class _Reader(HTMLParser):
    """Collects the parts of an HTML text. Text between two block elements is one part."""

    def __init__(self, page: str, article: bool) -> None:
        super().__init__()
        self.parts: list[Part] = []
        self._page = page
        self._article = article
        self._inside = not article
        self._open: list[str] = []
        self._skipped = 0
        self._text: list[str] = []
        self._links: list[Part] = []
        self._link: tuple[str, int] | None = None
        self._line = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if self._article and tag == "article":
            self._inside = True
        if not self._inside or tag in _VOID - {"img", "hr", "br"}:
            return
        if (
            self._skipped
            or tag in ("script", "style", "nav")
            or "headerlink" in (given.get("class") or "")
        ):
            self._skipped += tag not in _VOID
            return
        if tag in _BLOCKS:
            self._flush()
        self._line = int(given.get(_LINE) or 0) or self._line
        if tag == "hr":
            self._add("rule", "")
        elif tag == "br":
            self._text.append(" ")
        elif tag == "img":
            self._links.append(self._part("image", self._target(given.get("src"))))
        elif tag in _LISTS:
            self._add("list", tag)
        elif tag in ("li", "table", "tr", "th", "td", "blockquote"):
            self._add(_NAMES.get(tag, tag), "")
        elif tag == "a" and given.get("href") and "pre" not in self._open:
            self._link = (self._target(given["href"]), len(self._text))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= tag not in _VOID
            return
        if not self._inside or tag in _VOID:
            return
        if tag == "a" and self._link is not None:
            target, start = self._link
            self._links.append(
                self._part("link", f"{_words(''.join(self._text[start:]))} -> {target}")
            )
            self._link = None
        if tag in _BLOCKS:
            self._flush()
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if self._article and tag == "article":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside and not self._skipped:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._flush()

    def _flush(self) -> None:
        """End the current text: a heading, a code block, or prose with its links."""
        text = "".join(self._text)
        if "pre" in self._open:
            self._add("code block", _code(text))
        elif _words(text) or self._links:
            heading = next(
                (tag for tag in reversed(self._open) if re.fullmatch("h[1-6]", tag)), None
            )
            self._add(f"heading {heading[1]}" if heading else "text", _words(text))
        self.parts += self._links
        self._text, self._links, self._link = [], [], None

    def _add(self, kind: str, text: str) -> None:
        self.parts.append(self._part(kind, text))

    def _part(self, kind: str, text: str) -> Part:
        return Part(kind, text, self._open.count("li"), self._line)

    def _target(self, address: Any) -> str:
        """Return an address below the root of the site, equal for a source and its built page."""
        url = urlsplit(str(address))
        if url.scheme or url.netloc:
            return str(address)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self._page), unquote(url.path)))
        if not url.path:
            path = self._page
        path = re.sub(r"(^|/)README\.md$", r"\1index.html", path)
        path = re.sub(r"\.md$", ".html", path)
        return f"{path}#{url.fragment}" if url.fragment else path


def _code(text: str) -> str:
    """Return code without spaces at the end of its lines, which Python-Markdown removes."""
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def _words(text: str) -> str:
    return " ".join(text.split())
