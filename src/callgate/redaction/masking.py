"""Mask secrets in text, by their shape, the name before them, or the words around them.

Each `find_...` function adds spans to a list, and `mask` cuts them out. Command lines are read here
too, up to the end of a command and at most `_LONGEST` characters, by the table in `suspicion`:

    --password x      curl -u alice:x      unzip -P x      echo x | sudo -S      net use ... x
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from callgate.core.patterns import Scan, literally
from callgate.redaction.assignments import QUOTE, STEM, find_assignments, take, take_quoted
from callgate.redaction.names import MASK, Weight, stands_in, weigh
from callgate.redaction.prose import (
    find_cookies,
    find_in_headers,
    find_in_markup,
    find_in_prose,
    find_nearby,
)
from callgate.redaction.shapes import (
    Spans,
    each_match,
    find_hex_keys,
    find_in_urls,
    find_key_blocks,
    find_random,
    find_tokens,
)
from callgate.redaction.suspicion import (
    ATTACHED,
    FORMS,
    READS_STDIN,
    SEPARATE,
    attached_options,
    command_words,
    has_long_run,
    is_attached,
    separate_options,
)

_FLAG = re.compile(
    rf"(?<![\w-])--?(?=[\w-]{{0,40}}{STEM})(?P<name>[\w-]{{1,80}})"
    rf"(?:[ \t]+|{QUOTE}?,\s{{0,20}})(?:(?P<quote>{QUOTE})|(?P<word>[^\s\"'`\\<>|;&)\]}},-]"
    r"[^\s\"'`\\<>|;&)\]},]*))"
)
_USER = re.compile(
    r"(?<![\w-])(?:-u[ \t]*|-U[ \t]+|-a[ \t]+|--(?:user|proxy-user|http-user|auth)(?:[ \t]+|=))"
    r"(?:[\"'],\s{0,20})?\\{0,7}[\"']?"
    r"[^\s\"':\\/@-][^\s\"':\\/@]{0,128}:(?!//)(?P<password>[^\s\"'\\]+)"
)
_CURLED = ("curl", "wget", "http", "--user", "--proxy-user")
_SENT_COOKIES = re.compile(
    r"-(?<![\w-]-)(?:b|-cookie)(?:[ \t]+|=|\\{0,7}[\"'],\s{0,20})?\\{0,7}[\"']?"
    r"([\w.$-]{1,128}=[^\r\n\"'\\]+)"
)
_VALUE = rf"(?:(?P<quote>{QUOTE})|(?P<word>[^\s\"'`\\<>|;&,]+))"
_ARGUMENT = r"""(?:\\{0,7}["']([^"'\\\r\n]+)|([^\s"'\\<>|;&]+))"""
_COMMAND = re.compile(r"""[^\n;|&"']*(?:(?:"[^"\n]*"|'[^'\n]*'|["'])[^\n;|&"']*)*""")
_LONGEST = 600


