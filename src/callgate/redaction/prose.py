"""Secrets that somebody tells in a sentence, in English, German, French, Spanish, Portuguese.

    my password is: x        the PIN is 1234        das Passwort lautet x        la contraseña es x

A word behind `is` is more often a property (`the password is wrong`) than a secret: it counts
behind a colon, after `my`, or if it looks like no word.
"""

from __future__ import annotations

import re

from callgate.redaction.shapes import Spans, each_match
from callgate.redaction.values import stands_in, words

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
