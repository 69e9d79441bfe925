"""Equal spellings of one value, and the hosts in a command. Pure, in time linear in the text.

    Alice@Corp.example, "alice@corp.example"    one address
    HTTPS://Corp.example:443/a/b                the host corp.example, the path /a/b
    1,000.50  1000.5                            one number
    GB29 NWBK 6016  GB29NWBK6016                one account

Only ASCII letters lose their case: hosts that look alike in Unicode stay different. A command's
hosts are recognized only in unambiguous forms: a URL, an address, `user@host`. A command that runs
because of its hosts reaches no others, so it cannot reach a missed host.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

LONGEST_VALUE = 256
"""Maximum characters of a value that is searched for as a whole; longer ones are split."""

_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
TOKEN = re.compile(r"""(?:[^\s<>"'`()\[\]{},;|]|(?<=\d),(?=\d{3}))+""")
_EDGES = "*_.:!?~=#"
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?\Z")
_LOCAL_PART = re.compile(r"[a-z0-9.!#$%&*+/=?^_{}~-]+\Z")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}\Z|\[[0-9a-f:.]+\]\Z")
WEB = 443
"""The port that represents both web ports."""
_UNKNOWN_PORT = -1
EXTENSIONS = frozenset(
    """md py sh rs pl zip js ts txt json toml yaml yml csv html htm css c h cpp go java rb php sql
    log lock cfg ini xml pdf png jpg svg ipynb exe then the this that it""".split()  # noqa: SIM905
)
"""Last labels that occur more often in file names or at sentence ends than in host names."""
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
"""Words that appear in any text, and so prove nothing."""


class Address(NamedTuple):
    """The target of a URL."""

    host: str
    port: int
    page: str
    """The path without a final slash, the query and the fragment, as written."""
    user: str = ""
    """User name and password: data that goes to the host, too."""
    is_encrypted: bool = True
    """False for `http:` and the like; a host without a scheme may be reached either way."""


def fold(text: str) -> str:
    """Fold ASCII case and normalize accents."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", text).translate(_ASCII_LOWER)


def tokens(folded: str) -> list[str]:
    """Return the words of a folded text, without surrounding punctuation."""
    words = map(bare, TOKEN.findall(folded))
    return [number(word) if word[-1:].isdigit() else word for word in words]


def bare(word: str) -> str:
    """Return a word without the punctuation at its edges."""
    # `./x`, `~/x` and `/x` are different paths.
    stripped = word.rstrip(".:!?") if "/" in word else word.strip(_EDGES)
    return stripped or word


def number(word: str) -> str:
    """Return the canonical form of a number, or any other word unchanged."""
    plain = word.replace(",", "") if _THOUSANDS.match(word) else word
    integer, point, fraction = plain.removeprefix("-").partition(".")
    if not integer.isdecimal() or not point or not fraction.isdecimal():
        return plain if integer.isdecimal() and not point else word
    fraction = fraction.rstrip("0")
    sign = "-" if plain.startswith("-") else ""
    return f"{sign}{integer}.{fraction}" if fraction else f"{sign}{integer}"


def email_in(word: str) -> str | None:
    """Return the address in `mailto:a@b.c` or `a@b.c`; None for other text."""
    bare = word.removeprefix("mailto:")
    local, at, domain = bare.partition("@")
    return bare if at and _LOCAL_PART.match(local) and is_host(domain) else None


def is_host(word: str) -> bool:
    """Whether a folded word is a host name: labels separated by dots, or localhost."""
    labels = word.split(".")
    if len(labels) < 2:
        return word == "localhost"
    return all(map(_LABEL.match, labels)) and not labels[-1].isdecimal()


def address_of(word: str) -> Address | None:
    """Return the target of a URL or host; None for other or ambiguous text.

    Upper case in the scheme and the host is ignored; in the remainder it is not.
    """
    if "\\" in word or not word.isprintable() or " " in word:
        return None
    has_scheme = "://" in word
    try:
        split_url = urlsplit(word if has_scheme else f"//{word}")
        host, port = (split_url.hostname or "").rstrip("."), split_url.port
    except ValueError:
        return None
    if host.isascii() and not split_url.netloc.isascii():
        return None  # a letter that only looks like an ASCII letter
    bracketed = f"[{host}]" if ":" in host else host
    is_known = is_host(host) or _ADDRESS.match(bracketed)
    if not host or (not has_scheme and (split_url.username is not None or not is_known)):
        return None
    default = _PORTS.get(split_url.scheme, _UNKNOWN_PORT) if has_scheme else WEB
    is_web = port in (None, 80, 443) and default in (80, 443)
    query = f"?{split_url.query}" if split_url.query else ""
    fragment = f"#{split_url.fragment}" if split_url.fragment else ""
    return Address(
        host,
        WEB if is_web else (default if port is None else port),
        f"{split_url.path.removesuffix('/')}{query}{fragment}",
        split_url.netloc.rpartition("@")[0],
        split_url.scheme not in ("http", "ws", "ftp"),
    )


def is_named_host(word: str, address: Address) -> bool:
    """Whether a word is a host or URL: `README.md` and `this.Then` are not."""
    if (
        "://" in word
        or word.startswith("www.")
        or "/" in word
        or ":" in word
        or address.host[:1].isdigit()
    ):
        return True
    return address.host == "localhost" or address.host.rpartition(".")[2] not in EXTENSIONS


def is_evidence(words: list[str]) -> bool:
    """Whether the occurrence of these words in a text proves anything. Short numbers and common
    words occur in any text.
    """
    for word in words:
        if word.replace(".", "").replace("-", "").isdigit():
            if len(word) >= 4:
                return True
        elif len(word) >= 3 and word not in _COMMON:
            return True
    return False


def is_common(word: str) -> bool:
    """Whether a word appears in any text."""
    return word in _COMMON


def is_name(words: list[str]) -> bool:
    """Whether the words name one object: at least two words, or a file. A single word of a
    prompt matches too easily.
    """
    proving = [word for word in words if is_evidence([word])]
    return len(proving) > 1 or (len(words) == 1 and "." in words[0].strip("."))


def is_grouped_number(value: str) -> bool:
    """Whether a value is an account or telephone number, which people write in groups."""
    digits = sum(map(str.isdecimal, value))
    return 8 <= len(value) <= 64 and digits >= 4 and value.lstrip("+").isalnum()


def squeeze(text: str) -> str:
    """Remove blanks and hyphens."""
    return "".join(text.split()).replace("-", "")


def stands_grouped(value: str, groups: list[str], starts: Iterable[int]) -> bool:
    """Whether consecutive groups, starting at one of `starts`, form a squeezed number.

    No digits may be adjacent: the beginning of a longer number is another number.
    """
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


def is_noun_of_number(parameter: str, word: str) -> bool:
    """Whether a word names a short number as the parameter's kind: `id 7`, `file 13`."""
    nouns = {noun for noun in fold(parameter).split("_") if len(noun) > 2}  # not `to`
    return word in nouns or word in ("id", "number", "no", "nr")


