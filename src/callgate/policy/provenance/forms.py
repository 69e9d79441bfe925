"""Which spellings of a value are the same value. Pure, in time linear in the text.

    Alice@Corp.example, "alice@corp.example"    one address
    HTTPS://Corp.example:443/a/b                the host corp.example, the path /a/b
    1,000.50  1000.5                            one number
    GB29 NWBK 6016  GB29NWBK6016                one account

Only ASCII letters lose their case: of two hosts that look alike in Unicode none becomes the other.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit

LONGEST_VALUE = 256
"""Characters of a value that is looked for as a whole; a longer one is looked for in parts."""

_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_TOKEN = re.compile(r"""(?:[^\s<>"'`()\[\]{},;|]|(?<=\d),(?=\d{3}))+""")
_EDGES = "*_.:!?~=#"
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?\Z")
_LOCAL_PART = re.compile(r"[a-z0-9.!#$%&*+/=?^_{}~-]+\Z")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}\Z|\[[0-9a-f:.]+\]\Z")
WEB = 443
"""The port that stands for both of the web."""
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ssh": 22}
_COMMON = frozenset(
    """a about above after again all also am an and any are as ask at be been before being below
    both but by can could day did do does doing done down each every few file files find first for
    from further get give go had has have he her here him his how i id if in info into is it its
    just know let like list look mail mails make many may me message messages more most must my
    name need new next no not now number of off on once one only or other our out over own please
    read same send she should show so some such sure tell than that the their them then there
    these they this those through time to today tomorrow two under until up us use user very want
    was we were what when where which while who why will with would yes you your""".split()  # noqa: SIM905
)
"""Words that stand in any text, and so prove nothing."""


class Address(NamedTuple):
    """Where a URL leads."""

    host: str
    port: int
    directory: str
    """Its path up to the last slash."""


def fold(text: str) -> str:
    """Without regard to case, and to how accents are composed."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", text).translate(_ASCII_LOWER)


def tokens(folded: str) -> list[str]:
    """The words of a folded text, without what surrounds them."""
    found = []
    for word in _TOKEN.findall(folded):
        bare = word.strip(_EDGES) or word
        found.append(number(bare) if bare[-1:].isdigit() else bare)
    return found


def number(word: str) -> str:
    """The one form of a number; anything else as it is."""
    plain = word.replace(",", "") if _THOUSANDS.match(word) else word
    whole, point, fraction = plain.removeprefix("-").partition(".")
    if not whole.isdecimal() or not point or not fraction.isdecimal():
        return plain if whole.isdecimal() and not point else word
    fraction = fraction.rstrip("0")
    sign = "-" if plain.startswith("-") else ""
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def email_in(word: str) -> str | None:
    """The address of `mailto:a@b.c`, `a@b.c`; None for anything else."""
    bare = word.removeprefix("mailto:").partition("?")[0]
    local, at, domain = bare.partition("@")
    return bare if at and _LOCAL_PART.match(local) and is_host(domain) else None


def is_host(word: str) -> bool:
    """Whether a folded word is the name of a host: labels with dots between them, or localhost."""
    labels = word.split(".")
    if len(labels) < 2:
        return word == "localhost"
    return all(map(_LABEL.match, labels)) and not labels[-1].isdecimal()


def address_of(word: str) -> Address | None:
    """Where a folded URL or host leads; None for what is neither, or can be read in two ways."""
    if "\\" in word or not word.isprintable() or " " in word:
        return None
    has_scheme = "://" in word
    try:
        parts = urlsplit(word if has_scheme else f"//{word}")
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return None
    bracketed = f"[{host}]" if ":" in host else host
    is_known = is_host(host) or _ADDRESS.match(bracketed)
    if not host or (not has_scheme and (parts.username is not None or not is_known)):
        return None
    default = _PORTS.get(parts.scheme, 443)
    directory = parts.path.rpartition("/")[0] + "/"
    if "/.." in parts.path or "%2e" in parts.path or "//" in parts.path:
        directory = "/\0"  # it may lead anywhere: below no other directory
    is_web = port in (None, 80, 443) and default in (80, 443)
    return Address(host, WEB if is_web else (port or default), directory)


def covers(known: Address, wanted: Address) -> bool:
    """Whether whoever wrote the first address meant the second: the same host and port, and the
    same directory or one below it."""
    return known[:2] == wanted[:2] and wanted.directory.startswith(known.directory)


def is_evidence(words: list[str]) -> bool:
    """Whether it proves anything that these words stand in a text: short numbers and common words
    stand in any."""
    for word in words:
        if word.replace(".", "").replace("-", "").isdigit():
            if len(word) >= 4:
                return True
        elif len(word) >= 3 and word not in _COMMON:
            return True
    return False


def is_grouped_number(value: str) -> bool:
    """Whether a value is an account or telephone number, which people write in groups."""
    digits = sum(map(str.isdecimal, value))
    return 8 <= len(value) <= 64 and digits >= 4 and value.lstrip("+").isalnum()


def squeeze(text: str) -> str:
    """Without blanks and hyphens."""
    return "".join(text.split()).replace("-", "")


def stands_grouped(value: str, words: list[str]) -> bool:
    """Whether words in a row are the groups of a squeezed number, and no digits stand beside it:
    the beginning of a longer number is another number."""
    groups = [word.replace("-", "") for word in words]
    for start, first in enumerate(groups):
        if not first or not value.startswith(first):
            continue
        joined, end = first, start + 1
        while len(joined) < len(value) and end < len(groups):
            joined += groups[end]
            end += 1
        if joined != value:
            continue
        beside = (*groups[max(0, start - 1) : start], *groups[end : end + 1])
        if not any(word.isdecimal() for word in beside):
            return True
    return False


def is_named_number(parameter: str, value: str, text: str, words: list[str]) -> bool:
    """Whether a text names a short number as what the parameter is: `id 7`, `file 13`, `#7`."""
    marked = text.find(f"#{value}")
    if marked >= 0 and not text[marked + len(value) + 1 : marked + len(value) + 2].isalnum():
        return True
    nouns = {"id", "number", "no", "nr", *fold(parameter).split("_")}
    return any(word == value and before in nouns for before, word in pairwise(words))


def is_plain_value(word: str) -> bool:
    """Whether a word is an address or a number rather than a word of a sentence."""
    return "@" in word or "://" in word or sum(map(str.isdecimal, word)) >= 4


def links_in(text: str) -> list[str]:
    """The URLs in a text, and what readers take for one."""
    if "://" not in text and "www." not in text.lower():
        return []
    return [word for word in tokens(fold(text)) if "://" in word or word.startswith("www.")]
