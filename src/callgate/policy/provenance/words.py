"""Words of a user's text, with their position, quotation marks and punctuation. Pure.

Mail `a b` to "Ann".  ->  Mail, a (quoted), b (quoted), to, Ann (quoted, before a full stop)
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from callgate.policy.provenance import forms

_LONGEST_HOST = 256
_LONGEST_QUOTE = 4_096
_MOST_APOSTROPHES = 8
_SMART = {ord(mark): '"' for mark in "“”„«»"} | {ord(mark): "'" for mark in "‘’"}
_BULLET = re.compile(r"\n[ \t]*(?:[-*•]|\d{1,3}[.)])[ \t]")
_ABBREVIATIONS = frozenset({"e.g", "i.e", "etc", "vs", "mr", "mrs", "ms", "dr", "st", "no", "nr"})


class Word(NamedTuple):
    text: str
    """Folded, as in `forms.tokens`."""
    raw: str
    start: int
    """Its position in the text."""
    end: int
    is_quoted: bool
    """It is inside quotation marks or backticks."""
    mark: str
    """The punctuation after it: one of `.?:;,`, or empty."""


def normalized(text: str) -> str:
    """Return a text with composed accents and plain quotation marks."""
    nfc = text if text.isascii() else unicodedata.normalize("NFC", text)
    return nfc.translate(_SMART)


def words_of(text: str) -> list[Word]:
    """Return the words of a normalized text with the punctuation around them."""
    found: list[Word] = []
    matches = list(forms.TOKEN.finditer(text))
    closing = -1
    for at, match in enumerate(matches):
        raw, start = match.group(), match.start()
        following = matches[at + 1].start() if at + 1 < len(matches) else len(text)
        gap = text[match.end() : following] + ("" if at + 1 < len(matches) else "\n")
        if start > closing:
            closing = _closing_quote(text, start)
        is_quoted = start < closing
        core = forms.bare(raw)
        start += raw.find(core)
        tail = raw.rpartition(core)[2]
        host, name = _glued(core)
        if host:
            found.append(_word(host, start, is_quoted, "" if is_quoted else "."))
            start, core = start + len(host) + 1, name
        is_inside = is_quoted and following < closing
        found.append(_word(core, start, is_quoted, "" if is_inside else _mark(core, tail, gap)))
    return found


def _glued(word: str) -> tuple[str, str]:
    """Divide a host at the end of a sentence without a blank after it: `www.corp.example.They`."""
    host, _, name = word.rpartition(".")
    is_sentence = name[:1].isupper() and name.isalpha() and len(word) <= _LONGEST_HOST
    if is_sentence and host.islower() and "." in host and forms.is_host(host):
        return host, name
    return "", word


def _closing_quote(text: str, start: int) -> int:
    """Return the end of the quotation that opens in front of a word; -1 if none opens there."""
    mark = text[start - 1 : start]
    is_open = mark in ("'", '"', "`") and not text[start - 2 : start - 1].isalnum()
    if start == 0 or not is_open:
        return -1
    at = start
    for _ in range(_MOST_APOSTROPHES):
        at = text.find(mark, at, start + _LONGEST_QUOTE)
        if at < 0:
            return -1
        if not text[at + 1 : at + 2].isalnum():
            return at
        at += 1
    return -1


def _word(core: str, start: int, is_quoted: bool, mark: str) -> Word:
    folded = forms.fold(core)
    if folded[-1:].isdigit():
        folded = forms.number(folded)
    return Word(folded, core, start, start + len(core), is_quoted, mark)


def _mark(core: str, tail: str, gap: str) -> str:
    if not core.strip("?!.:"):
        core, tail = "", core  # punctuation after a quotation
    if "\n\n" in gap or "\n\r\n" in gap or _BULLET.search(gap) is not None:
        return "?" if "?" in tail + gap else "."
    punctuation = (tail + gap).strip("\"'`)] \t\n*_")
    if core and (not gap or not gap[0].isspace()):
        punctuation = gap.strip("\"'`)] \t\n") if gap[:1] in "\"'`)],;" else ""
        punctuation = (tail if gap[:1] in "\"'`)" else "") + punctuation
    for mark in "?!.;:,":
        if mark in punctuation:
            if mark == "." and core.lower() in _ABBREVIATIONS:
                return ""
            return "." if mark == "!" else mark
    return ""
