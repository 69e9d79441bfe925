"""From the bytes of an answer to text: its byte-order mark, what its header says, what it says
itself, else UTF-8, else Windows-1252. Pure."""

from __future__ import annotations

import codecs
import re

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_KNOWN = re.compile(
    r"utf-8|utf-16(-[lb]e)?|iso8859-\d+|cp(125\d|866|874|932|949|950)|koi8-[ru]|mac-(roman|cyrillic)"
    r"|gbk|gb2312|gb18030|big5(hkscs)?|shift_jis|euc_(jp|kr)|iso2022_jp(_\d)?\Z"
)
"""Of Python's names, those that are in use on the web: others are no charsets, or too strange."""
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
"""Browsers read these as their supersets, and so pages are written."""
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
"""Names in use that Python does not know."""
_PARAMETER = re.compile(r"(?:charset|encoding)\s*=\s*[\"']?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_DECLARED_IN = 2_048
"""Bytes at the beginning in which a page may say its own."""


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def decode(body: bytes, content_type: str, *, cut: bool = False) -> tuple[str, str]:
    """The text, and the charset it was read in. Of a body that was cut the last character may be
    half there."""
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
