"""Whether a text could hold a secret at all: most do not, and this says so in microseconds.

not `may_hold_secret`  it does not: one scan of the text as it is
a form of `_CERTAIN`   it may
else                   a closer look at options, piped words and long runs
"""

from __future__ import annotations

import re

from callgate.core.text.scans import Scan, literally
from callgate.redaction.programs import MARKED, NAMES, command_words

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
    "@",
    "identified by",
    "\x1b",
    "contrase",
    "kennwort",
    "clave",
    "mdp",
    "senha",
    "cvv",
    "cvc",
    "private-l",
    " /p:",
    *MARKED,
)
_PIN = "(?:^|[^a-z])pin(?:[^a-z]|$)"
_CODE = "(?:pin|curity|cation|time|[m2]fa|sms|login|access|unlock)[ _-]?code"
_CERTAIN = Scan([*literally(_WORDS), _PIN, _CODE])
_PIPED = ("cryptsetup", "kinit", "vault")
_HIDDEN_OR_WIDE = "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\uff01-\uff5e\u0130]"
_RUN_CHARACTERS = "A-Za-z0-9_+~%-"
ESCAPE = "\\u00"
"""In JSON. What is escaped may be invisible where it is shown, and cut a name in two."""
_FORMS = [
    *literally(_WORDS),
    _PIN,
    _CODE,
    *_PIPED,
    "[ \"']-",
    f"[{_RUN_CHARACTERS}]{{16}}",
    _HIDDEN_OR_WIDE,
    *literally([ESCAPE]),
]
_POSSIBLE = Scan([f"(?i:{'|'.join(_FORMS)})"])
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
        or ("|" in low and any(word in low for word in _PIPED))
        or ((" -" in low or '"-' in low or "'-" in low) and _has_option(low))
        or has_long_run(text)
        or (not text.isascii() and _HIDDEN.search(text) is not None)
    )


_OPTION_FORM = r"-(?:h?p|[wakxctsb][ \t\"'=,]|hmac|-creds|-src-c|-dest-c|-cookie)"
_OPTIONS = {begin: re.compile(f"{begin}(?:{_OPTION_FORM})") for begin in " \"'"}


def _has_option(low: str) -> bool:
    """Whether there is an option with which some programs take a secret, and such a program."""
    if "-u" in low or "-a " in low or "sudo -s" in low:
        return True
    options = any(begin + "-" in low and each.search(low) for begin, each in _OPTIONS.items())
    return options and not NAMES.isdisjoint(command_words(low))


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
