"""Whether a text could hold a secret at all: most do not, and this says so in microseconds.

not `may_hold_secret`  it does not: one scan of the text as it is
a form of `_CERTAIN`   it may
else                   a closer look at options and long runs

Whatever `masking` would mask is likely here; what is likely here need not hold a secret.
"""

from __future__ import annotations

import re

from callgate.core.text.scans import Scan, literally
from callgate.redaction.programs import LISTED, MARKED, NAMES, command_words

_WORDS = (
    "pass",
    "secret",
    "token",
    "key",
    "auth",
    "cred",
    "bearer",
    "cookie",
    "pw",
    "psk",
    "otp",
    "hmac",
    "jwt",
    "sessid",
    "sessionid",
    "@",
    "\x1b",
    "contrase",
    "kennwort",
    "clave",
    "mdp",
    "senha",
    "cvv",
    "cvc",
    "private-l",
    "webhook",
    "googleapis.com/v1/sp",
    "telegram.org/bot",
    "sentry.io/",
    "ifttt.com/use",
    *MARKED,
)
_RUN_CHARACTERS = "A-Za-z0-9_+~%-"
_HIDDEN_OR_WIDE = "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\uff01-\uff5e\u0130]"
ESCAPE = "\\u00"
"""In JSON. What is escaped may be invisible where it is shown, and cut a name in two."""
_NAME_ENDS = (
    "(?:[^a-z]|$|val|data|string|plain|raw|b64|base64|hex|enc|prod|dev|stag|test|live|old|new"
    "|current|prev|default|main|backup|confirm|again|repeat|header|json)"
)
"""In lower case: the name of a secret ends, or goes on with its form."""
_CAMEL_PIN = "[a-z]P(?:in|IN)"
_NO_NAME = "(?:^|[^a-z0-9_-])"
_PROGRAM_OPTION = r"-(?:h?p|w|[akxctsb][ \t\"'=,\\]|hmac|-creds|-src-c|-dest-c)"
_CERTAIN_FORMS = [
    *literally(_WORDS),
    f"(?:^|[^a-z])pin{_NAME_ENDS}",
    "(?:pin|curity|cation|time|[m2]fa|sms|login|access|unlock)[ ._-]*code",
    f"sig(?:nature)?{_NAME_ENDS}",
    "basic(?:[ \t]+|%20)[a-z0-9._~+/=-]{8}",
    "hooks?\\.",
    "identified[ \t]",
    "[ \t]login[ \t]",
    "net(?:\\.exe)?[ \t]+use",
    "bw[ \t]+unlock",
    "(?:^|\n)env[ \t]",
    "setx[ \t]",
    "(?:echo|printf)[ \t][^\n]*\\|",
    "\\|[^\n]*(?:cryptsetup|kinit|vault)",
    f"[/\"'](?:{'|'.join(LISTED)})[\"']",
    f"{_NO_NAME}-(?:u|a[ \t]|b[^\r\n]*=)",
    "-u[ \t]|--(?:proxy-|http-)?user|--encrypt",
]
_CERTAIN = Scan(_CERTAIN_FORMS)
"""In a text in lower case."""
_POSSIBLE_FORMS = [
    *_CERTAIN_FORMS,
    f"{_NO_NAME}{_PROGRAM_OPTION}",
    f"[{_RUN_CHARACTERS}]{{16}}",
    _HIDDEN_OR_WIDE,
    *literally([ESCAPE]),
]
_POSSIBLE = Scan([f"(?i:{'|'.join(_POSSIBLE_FORMS)})", _CAMEL_PIN])
"""All that `is_likely` looks for. In any case: also that of U+212A, which is a k in lower case,
while U+0130, whose lower case holds an i, is a form itself."""

may_hold_secret = _POSSIBLE.finds
"""Whether there is anything in a text, or in its JSON, that a secret could be known by."""


def suspicious(text: str) -> bool:
    """Whether a text could hold a secret at all."""
    return _POSSIBLE.finds(text) and is_likely(text)


def is_likely(text: str) -> bool:
    """The closer look at a text that may hold one."""
    low = text.lower()
    return (
        _CERTAIN.finds(low)
        or ("-" in low and _has_option(low))
        or has_long_run(text)
        or ("P" in text and re.search(_CAMEL_PIN, text) is not None)
        or (not text.isascii() and _HIDDEN.search(text) is not None)
    )


_OPTION = re.compile(rf"(?<![^\s\"',]){_PROGRAM_OPTION}")


def _has_option(low: str) -> bool:
    """Whether there is an option with which some programs take a secret, and such a program."""
    return _OPTION.search(low) is not None and not NAMES.isdisjoint(command_words(low))


_RUNS = bytes(
    ord("a" if re.fullmatch(f"[{_RUN_CHARACTERS}]", chr(code)) else " ") for code in range(256)
)
_LONG = b"a" * 16
_LONG_RUN = re.compile(f"[{_RUN_CHARACTERS}]{{16,}}")
_UPPER_OR_DIGIT = re.compile("[A-Z0-9]")
_HIDDEN = re.compile(_HIDDEN_OR_WIDE)


def has_long_run(text: str) -> bool:
    """Whether there is a run of characters that is long and no plain word, as tokens are."""
    if _LONG not in text.encode("utf-8", "replace").translate(_RUNS):
        return False
    runs = _LONG_RUN.finditer(text)
    return any(_UPPER_OR_DIGIT.search(text, *run.span()) for run in runs)
