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
from collections.abc import Iterable, Iterator
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
_WINDING = ("/..", "/./", "%2e", "%2f", "%5c", "%25", "//")
_EXTENSIONS = frozenset(
    """md py sh rs pl zip js ts txt json toml yaml yml csv html htm css c h cpp go java rb php sql
    log lock cfg ini xml pdf png jpg svg ipynb exe then the this that it""".split()  # noqa: SIM905
)
"""Last parts of words that are files or the end of a sentence more often than hosts."""
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
    path: str
    """From the root, with a slash at its end."""
    scope: str
    """The part of the path that whoever names it means: itself and what is below, or the directory
    of a file."""


def fold(text: str) -> str:
    """Without regard to case, and to how accents are composed."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", text).translate(_ASCII_LOWER)


def tokens(folded: str) -> list[str]:
    """The words of a folded text, without what surrounds them."""
    found = []
    for word in _TOKEN.findall(folded):
        # `./x`, `~/x` and `/x` are different places.
        bare = word.rstrip(".:!?") if "/" in word else word.strip(_EDGES)
        bare = bare or word
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
    bare = word.removeprefix("mailto:")
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
    if port == 0 or (has_scheme and parts.scheme not in _PORTS):
        return None
    default = _PORTS.get(parts.scheme, WEB)
    is_web = port in (None, 80, 443) and default in (80, 443)
    path = f"/{parts.path.strip('/')}/".replace("//", "/")
    head, _, last = path[:-1].rpartition("/")
    scope = f"{head}/" if "." in last else path
    if any(mark in parts.path for mark in _WINDING):
        path = scope = "/\0/"  # it may lead anywhere: below no other directory
    return Address(host, WEB if is_web else (port or default), path, scope)


def is_named_host(word: str, address: Address) -> bool:
    """Whether a word without a scheme is meant as a host: `README.md` and `this.Then` are not."""
    if word.startswith("www.") or "/" in word or ":" in word or address.host[:1].isdigit():
        return True
    return address.host == "localhost" or address.host.rpartition(".")[2] not in _EXTENSIONS


def scopes(path: str) -> Iterator[str]:
    """The path itself and every directory above it."""
    yield path
    while path != "/":
        path = path[:-1].rpartition("/")[0] + "/"
        yield path


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


def is_name(words: list[str]) -> bool:
    """Whether words name one thing: two of them at least, or a file. One word of a prompt is
    easily met."""
    proving = [word for word in words if is_evidence([word])]
    return len(proving) > 1 or (len(words) == 1 and "." in words[0].strip("."))


def is_grouped_number(value: str) -> bool:
    """Whether a value is an account or telephone number, which people write in groups."""
    digits = sum(map(str.isdecimal, value))
    return 8 <= len(value) <= 64 and digits >= 4 and value.lstrip("+").isalnum()


def squeeze(text: str) -> str:
    """Without blanks and hyphens."""
    return "".join(text.split()).replace("-", "")


def stands_grouped(value: str, groups: list[str], starts: Iterable[int]) -> bool:
    """Whether groups in a row, from one of the places `starts`, make a squeezed number, and no
    digits stand beside it: the beginning of a longer number is another number."""
    for start in starts:
        joined, end = groups[start], start + 1
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
    nouns = {noun for noun in fold(parameter).split("_") if len(noun) > 2}  # not `to`
    nouns |= {"id", "number", "no", "nr"}
    return any(word == value and before in nouns for before, word in pairwise(words))


def is_plain_value(word: str) -> bool:
    """Whether a word is an address or a number rather than a word of a sentence."""
    return "@" in word or "://" in word or sum(map(str.isdecimal, word)) >= 4


def links_in(text: str) -> list[str]:
    """The URLs in a text, and what readers and mail programs take for one."""
    if "." not in text and "://" not in text:
        return []
    return [word for word in dict.fromkeys(tokens(fold(text))) if _is_link(word)]


def _is_link(word: str) -> bool:
    if "://" in word or word.startswith(("www.", "//")):
        return True
    host, slash, _ = word.partition("/")
    return bool(slash) and is_host(host) and host.rpartition(".")[2] not in _EXTENSIONS
