"""Destinations inside outgoing texts: links in any spelling, headers, quoted literals. Pure.

    text -> readings (as written, without escapes, decoded) -> links
                                                            -> addresses in headers and literals

A reader, or a program behind the tool, may follow a link in a text, or act on a query in it. So
these count as destinations. Time and size are bounded.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from callgate.policy.provenance.forms import EXTENSIONS, email_in, fold, is_host, tokens

_LONGEST = 400_000
_LONGEST_DECODED = 100_000
_MOST_BLOBS = 16
_MOST_FOUND = 64
_MOST_NESTED = 256
_INVISIBLE = {
    ord(letter): None for letter in "\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e\u200e\u200f"
}
_DOTS = {ord(dot): "." for dot in "\u3002\uff0e\uff61\u2024"}
_SPELLED = re.compile(r"\s?[\[({](?:\.|dot|punkt)[\])}]\s?|(?<=[a-z0-9]) dot (?=[a-z0-9])", re.I)
_AT = re.compile(r"\s?[\[({](?:@|at)[\])}]\s?", re.I)
_SCHEME = re.compile(r"\bh(?:xx|tt)ps?(?:\[:\]|:)[\\/]{0,4}(?=[^\s\\/])", re.I)
_OTHER_LINK = re.compile(
    r"\b(?:mailto|tel|sms|smsto|javascript|vbscript|data|file|xmpp|sip|facetime):"
    r"(?=[^\s\"'<>]{3})[^\s\"'<>]{3,256}",
    re.I,
)
"""Links of a kind without a host after two slashes."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_BASE16 = re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{12,}(?![0-9A-Za-z])")
_BASE32 = re.compile(r"(?<![0-9A-Za-z])[A-Z2-7]{8,}={0,6}(?![0-9A-Za-z=])")
_HEADER = re.compile(
    r"^[ \t]*(?:(?:resent-)?(?:to|cc|bcc)|reply-to)[ \t]*:[ \t]*(\S.*)$", re.I | re.M
)
_LITERAL = re.compile(r"""(["'])([^"'\s]{3,256})\1""")
_QUERY = re.compile(
    r"\b(?:insert\s+into|update\s+\S+\s+set|delete\s+from|mutation|grant\s+\S+|select\s)", re.I
)
_IBAN = re.compile(r"[a-z]{2}\d{2}[a-z0-9]{10,30}\Z")
_PHONE = re.compile(r"\+\d{8,15}\Z")
_CARD = re.compile(r"(?<![\w.-])[2-6](?:[ -]?[0-9]){12,18}(?![\w-])")
_TLDS = frozenset(
    """com org net io dev app example test co info biz xyz ru cn top site online shop link click me
    ai cloud tech store live news page web eu uk de fr us ca in jp it nl br au ch se no pl es pw cc
    tk ml ga gg ly to tv ws""".split()  # noqa: SIM905
)
"""Endings with which readers take a bare host for a link; file extensions are not among them."""


_PROGRAM = re.compile(
    r"(?:^|[;})\s])(?:mutation|subscription)\b[^{;]{0,400}\{"
    r"|(?:^|;|\*/|--[^\n]*\n)\s*(?:insert|update|delete|drop|alter|create|grant|revoke|truncate"
    r"|merge|copy|call|exec|execute|replace|detach|set|load|attach)\b\s+\S",
    re.I,
)


def is_program(text: str) -> bool:
    """Whether a query changes something: a GraphQL mutation, or a statement like `DELETE`."""
    return _PROGRAM.search(text[:_LONGEST]) is not None


def links_in(text: str) -> list[str]:
    """Return the URLs in a text, and other words that readers and mail programs treat as links."""
    return list(dict.fromkeys(word for each in _readings(text) for word in _links(each)))


def addressed_in(text: str) -> list[str]:
    """Return the addresses in a text on which a program may act: in mail headers, and in literals
    of a query or of JSON."""
    found: list[str] = []
    for match in _HEADER.finditer(text[:_LONGEST]):
        found += [word for word in tokens(fold(match[1])) if email_in(word) is not None]
    if _QUERY.search(text[:_LONGEST]) is not None:
        literals = (match[2] for match in _LITERAL.finditer(text[:_LONGEST]))
        found += [literal for literal in literals if is_address(literal)]
    if text[:1] in "{[" and len(text) <= _LONGEST_DECODED:
        found += _in_json(text)
    return list(dict.fromkeys(found))[:_MOST_FOUND]


def card_numbers_in(text: str) -> list[str]:
    """Return the numbers of payment cards in a text: 13 to 19 digits with a correct check digit."""
    found = dict.fromkeys(match.group() for match in _CARD.finditer(text[:_LONGEST]))
    return [number for number in found if _has_check_digit(number)][:_MOST_FOUND]


