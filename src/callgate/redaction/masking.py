"""Mask secrets in text, by their shape, the name before them, or the words around them.

Each `find_...` function adds spans to a list, and `mask` cuts them out. Command lines are read here
too, up to the end of a command and at most `_LONGEST` characters, by the table in `suspicion`:

    --password x      curl -u alice:x      unzip -P x      echo x | sudo -S      net use ... x

Secrets that the surrounding words reveal: headers, elements, table rows, sentences.

    Cookie: sid=x             Bearer x                  <password>x</password>
    "name": "API_KEY", "value": "x"                     <add key="ApiSecret" value="x"/>
    my password is: x         the PIN is 1234           das Passwort lautet x

Sentences are English, German, French, Spanish or Portuguese. A word after `is` is more often a
property (`the password is wrong`) than a secret: it counts after a colon, after `my`, or if it
looks like no word. `low` is the text in lower case, with the same length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from callgate.core.patterns import Scan, literally
from callgate.redaction.assignments import (
    NAME,
    QUOTE,
    STEM,
    closing,
    find_assignments,
    take,
    take_quoted,
    whole_name,
)
from callgate.redaction.names import MASK, Weight, looks_random, stands_in, weigh, words
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

# Headers.

_BEARER = re.compile(r"(?<![a-z])(bearer|basic)(?:[ \t]+|%20)([a-z0-9._~+/=-]{8,})")
_BEARER_TOKEN = re.compile(r"(?=[a-z._~+/=-]*[0-9]).{8,}|[a-z]{20,}.*")
"""After `bearer` a text with a digit or longer than any word is a token, however it looks."""
_COOKIES = re.compile(
    r"(?<![a-z])(?:set-)?cookie2?\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']?([^\r\n\"'\\]+)"
)
_COOKIE = re.compile(r"([\w.$-]{1,128})=([^;,\s]+)")
_MOST_COOKIES = 100
_COOKIE_ATTRIBUTES = words("path domain expires max-age samesite priority version")


def find_in_headers(text: str, low: str, spans: Spans) -> None:
    if "bearer" in low or "basic" in low:
        for match in each_match(_BEARER, low, spans):
            token = text[match.start(2) : match.end(2)]
            bears = match.group(1) == "bearer" and _BEARER_TOKEN.fullmatch(match.group(2))
            if bears or looks_random(token):
                spans.append(match.span(2))
    if "cookie" in low:
        for match in each_match(_COOKIES, low, spans):
            find_cookies(text, match, spans)


def find_cookies(text: str, header: re.Match[str], spans: Spans) -> None:
    if header.group().count("=") > _MOST_COOKIES:
        spans.append(header.span(1))
        return
    for cookie in _COOKIE.finditer(text, *header.span(1)):
        name, value = cookie.groups()
        if name.lower() not in _COOKIE_ATTRIBUTES and not stands_in(value, quoted=True):
            spans.append(cookie.span(2))


# Prose.

_KEYISH = re.compile(
    r"(?<![A-Za-z0-9_+/=.~-])(?=[A-Za-z_+/=.~-]{0,24}[0-9])[A-Za-z0-9_+/=.~-]{16,}"
)
_NAMES = re.compile(STEM)
_JUST_BEFORE = re.compile(
    rf"{NAME}[\"'`)]?[ \t:=]*(?:[ \t][a-z]{{1,8}}:?(?=[ \t])){{0,3}}[ \t\[(]*[\"'`(\[]?\Z"
)
_NEAR_VALUE = 56


def find_nearby(text: str, low: str, spans: Spans) -> None:
    """Find `The API key is x`: without an assignment, `x` must not look like a word."""
    masked = {start for start, _ in spans}
    for match in _KEYISH.finditer(text):
        stop = match.start()
        if stop in masked:
            continue
        for name in _NAMES.finditer(low, max(0, stop - _NEAR_VALUE), stop):
            before = _JUST_BEFORE.match(low, name.start(), stop)
            if before is None or not weigh(whole_name(text, before)[0]):
                continue
            word = match.group()
            if looks_random(word) and not word.islower() and not word.isupper():
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
_PROSE_VALUE = re.compile(
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
            for match in each_match(pattern, low, spans):
                take(text, match.span(2), weigh(whole_name(text, match)[0]), spans)
    if "form-data" in low:
        for match in each_match(_FORM_PART, low, spans):
            take(text, match.span(2), weigh(match.group("name")), spans)
    if "val" in low or "default" in low or "content" in low:
        _find_named_values(text, low, spans)
    if low.count(":") >= 4:
        for match in each_match(_PASSWORD_ROW, text, spans):
            if MASK not in match.group(1) and looks_random(match.group(1)):
                spans.append(match.span(1))


def _find_named_values(text: str, low: str, spans: Spans) -> None:
    """A table of names and values: the name is itself a value there, before or after."""
    for match in each_match(_PROSE_VALUE, low, spans):
        weight = max(_weight_before(text, low, match.start()), _weight_after(text, low, match))
        if not weight:
            continue
        if match.group("quote") is not None:
            take_quoted(text, match.end(), match.group("quote"), weight, spans)
        else:
            take(text, match.span("bare"), weight, spans, quoted=False)


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


_CREDENTIAL_NAME = (
    r"(?:pass[ -]?words?|passwd|pass ?phrase|pass ?code|passwort|kennwort|passwörter|pwd?|pw"
    r"|mot de passe|mdp|contrase(?:ñ|n)a|clave|senha|palavra-passe|secret(?: key)?|api[ -]?key"
    r"|(?:access|auth|api|bearer) token|zugangs-?passwort)"
)
_ABOUT = (
    r"(?:[ \t]+(?:for|of|to|on|in|für|von|zu|zum|pour|de|du|del|para|am|at)"
    r"(?:[ \t]+[\w.@'-]{1,40}){1,4}?)?"
)
_IS = r"(?:is|was|are|ist|war|lautet|est|es|era|é|será|sera)"
_DISCLOSURE = re.compile(
    rf"{_CREDENTIAL_NAME}{_ABOUT}[ \t]*(?P<is>{_IS})(?!\w)"
    rf"(?P<set>[ \t]+(?:set to|now|still|currently|jetzt|nun|maintenant|ahora)(?!\w))?"
    rf"[ \t]*(?P<colon>:)?[ \t]*"
    rf"(?:[\"'`«„“](?P<quoted>[^\"'`»“”\r\n]{{1,200}})|(?P<word>[^\s\"'`<>{{}}\[\]()]{{2,200}}))"
)
_MINE = re.compile(
    r"(?<!\w)(?:my|our|his|her|their|your|mein|meine|unser|unsere|dein|ihr|mon|notre|mi|nuestra"
    r"|minha|root|admin|wifi|wi-fi)[ \t]+(?:[\w-]{1,24}[ \t]+){0,2}\Z"
)
_NEAR = 64
_VERBS = (" is", " was", " are", " ist", " war", " lautet", " es", " era", " é", " ser")
_STEMS = ("pass", "pw", "secret", "key", "token", "mdp", "contrase", "kennwort", "clave", "senha")
_NUMBER = re.compile(
    r"(?:pin|otp|totp|cvv2?|cvc2?|(?:security|verification|one-time|2fa|mfa|sms|login"
    r"|auth|confirmation)[ -]?(?:code|pin))(?:[ -]?(?:code|number|nummer))?"
    r"[ \t]*(?:is|ist|lautet|est|es|was)?[ \t]*[:=#]?[ \t]*"
    r"(?P<digits>[0-9](?:[ -]?[0-9]){2,9})(?![\w.]*[0-9])"
)
_NUMBERED = re.compile(r"pin(?![a-z])|otp|cv[vc]|pincode|[ -]code")
_NO_WORD = re.compile(r"[0-9]|[^\W\d_][^\w\s.,;:!?'-]|[a-z][A-Z]|[_#$%&*+@!?^~]\w")
_PROPERTIES = words(
    "wrong right correct weak strong secure safe stored saved hashed salted encrypted visible"
    " long short good bad fine old new same different known shared reset rotated leaked"
    " important needed used public private falsch richtig sicher gespeichert leer erforderlich"
    " requis correcte incorrecta correcta obligatoire vide"
)


def find_in_prose(text: str, low: str, spans: Spans) -> None:
    may_disclose = any(map(low.__contains__, _VERBS)) and any(map(low.__contains__, _STEMS))
    for match in each_match(_DISCLOSURE, low, spans) if may_disclose else ():
        start, stop = match.span("quoted" if match.group("quoted") else "word")
        value = text[start:stop].rstrip(".,;:!?")
        if _begins_word(low, match) and _is_secret(low, match, value):
            spans.append((start, start + len(value)))
    if _NUMBERED.search(low):
        for match in each_match(_NUMBER, low, spans):
            if _begins_word(low, match):
                spans.append(match.span("digits"))


def _begins_word(low: str, match: re.Match[str]) -> bool:
    before = low[match.start() - 1 : match.start()] if match.start() else ""
    return not (before.isalnum() or before in ("_", "-"))


def _is_secret(low: str, match: re.Match[str], value: str) -> bool:
    word = value.lower()
    if stands_in(value, quoted=True) or word in _PROPERTIES or word.endswith(("ed", "ing")):
        return False
    mine = _MINE.search(low, max(0, match.start() - _NEAR), match.start()) is not None
    if match.group("quoted") or _NO_WORD.search(value):
        return True
    return mine or bool(match.group("colon") or match.group("set"))


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
