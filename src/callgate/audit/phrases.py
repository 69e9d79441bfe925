"""Secrets that the words around them give away: headers, flags, elements, rows of a table.

    Cookie: sid=x             curl -u alice:x           machine h login l password x
    Bearer x                  --password x              <password>x</password>
    "name": "API_KEY", "value": "x"                     <add key="ApiSecret" value="x"/>

Patterns that are matched against the text in lower case say so by taking `low`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from callgate.audit.assignments import NAME, STEM, is_secret, take_quoted, whole_name
from callgate.audit.names import Weight, weigh
from callgate.audit.quotations import QUOTE, closing
from callgate.audit.shapes import MOST, Spans
from callgate.audit.values import MASK, made_by_machine, stands_in, words


def _each(pattern: re.Pattern[str], text: str, spans: Spans) -> Iterator[re.Match[str]]:
    """The matches of a pattern, as many as anybody writes; beyond, all is masked."""
    for number, match in enumerate(pattern.finditer(text)):
        if number == MOST:
            spans.append((match.start(), len(text)))
            return
        yield match


# Headers.

_BEARER = re.compile(r"(?<![a-z])(bearer|basic)(?:[ \t]+|%20)([a-z0-9._~+/=-]{8,})")
_NO_WORD = re.compile(r"(?=[a-z._~+/=-]*[0-9]).{8,}|[a-z]{20,}.*")
"""After `bearer` a text with a digit or longer than any word is a token, however it looks."""
_COOKIES = re.compile(
    r"(?<![a-z])(?:set-)?cookie2?\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']?([^\r\n\"'\\]+)"
)
_COOKIE = re.compile(r"([\w.$-]{1,128})=([^;,\s]+)")
_MOST_COOKIES = 100
_COOKIE_ATTRIBUTES = words("path domain expires max-age samesite priority version")


def find_in_headers(text: str, low: str, spans: Spans) -> None:
    if "bearer" in low or "basic" in low:
        for match in _each(_BEARER, low, spans):
            token = text[match.start(2) : match.end(2)]
            bears = match.group(1) == "bearer" and _NO_WORD.fullmatch(match.group(2))
            if bears or made_by_machine(token):
                spans.append(match.span(2))
    if "cookie" in low:
        for match in _each(_COOKIES, low, spans):
            _find_cookies(text, match, spans)


def _find_cookies(text: str, header: re.Match[str], spans: Spans) -> None:
    if header.group().count("=") > _MOST_COOKIES:
        spans.append(header.span(1))
        return
    for cookie in _COOKIE.finditer(text, *header.span(1)):
        name, value = cookie.groups()
        if name.lower() not in _COOKIE_ATTRIBUTES and not stands_in(value, quoted=True):
            spans.append(cookie.span(2))


# Commands.

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
_ARGUMENT = r"""(?:\\{0,7}["']([^"'\\\r\n]+)|([^\s"'\\<>|;&]+))"""
_ECHOED = rf"(?:echo|printf)[ \t]+(?:-n[ \t]+)?{_ARGUMENT}[\"']?[ \t]*\|"
_KNOWN_COMMANDS = [
    (word, re.compile(pattern))
    for word, pattern in (
        ("mysql", r"(?<!\S)-p([^\s\"'\\]{4,})"),
        ("mariadb", r"(?<!\S)-p([^\s\"'\\]{4,})"),
        ("sshpass", rf"sshpass[ \t]+-p[ \t]*{_ARGUMENT}"),
        ("redis-cli", rf"redis-cli[^\n|;&]{{0,200}}?[ \t]-a[ \t]+{_ARGUMENT}"),
        ("docker login", rf"docker login[^\n|;&]{{0,200}}?[ \t]-p[ \t]+{_ARGUMENT}"),
        ("ldap", rf"ldap\w{{1,16}}(?!\w)[^\n|;&]{{0,200}}?[ \t]-w[ \t]+{_ARGUMENT}"),
        ("smbclient", r"-u[ \t]+[\"']?[^\s%\"']{1,64}%([^\s\"']+)"),
        ("pass:", r"-pass(?:in|out)?[ \t]+[\"']?pass:([^\s\"']+)"),
        ("htpasswd", rf"htpasswd[ \t]+-\w{{0,8}}b\w{{0,8}}[ \t]+\S+[ \t]+\S+[ \t]+{_ARGUMENT}"),
        ("-stdin", rf"{_ECHOED}(?=[^|\n]{{0,120}}(?:password|pass|token)-stdin)"),
        ("sudo -s", rf"{_ECHOED}[ \t]*sudo -s"),
        ("identified", r"identified (?:with \w+ )?by (?:password )?[\"']([^\"'\r\n]+)"),
        ("password", r"password[ \t]+[\"']([^\"'\r\n]+)[\"']"),
        ("password", r"(?:login|user|account|machine)\s+\S+\s+password\s+(\S+)"),
        ("setx", rf"setx[ \t]+\w{{0,40}}{STEM}\w{{0,40}}[ \t]+{_ARGUMENT}"),
        ("env ", rf"(?:^|\n)env[ \t]+\w{{0,40}}{STEM}\w{{0,40}}[ \t]+{_ARGUMENT}"),
    )
]
"""A word that must be there, and how a secret stands after it: the last group that matched."""


def find_in_commands(text: str, low: str, spans: Spans) -> None:
    if "-" in low:
        _find_flags(text, low, spans)
        if any(word in low for word in _CURLED):
            for match in _each(_USER, text, spans):
                if not stands_in(match.group("password"), quoted=True):
                    spans.append(match.span("password"))
    for word, pattern in _KNOWN_COMMANDS:
        if word in low:
            for match in _each(pattern, low, spans):
                start, stop = match.span(match.lastindex or 0)
                if not stands_in(text[start:stop], quoted=True):
                    spans.append((start, stop))


def _find_flags(text: str, low: str, spans: Spans) -> None:
    for match in _each(_FLAG, low, spans):
        weight = weigh(text[match.start("name") : match.end("name")])
        if not weight:
            continue
        if match.group("quote") is not None:
            take_quoted(text, match.end(), match.group("quote"), weight, spans)
        else:
            _take(text, match.span("word"), weight, spans, quoted=False)


def _take(
    text: str, span: tuple[int, int], weight: Weight, spans: Spans, *, quoted: bool = True
) -> None:
    if weight and is_secret(text[slice(*span)].strip(), weight, quoted=quoted):
        spans.append(span)


# Prose.

_KEYISH = re.compile(
    r"(?<![A-Za-z0-9_+/=.~-])(?=[A-Za-z_+/=.~-]{0,24}[0-9])[A-Za-z0-9_+/=.~-]{16,}"
)
_NAMES = re.compile(STEM)
_JUST_BEFORE = re.compile(
    rf"{NAME}[\"'`)]?[ \t:=]*(?:[ \t][a-z]{{1,8}}:?(?=[ \t])){{0,3}}[ \t\[(]*[\"'`(\[]?\Z"
)
_NEAR = 56


def find_nearby(text: str, low: str, spans: Spans) -> None:
    """`The API key is x`: nothing assigns, but what follows the name is no word."""
    masked = {start for start, _ in spans}
    for match in _KEYISH.finditer(text):
        stop = match.start()
        if stop in masked:
            continue
        for name in _NAMES.finditer(low, max(0, stop - _NEAR), stop):
            before = _JUST_BEFORE.match(low, name.start(), stop)
            if before is None or not weigh(whole_name(text, before)[0]):
                continue
            word = match.group()
            if made_by_machine(word) and not word.islower() and not word.isupper():
                spans.append(match.span())
            break


# Markup and tables.

_NEWLINE = r"(?:\r?\n|\\+r\\+n|\\+n)"
_ELEMENT = re.compile(rf"{NAME}(?:[ \t][^<>\r\n]{{0,120}})?>([^<>]{{1,8192}})</")
_PLIST = re.compile(rf"{NAME}</key>\s{{0,40}}<string>([^<>]{{1,8192}})<")
_FORM_PART = re.compile(
    rf"form-data;[^\r\n]{{0,80}}?name=\\*\"(?P<name>[\w.-]{{1,96}})\\*\"[^\r\n\\]{{0,200}}"
    rf"{_NEWLINE}(?:[^\r\n\\]{{1,200}}{_NEWLINE}){{0,3}}{_NEWLINE}([^\r\n\\]+)"
)
_VALUE = re.compile(
    rf"(?<![a-z])(?:value|val|default|content){QUOTE}?[ \t]*[:=][ \t]*"
    rf"(?:(?P<quote>{QUOTE})|(?P<bare>[^\s\"'`,<>{{}}]+))"
)
_NAME_BEFORE = re.compile(
    rf"{NAME}{QUOTE}(?![ \t]*[:=])[^<>{{}}]*\Z"
    r"|(?:name|key):[ \t]+(?P<listed>[\w.-]{1,96})\s+\Z"
)
_NAME_AFTER = re.compile(
    r"[\"'`\\]*[^<>{}\r\n]{0,80}?(?<![a-z])(?:name|key|type|id)\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']"
    r"(?P<name>[\w.-]{1,64})"
)
_ROW_WIDTH = 160
_PASSWORD_ROW = re.compile(
    r"(?m)^[^\s:]{1,128}:(?:[0-9]{4,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:([^\s:]{6,})$"
)


def find_in_markup(text: str, low: str, spans: Spans) -> None:
    if "</" in low:
        for pattern in (_ELEMENT, _PLIST):
            for match in _each(pattern, low, spans):
                _take(text, match.span(2), weigh(whole_name(text, match)[0]), spans)
    if "form-data" in low:
        for match in _each(_FORM_PART, low, spans):
            _take(text, match.span(2), weigh(match.group("name")), spans)
    if "val" in low or "default" in low or "content" in low:
        _find_named_values(text, low, spans)
    if low.count(":") >= 4:
        for match in _each(_PASSWORD_ROW, text, spans):
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
            _take(text, match.span("bare"), weight, spans, quoted=False)


def _weight_before(text: str, low: str, stop: int) -> Weight:
    match = _NAME_BEFORE.search(low, max(0, stop - _ROW_WIDTH), stop)
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
    after = _NAME_AFTER.match(low, stop, stop + _ROW_WIDTH)
    if after is None:
        return Weight.NONE
    return weigh(text[after.start("name") : after.end("name")])