def is_plain_value(word: str) -> bool:
    """Whether a word is an address or a number rather than a word of a sentence."""
    return "@" in word or "://" in word or sum(map(str.isdecimal, word)) >= 4


_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}(?:t[\d:.z+-]*)?\Z|\d{1,2}:\d{2}(?::\d{2})?\Z")


def is_distinctive(word: str) -> bool:
    """Whether a word is a code, an address or a long number, so that it is hardly a coincidence."""
    if email_in(word) is not None:
        return True
    digits = sum(map(str.isdecimal, word))
    if digits < 3 or _DATE.match(word) is not None or "://" in word:
        return False
    return digits >= 5 or (len(word) >= 6 and not word.isdecimal())


_REMOTE = re.compile(r"[a-z0-9._-]+@([a-z0-9.-]+|\[[0-9a-f:.]+\])(:.*)?\Z")
_REMOTE_PROGRAMS = frozenset({"ssh", "scp", "sftp", "rsync", "mosh", "ssh-copy-id", "sshfs"})
_DIGESTS = frozenset({"sha1", "sha256", "sha384", "sha512", "md5"})


def hosts_in(command: str) -> tuple[str, ...]:
    """Return the distinct hosts in a command, with non-default ports."""
    return tuple(dict.fromkeys(addresses_in(command).values()))


def addresses_in(command: str) -> dict[str, str]:
    """Return the words that contain a host, each with its host."""
    found: dict[str, str] = {}
    words = tokens(fold(command))
    is_remote = not _REMOTE_PROGRAMS.isdisjoint(words)
    for word in words:
        for piece in (word, *word.split("=")[1:]):
            remote = _REMOTE.match(piece)
            if "://" in piece:
                address = address_of(piece)
            elif remote is not None:
                known = is_remote or _is_remote_host(remote[1], remote[2] or "")
                address = address_of(f"ssh://{remote[1]}") if known else None
            elif piece[:1].isdigit() or piece.startswith(("[", "localhost")):
                address = address_of(piece)
            else:
                address = None
            if address is not None:
                found[piece if remote is None else remote[1]] = _text(address)
    return found


def _is_remote_host(name: str, remainder: str) -> bool:
    """Whether `user@name` is a host, not a version or digest: `vite@latest`, `react@18.2`."""
    if name in _DIGESTS:
        return False
    is_address = _ADDRESS.match(name) is not None
    return is_address or is_host(name) or (remainder != "" and not remainder[1:].isdecimal())


def _text(address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return host if address.port == WEB else f"{host}:{address.port}"
