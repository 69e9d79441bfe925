"""Secrets that the words around them give away: headers, flags, elements, table entries.

    Cookie: sid=x             curl -u alice:x           machine h login l password x
    Bearer x                  --password x              <password>x</password>
    "name": "API_KEY", "value": "x"                     <add key="ApiSecret" value="x"/>
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from callgate.audit.assignments import NAME, STEM, is_secret, take_quoted, whole_name
from callgate.audit.names import Weight, weigh
from callgate.audit.quotations import QUOTE, closing
from callgate.audit.shapes import MOST, Spans
from callgate.audit.values import MASK, made_by_machine, stands_in

_ARGUMENT = r"""(?:\\{0,7}["']([^"'\\\r\n]+)|([^\s"'\\<>|;&]+))"""


def _first_group(match: re.Match[str]) -> tuple[int, int]:
    return match.span(match.lastindex or 0)


def _each(pattern: re.Pattern[str], text: str, spans: Spans) -> Iterator[re.Match[str]]:
    """The matches of a pattern, as many as anybody writes; beyond, all is masked."""
    for number, match in enumerate(pattern.finditer(text)):
        if number == MOST:
            spans.append((match.start(), len(text)))
            return
        yield match


# Headers.

_BEARER = re.compile(r"(?<![a-z])(?:bearer|basic)(?:[ \t]+|%20)([a-z0-9._~+/=-]{8,})")
_COOKIES = re.compile(r"(?<![a-z])(?:set-)?cookie2?\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']?([^\r\n\"'\\]+)")
_COOKIE = re.compile(r"([\w.$-]{1,128})=([^;,\s]+)")
_COOKIE_ATTRIBUTES = frozenset("path domain expires max-age samesite priority version".split())


def find_in_headers(text: str, low: str, spans: Spans) -> None:
    if "bearer" in low or "basic" in low:
        for match in _each(_BEARER, low, spans):
            if made_by_machine(text[match.start(1) : match.end(1)]):
                spans.append(match.span(1))
    if "cookie" in low:
        for match in _each(_COOKIES, low, spans):
            if match.group().count("=") > 100:
                spans.append(match.span(1))
                continue
            for cookie in _COOKIE.finditer(text, *match.span(1)):
                name, value = cookie.groups()
                attribute = name.lower() in _COOKIE_ATTRIBUTES
                if not attribute and not stands_in(value, quoted=True):
                    spans.append(cookie.span(2))


# Commands.

_FLAG = re.compile(
    rf"(?<![\w-])--?(?=[\w-]{{0,40}}{STEM})(?P<name>[\w-]{{1,80}}+)"
    rf"(?:[ \t]+|{QUOTE}?,\s{{0,20}})(?:(?P<quote>{QUOTE})|(?P<word>[^\s\"'`\\<>|;&)\]}},-]"
    r"[^\s\"'`\\<>|;&)\]},]*))"
)
_KEYISH = re.compile(r"(?<![A-Za-z0-9_+/=.~-])[A-Za-z0-9_+/=.~-]{16,}")
_JUST_BEFORE = re.compile(
    rf"{NAME}[\"'`)]?[ \t:=]*(?:[ \t][a-z]{{1,8}}:?(?=[ \t])){{0,3}}[ \t\[(]*[\"'`(\[]?\Z"
)
_USER = re.compile(
    r"(?<![\w-])(?:-u[ \t]*|-U[ \t]+|-a[ \t]+|--(?:user|proxy-user|http-user|auth)(?:[ \t]+|=))"
    r"(?:[\"'],\s{0,20})?\\{0,7}[\"']?([^\s\"':\\/@-][^\s\"':\\/@]{0,128}):(?!//)([^\s\"'\\]+)"
)
_CURLED = ("curl", "wget", "http", "--user", "--proxy-user")
_SHORT_FLAGS = [
    ("mysql", re.compile(r"(?<!\S)-p([^\s\"'\\]{4,})")),
    ("mariadb", re.compile(r"(?<!\S)-p([^\s\"'\\]{4,})")),
    ("sshpass", re.compile(rf"sshpass[ \t]+-p[ \t]*{_ARGUMENT}")),
    ("redis-cli", re.compile(rf"redis-cli[^\n|;&]{{0,200}}?[ \t]-a[ \t]+{_ARGUMENT}")),
    ("docker login", re.compile(rf"docker login[^\n|;&]{{0,200}}?[ \t]-p[ \t]+{_ARGUMENT}")),
    ("ldap", re.compile(rf"ldap\w{{1,16}}+[^\n|;&]{{0,200}}?[ \t]-w[ \t]+{_ARGUMENT}")),
    ("smbclient", re.compile(r"-u[ \t]+[\"']?[^\s%\"']{1,64}%([^\s\"']+)")),
    ("pass:", re.compile(r"-pass(?:in|out)?[ \t]+[\"']?pass:([^\s\"']+)")),
    ("htpasswd", re.compile(rf"htpasswd[ \t]+-\w{{0,8}}b\w{{0,8}}[ \t]+\S+[ \t]+\S+[ \t]+{_ARGUMENT}")),
("-stdin", re.compile(rf"(?:echo|printf)[ \t]+(?:-n[ \t]+)?{_ARGUMENT}[\"']?[ \t]*\|"
                          r"(?=[^|\n]{0,120}(?:password|pass|token)-stdin)")),
    ("sudo -s", re.compile(rf"(?:echo|printf)[ \t]+(?:-n[ \t]+)?{_ARGUMENT}[\"']?[ \t]*\|[ \t]*sudo -s")),
    ("identified", re.compile(r"identified (?:\w+ )?(?:with \w+ )?by (?:password )?[\"']([^\"'\r\n]+)")),
    ("password", re.compile(r"password[ \t]+[\"']([^\"'\r\n]+)[\"']")),
    ("password", re.compile(r"(?:login|user|account|machine)\s+\S+\s+password\s+(\S+)")),
    ("setx", re.compile(rf"setx[ \t]+\w{{0,40}}{STEM}\w{{0,40}}[ \t]+{_ARGUMENT}")),
    ("env ", re.compile(rf"(?:^|\n)env[ \t]+\w{{0,40}}{STEM}\w{{0,40}}[ \t]+{_ARGUMENT}")),
]  # fmt: skip
"""A word that must be there, and how a secret stands after it; all in lower case."""
FLAGGED = ("-u", "-a ", "mysql", "mariadb", "redis-cli", "docker login", "ldap", "smbclient",
           "sudo -s", "identified")  # fmt: skip
"""Words beside a flag that a secret may follow without a telling name."""


def find_in_commands(text: str, low: str, spans: Spans) -> None:
    if "-" in low:
        _find_flags(text, low, spans)
        if any(word in low for word in _CURLED):
            for match in _each(_USER, text, spans):
                if not stands_in(match.group(2), quoted=True):
                    spans.append(match.span(2))
    for word, pattern in _SHORT_FLAGS:
        if word in low:
            for match in _each(pattern, low, spans):
                start, stop = _first_group(match)
                if not stands_in(text[start:stop], quoted=True):
                    spans.append((start, stop))


def _find_flags(text: str, low: str, spans: Spans) -> None:
    for match in _each(_FLAG, low, spans):
        weight = weigh(text[match.start("name") : match.end("name")])
        if not weight:
            continue
        if match.group("quote") is not None:
            take_quoted(text, match.end(), match.group("quote"), weight, spans)
        elif match.group("word") is not None:
            start, stop = match.span("word")
            if is_secret(text[start:stop], weight, quoted=False):
                spans.append((start, stop))


def find_nearby(text: str, low: str, spans: Spans) -> None:
    """`The API key is x`: nothing assigns, but what follows the name is no word."""
    masked = {start for start, _ in spans}
    for match in _KEYISH.finditer(text):
        stop = match.start()
        if stop in masked:
            continue
        for name in _NAMES.finditer(low, max(0, stop - 56), stop):
            before = _JUST_BEFORE.match(low, name.start(), stop)
            if before is None or not weigh(whole_name(text, before)[0]):
                continue
            word = match.group()
            if made_by_machine(word) and not word.islower() and not word.isupper():
                spans.append(match.span())
            break


_NAMES = re.compile(STEM)


# Markup and tables.

_ELEMENT = re.compile(rf"{NAME}(?:[ \t][^<>\r\n]{{0,120}})?>([^<>]{{1,8192}})</")
_VALUE = re.compile(
    rf"(?<![a-z])(?:value|val|default|content){QUOTE}?[ \t]*[:=][ \t]*"
    rf"(?:(?P<quote>{QUOTE})|(?P<bare>[^\s\"'`,<>{{}}]+))"
)
_NAME_BEFORE = re.compile(
    rf"{NAME}{QUOTE}(?![ \t]*[:=])[^<>{{}}]*\Z|(?:name|key):[ \t]+(?P<listed>[\w.-]{{1,96}}+)\s+\Z"
)
_NAME_AFTER = re.compile(
    r"[\"'`\\]*[^<>{}\r\n]{0,80}?(?<![a-z])(?:name|key|type|id)\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']"
    r"(?P<name>[\w.-]{1,64})"
)
_PLIST = re.compile(rf"{NAME}</key>\s{{0,40}}<string>([^<>]{{1,8192}})<")
_NEWLINE = r"(?:\r?\n|\\+r\\+n|\\+n)"
_FORM_PART = re.compile(
    rf"form-data;[^\r\n]{{0,80}}?name=\\*\"(?P<name>[\w.-]{{1,96}})\\*\"[^\r\n\\]{{0,200}}{_NEWLINE}"
    rf"(?:[^\r\n\\]{{1,200}}{_NEWLINE}){{0,3}}{_NEWLINE}([^\r\n\\]+)"
)
_TABLE_ROW = re.compile(
    r"(?m)^[^\s:]{1,128}:(?:[0-9]{4,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:([^\s:]{6,})$"
)


def find_in_markup(text: str, low: str, spans: Spans) -> None:
    if "</" in low:
        for pattern in (_ELEMENT, _PLIST):
            for match in _each(pattern, low, spans):
                start, stop = match.span(2)
                weight = weigh(whole_name(text, match)[0])
                if weight and is_secret(text[start:stop].strip(), weight, quoted=True):
                    spans.append((start, stop))
    if "form-data" in low:
        for match in _each(_FORM_PART, low, spans):
            start, stop = match.span(2)
            weight = weigh(text[match.start(1) : match.end(1)])
            if weight and is_secret(text[start:stop], weight, quoted=True):
                spans.append((start, stop))
    if "val" in low or "default" in low or "content" in low:
        _find_named_values(text, low, spans)
    if low.count(":") >= 4:
        for match in _each(_TABLE_ROW, text, spans):
            if MASK not in match.group(1) and made_by_machine(match.group(1)):
                spans.append(match.span(1))


def _find_named_values(text: str, low: str, spans: Spans) -> None:
    """A table of names and values: the name is itself a value there, before or after."""
    for match in _each(_VALUE, low, spans):
        weight = max(_weight_before(text, low, match.start()), _weight_after(text, low, match))
        if not weight:
            continue
        if match.group("quote") is not None:
            take_quoted(text, match.end(), match.group("quote"), weight, spans)
        else:
            start, stop = match.span("bare")
            if is_secret(text[start:stop], weight, quoted=False):
                spans.append((start, stop))


def _weight_before(text: str, low: str, stop: int) -> Weight:
    start = max(0, stop - 160)
    match = _NAME_BEFORE.search(low, start, stop)
    if match is None:
        return Weight.NONE
    if match.group("listed") is not None:
        return weigh(text[match.start("listed") : match.end("listed")])
    return weigh(whole_name(text, match)[0])


def _weight_after(text: str, low: str, match: re.Match[str]) -> Weight:
    quote = match.group("quote")
    if quote is None:
        return Weight.NONE
    stop = closing(text, match.end(), quote)
    if stop - match.end() > 512:
        return Weight.NONE
    after = _NAME_AFTER.match(low, stop, stop + 160)
    return weigh(text[after.start("name") : after.end("name")]) if after is not None else Weight.NONE
