"""Secrets that the surrounding words reveal: headers, elements, table rows, sentences.

    Cookie: sid=x             Bearer x                  <password>x</password>
    "name": "API_KEY", "value": "x"                     <add key="ApiSecret" value="x"/>
    my password is: x         the PIN is 1234           das Passwort lautet x

Sentences are English, German, French, Spanish or Portuguese. A word after `is` is more often a
property (`the password is wrong`) than a secret: it counts after a colon, after `my`, or if it
looks like no word. `low` is the text in lower case, with the same length.
"""

from __future__ import annotations

import re

from callgate.redaction.assignments import NAME, QUOTE, STEM, closing, take, take_quoted, whole_name
from callgate.redaction.names import MASK, Weight, looks_random, stands_in, weigh, words
from callgate.redaction.shapes import Spans, each_match

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
    for match in each_match(_VALUE, low, spans):
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
