"""HTML of a mail as text: what a person would read of it, and where its links lead."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_SILENT = frozenset({"script", "style", "head", "title", "template", "noscript"})
_BREAKS = frozenset(
    {"address", "article", "blockquote", "br", "div", "dl", "dt", "dd", "fieldset", "footer", "form",
     "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre",
     "section", "table", "tr", "ul"}
)  # fmt: skip
_APART = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "blockquote"})
MAX_HTML = 2 * 1024 * 1024
"""Characters that are looked at."""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._silent = 0
        self._links: list[tuple[str, int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent += 1
        elif tag in _BREAKS:
            self.pieces.append("\n\n" if tag in _APART else "\n")
            if tag == "li":
                self.pieces.append("- ")
        elif tag in ("td", "th"):
            self.pieces.append("\t")
        elif tag == "a":
            self._links.append((dict(attrs).get("href") or "", len(self.pieces)))
        elif tag == "img" and (alt := dict(attrs).get("alt")):
            self.handle_data(f"[{alt}]")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(self._silent - 1, 0)
        elif tag in _BREAKS:
            self.pieces.append("\n\n" if tag in _APART else "\n")
        elif tag == "a" and self._links:
            href, begun = self._links.pop()
            shown = "".join(self.pieces[begun:])
            if href.startswith(("http://", "https://", "mailto:")) and href not in shown:
                self.pieces.append(f" <{href}>")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.pieces.append(re.sub(r"\s+", " ", data))


def html_to_text(html: str) -> str:
    reader = _Reader()
    reader.feed(html[:MAX_HTML])
    reader.close()
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(reader.pieces))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \xa0]{2,}", " ", text)).strip()