def _has_check_digit(number: str) -> bool:
    digits = [int(letter) for letter in reversed(number) if letter.isdecimal()]
    doubled = (2 * digit - 9 * (digit > 4) for digit in digits[1::2])
    return len(set(digits)) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


def is_address(value: str) -> bool:
    """Whether a whole value is a mail address, a telephone number, an IBAN or a URL."""
    folded = fold(value.strip())
    if len(folded) > 2_048 or not folded:
        return False
    squeezed = "".join(folded.split()).replace("-", "")
    return (
        email_in(folded) is not None
        or _PHONE.match(squeezed) is not None
        or (_IBAN.match(squeezed) is not None and sum(map(str.isdigit, squeezed)) >= 8)
        or ("://" in folded and " " not in folded)
    )


def hidden_addresses(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the scalar values of arguments that are addresses, under any name."""
    stack: list[tuple[str, Any]] = list(arguments.items())
    for _ in range(_MOST_NESTED):
        if not stack:
            return
        name, value = stack.pop()
        if isinstance(value, str):
            if is_address(value):
                yield name, value
        elif isinstance(value, Mapping):
            stack += [(f"{name}.{key}", inner) for key, inner in list(value.items())[:_MOST_NESTED]]
        elif isinstance(value, list | tuple):
            stack += [(name, inner) for inner in value[:_MOST_NESTED]]


def _in_json(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [address for _, address in hidden_addresses({"": value})]


# --- readings ---------------------------------------------------------------------------------


def _readings(text: str) -> Iterator[str]:
    """Yield the text as written, as a reader sees it, and what its encoded parts contain."""
    text = text[:_LONGEST]
    if text.isascii() and text.isalpha():
        return
    yield text
    plain = _unescaped(text)
    if plain != text:
        yield plain
    yield from decodings(text)


def decodings(text: str) -> Iterator[str]:
    """Yield what encoded parts of a text contain: base64, base32 and hexadecimal digits."""
    for blob in list(_BASE64.findall(text))[:_MOST_BLOBS]:
        decoded = _decoded(blob)
        if decoded:
            yield decoded
            yield _unescaped(decoded)
    for blob in list(_BASE16.findall(text))[:_MOST_BLOBS]:
        decoded = _readable(blob[: len(blob) // 2 * 2], bytes.fromhex)
        if decoded:
            yield decoded
    for blob in list(_BASE32.findall(text))[:_MOST_BLOBS]:
        decoded = _readable(blob, base64.b32decode)
        if decoded:
            yield decoded


def disguises(text: str) -> Iterator[str]:
    """Yield a text in the letters of simple disguises: backwards, and rotated by 13."""
    if len(text) <= _LONGEST_DECODED:
        yield text[::-1]
        yield codecs.encode(text, "rot13")


def _readable(blob: str, decode: Callable[[str], bytes]) -> str:
    try:
        text = decode(blob[:_LONGEST_DECODED]).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""
    return text if text.isprintable() or "\n" in text else ""


def _unescaped(text: str) -> str:
    plain = text
    if "&" in plain:
        plain = html.unescape(plain)
    if "%" in plain:
        plain = unquote(plain)
    if not plain.isascii():
        plain = unicodedata.normalize("NFKC", plain.translate(_INVISIBLE).translate(_DOTS))
    plain = _AT.sub("@", _SPELLED.sub(".", plain))
    return _SCHEME.sub("https://", plain) if ":" in plain else plain


def _decoded(blob: str) -> str:
    part = blob[:_LONGEST_DECODED].rstrip("=").replace("-", "+").replace("_", "/")
    part = part[: len(part) // 4 * 4]
    return _readable(part, lambda text: base64.b64decode(text, validate=True))


def _links(text: str) -> Iterator[str]:
    for match in _OTHER_LINK.finditer(text):
        yield fold(match.group())
    if "." not in text and "://" not in text:
        return
    for word in tokens(fold(text)):
        for piece in (word, word.partition("=")[2]) if "=" in word else (word,):
            if _is_link(piece):
                yield piece


def _is_link(word: str) -> bool:
    if "://" in word or word.startswith(("www.", "//")):
        return True
    host, slash, _ = word.partition("/")
    host, colon, port = host.partition(":")
    ending = host.rpartition(".")[2]
    if not host.isascii() and slash:
        return "." in host
    if not is_host(host) or (colon and not port.isdecimal()):
        return False
    return ending in _TLDS or (
        bool(slash or colon) and len(ending) > 1 and ending not in EXTENSIONS
    )
