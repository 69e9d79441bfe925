"""Split HTML into tags and texts, in one pass over any input.

The reader builds no tree and repairs nothing. Its time is linear in the length: a failed search is
never repeated, so no page can slow it down.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from html import unescape
from typing import NamedTuple

from callgate import ToolContext
from callgate.packs.files import Shown, show

CHARS_PER_TOKEN = 4
"""Approximate. Languages and models differ; the limit is a bound, not a count."""
_LONGEST_LINE = 2_000


def cut(text: str, tokens: int, context: ToolContext, *, name: str, complete: bool = True) -> Shown:
    """Return the beginning of a text. If it is longer, an artifact has the whole text."""
    lines = [piece for line in text.split("\n") for piece in _pieces(line)]
    room, count = tokens * CHARS_PER_TOKEN, 0
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        count += 1
    return show(lines, count, context.artifact, name=name, complete=complete)


def _pieces(line: str) -> list[str]:
    """Split a line that is too long to read."""
    if len(line) <= 2 * _LONGEST_LINE:
        return [line]
    return [line[at : at + _LONGEST_LINE] for at in range(0, len(line), _LONGEST_LINE)]


_HIDING = re.compile(
    r"(?<![\w-])(?:"  # a whole property name, not the end of another: background-color
    r"display:none|visibility:(hidden|collapse)|opacity:0*(\.0+)?(?![.\d])|font-size:0(?![.\d])"
    r"|font-size:[01]?(\.\d+)?p[xt]|text-indent:-\d{3,}|(left|top|right|bottom):-\d{3,}"
    r"|margin-(left|top|right|bottom):-\d{4,}|clip:rect\(0"
    r"|clip-path:(inset\((50|100)%|circle\(0)|color:transparent|content-visibility:hidden)"
    r"|(transform:|\))scale[xy]?\(0*(\.0+)?[,)]"
)
_NO_ROOM = re.compile(r"(?<![\w-])(?:max-)?(?:height|width):0*(?:\.0+)?(?:px|pt|em|%)?(?:;|!|\Z)")
_CSS_NOTHING = re.compile(r"/\*.*?(?:\*/|\Z)|\s+", re.DOTALL)
_CSS_ESCAPE = re.compile(r"\\([0-9a-fA-F]{1,6})\s?|\\(.)", re.DOTALL)


def is_hidden(tag: Start) -> bool:
    attributes = tag.attributes
    if (
        "hidden" in attributes
        or "popover" in attributes
        or (tag.name == "dialog" and "open" not in attributes)
    ):
        return True
    style = _plain_style(attributes.get("style", ""))
    if "overflow:hidden" in style and _NO_ROOM.search(style):
        return True
    return bool(style) and _HIDING.search(style) is not None


def _plain_style(style: str) -> str:
    """Return a normalized form of a browser's interpretation."""
    if "\\" in style:
        style = _CSS_ESCAPE.sub(_unescaped, style)
    return _CSS_NOTHING.sub("", style).lower()


def _unescaped(found: re.Match[str]) -> str:
    if found[2]:
        return found[2]
    number = int(found[1], 16)
    return chr(number) if 0 < number <= 0x10FFFF else "\ufffd"


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_KNOWN = re.compile(
    r"utf-8|utf-16(-[lb]e)?|iso8859-\d+|cp(125\d|866|874|932|949|950)|koi8-[ru]|mac-(roman|cyrillic)"
    r"|gbk|gb2312|gb18030|big5(hkscs)?|shift_jis|euc_(jp|kr)|iso2022_jp(_\d)?\Z"
)
"""Python's names of charsets that occur on the web; other codecs are no charsets, or too rare."""
_WIDER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "tis-620": "cp874",
    "iso8859-11": "cp874",
}
"""Charsets that browsers decode as a superset; pages rely on it."""
_SPELLED = {
    "windows-31j": "cp932",
    "x-sjis": "cp932",
    "windows-949": "cp949",
    "x-gbk": "gbk",
    "windows-874": "cp874",
    "iso-8859-8-i": "iso8859-8",
    "x-euc-jp": "euc_jp",
    "x-mac-roman": "mac-roman",
    "x-mac-cyrillic": "mac-cyrillic",
    "unicode-1-1-utf-8": "utf-8",
}
"""Names on the web that Python does not know."""
_PARAMETER = re.compile(r"(?:charset|encoding)\s*=\s*[\"']?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_DECLARED_IN = 2_048
"""Leading bytes in which a page may declare its charset."""


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def decode(body: bytes, content_type: str, *, cut: bool = False) -> tuple[str, str]:
    """Return the text and its charset. The last character of a cut body may be incomplete."""
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace"), name
    markup = media_type(content_type).endswith(("html", "xml"))
    for declaration in (content_type, body[:_DECLARED_IN].decode("latin-1") if markup else ""):
        found = _PARAMETER.search(declaration)
        known = None if found is None else _named(found[1])
        if known is not None:
            return body.decode(known, "replace"), known
    try:
        return codecs.utf_8_decode(body, "strict", not cut)[0], "utf-8"
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace"), "cp1252"


def _named(name: str) -> str | None:
    try:
        found = codecs.lookup(_SPELLED.get(name.lower(), name)).name
    except (LookupError, ValueError):
        return None
    found = _WIDER.get(found, found)
    return found if _KNOWN.fullmatch(found) else None


RAW = frozenset(
    {"script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title", "plaintext"}
)
"""Elements whose content is not markup."""

_LONGEST_ATTRIBUTES = 8_192
_NAME = re.compile(r"[a-zA-Z][^\s/>]{0,63}")
_ATTRIBUTE = re.compile(r"""([^\s=/>"']{1,64})(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?""")
_NUMBER = re.compile(r"&#(?:[xX][0-9a-fA-F]{7,}|[0-9]{8,});?")
"""Numeric references that are too long for any character and slow to parse."""


class Text(NamedTuple):
    text: str
    """Text with resolved entities."""


class Start(NamedTuple):
    name: str
    attributes: Mapping[str, str]


class End(NamedTuple):
    name: str


Token = Text | Start | End


def tokens(page: str) -> Iterator[Token]:
    """Yield the tags and texts of a page in order, without comments and declarations."""
    reader = _Reader(page)
    text = at = 0
    while (found := page.find("<", at)) >= 0:
        token, end = reader.tag(found)
        if isinstance(token, Text):  # an ordinary character, part of the surrounding text
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
    """Resolve the entities of a text."""
    if "&" not in text:
        return text
    return unescape(_NUMBER.sub("\ufffd", text))


class _Reader:
    def __init__(self, page: str) -> None:
        self._page = page
        self._missing: dict[str, int] = {}
        """Texts that do not occur from a position on."""
        self._found: dict[str, tuple[int, int]] = {}
        """Start and result of the last search for a text."""
        self._ends: dict[str, re.Pattern[str]] = {}

    def tag(self, at: int) -> tuple[Token | None, int]:
        """Return the token that begins with the `<` at a position, and its end."""
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
        """Return the start of the end tag of a raw text."""
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
        """Return the position after the `>` of a tag, ignoring quoted values."""
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
        """Like `str.find`, for increasing positions, with a cache of the last result."""
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
    """Return the start of a quoted value before the end, or -1."""
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