def _options(separate: tuple[str, ...], attached: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for options of one program with their value; case-sensitive."""
    behind = r"(?:[ \t]+|=|\\{0,7}[\"'],\s{0,20})(?!-)"
    kinds = [(each, behind) for each in separate]
    kinds += [(each, "") for each in attached]
    # A fixed prefix comes first, so that `re` can search for it.
    first = f"[{''.join({re.escape(each[0]) for each, _ in kinds})}]"
    remainder = "|".join(f"{re.escape(each[1:])}{behind}" for each, behind in kinds)
    return re.compile(rf"{first}(?<![^\s\"',]{first})(?:{remainder}){_VALUE}")


class _Program(NamedTuple):
    start: re.Pattern[str]
    options: re.Pattern[str]
    attached: tuple[str, ...]


def _programs() -> Iterator[tuple[str, _Program]]:
    names = [name for table in (SEPARATE, ATTACHED) for key in table for name in key.split(", ")]
    for name in dict.fromkeys(names):
        exact = re.escape(name)  # first, so that `re` can look for it
        start = re.compile(rf"{exact}(?<![\w-]{exact})(?:\.exe)?(?=[ \t\"'\\,])")
        attached = attached_options(name)
        yield name, _Program(start, _options(separate_options(name), attached), attached)


_PROGRAMS: dict[bytes, list[_Program]] = {}
"""Programs by their first word."""
for _name, _program in _programs():
    _PROGRAMS.setdefault(_name.split()[0].encode(), []).append(_program)
_FORMS = [
    (word, re.compile(form.replace("%STEM%", STEM).replace("§", _ARGUMENT))) for word, form in FORMS
]
_ANY_FORM = Scan(literally(word for word, _ in FORMS))
_ECHOED = re.compile(
    rf"(?:echo|printf)[ \t]+(?:-\w[ \t]+|[\"']%s(?:\\+n)?[\"'][ \t]+)?{_ARGUMENT}[\"']?[ \t]*\|"
    r"(?P<reader>[^|\n]{0,160})"
)
_HERE_STRING = re.compile(rf"(?P<reader>[^|\n<]{{1,160}})<<<[ \t]*{_ARGUMENT}")


def find_in_commands(text: str, low: str, spans: Spans) -> None:
    attached: set[int] = set()
    for program in _PROGRAMS.keys() & command_words(low):
        for each in _PROGRAMS[program]:
            attached |= _find_options(text, low, each, spans)
    if "-" in low:
        _find_flags(text, low, attached, spans)
        if any(word in low for word in _CURLED):
            for match in each_match(_USER, text, spans):
                _add_span(text, match.span("password"), spans)
            for match in each_match(_SENT_COOKIES, text, spans):
                find_cookies(text, match, spans)
    if _ANY_FORM.finds(low):
        _find_forms(text, low, spans)
    _find_piped(text, low, spans)


def _find_forms(text: str, low: str, spans: Spans) -> None:
    for word, form in _FORMS:
        if word in low:
            for match in each_match(form, low, spans):
                _add_span(text, match.span(match.lastindex or 0), spans)


def _find_flags(text: str, low: str, attached: set[int], spans: Spans) -> None:
    """Find values after a telling option. `attached`: positions of options that are one word with
    their value; they name nothing."""
    for match in each_match(_FLAG, low, spans):
        if match.start() in attached:
            continue
        weight = weigh(text[match.start("name") : match.end("name")])
        if not weight:
            continue
        if match.group("quote") is not None:
            take_quoted(text, match.end(), match.group("quote"), weight, spans)
        else:
            take(text, match.span("word"), weight, spans, quoted=False)


def _find_options(text: str, low: str, program: _Program, spans: Spans) -> set[int]:
    """Mask the values of a program's options, and return where the attached ones begin."""
    seen = 0
    attached = set()
    for name in each_match(program.start, low, spans):
        if name.start() < seen:  # in the command that was looked at last
            continue
        command = _COMMAND.match(text, name.end(), name.end() + _LONGEST)
        assert command is not None
        seen = command.end()
        for match in program.options.finditer(text, name.end(), command.end()):
            if is_attached(match.group(), program.attached):
                attached.add(match.start())
            if match.group("quote") is not None:
                take_quoted(text, match.end(), match.group("quote"), Weight.SECRET, spans)
            else:
                _add_span(text, match.span("word"), spans)
    return attached


def _find_piped(text: str, low: str, spans: Spans) -> None:
    """Find text that is echoed into a program that reads a password from standard input."""
    for mark, pattern in (("|", _ECHOED), ("<<<", _HERE_STRING)):
        if mark in low:
            for match in each_match(pattern, low, spans):
                if any(each in match.group("reader") for each in READS_STDIN):
                    group = next(number for number in (1, 2, 3) if _is_value(match, number))
                    _add_span(text, match.span(group), spans)


def _is_value(match: re.Match[str], number: int) -> bool:
    return number != match.re.groupindex["reader"] and bool(match.group(number))


def _add_span(text: str, span: tuple[int, int], spans: Spans) -> None:
    if not stands_in(text[slice(*span)], quoted=True):
        spans.append(span)


HIDDEN = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[@-Z\\\\^_])"
    "|[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_FULLWIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_WIDE = re.compile("[\uff01-\uff5e\u0130]")


def mask(text: str, *, bare: bool) -> str:
    """Mask the secrets in a text. Not `bare`: random text alone does not count as a secret here."""
    if not text.isascii() or "\x1b" in text:
        shown = HIDDEN.sub("", text)
        if shown != text:  # what is invisible may cut a secret in two
            masked = _until_stable(shown, bare=bare)
            return masked if masked != shown else text
    return _until_stable(text, bare=bare)


def _until_stable(text: str, *, bare: bool) -> str:
    """Repeat the search until nothing changes: a mask can make the text next to it suspicious."""
    if "-----" in text or "Private-L" in text:
        blocks: Spans = []
        find_key_blocks(text, blocks)
        text = _without(text, blocks) if blocks else text
    for _ in range(8):
        masked = _mask(text, bare=bare)
        if masked == text:
            break
        text = masked
    return text


def _mask(text: str, *, bare: bool) -> str:
    shadow = text
    if not text.isascii() and _WIDE.search(text):
        shadow = text.translate(_FULLWIDTH).replace("\u0130", "I")
    low = shadow.lower()
    spans: Spans = []
    public = find_key_blocks(shadow, spans) if "-----" in shadow or "private-l" in low else []
    if "://" in shadow or "@" in shadow:
        find_in_urls(shadow, spans)
    find_assignments(shadow, low, spans)
    find_in_headers(shadow, low, spans)
    find_in_commands(shadow, low, spans)
    find_in_prose(shadow, low, spans)
    find_in_markup(shadow, low, spans)
    if has_long_run(shadow):
        find_tokens(shadow, spans)
        if bare:
            find_random(shadow, spans, public)
            find_hex_keys(shadow, spans)
        find_nearby(shadow, low, spans)
    return _without(text, spans) if spans else text


def _without(text: str, spans: Spans) -> str:
    pieces: list[str] = []
    position = 0
    for start, stop in sorted(spans):
        if start > position or not pieces:
            pieces += (text[position:start], MASK)
        position = max(position, stop)
    pieces.append(text[position:])
    return "".join(pieces)
