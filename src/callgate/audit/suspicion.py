"""Whether a text could hold a secret at all: most do not, and this says so in a microsecond."""

from __future__ import annotations

import re

from callgate.audit.programs import MARKED, NAMES, command_words


def suspicious(text: str) -> bool:
    """Whether a text could hold a secret at all: some two dozen looks into it."""
    low = text.lower()
    return (
        "pass" in low or "secret" in low or "token" in low or "key" in low or "auth" in low
        or "cred" in low or "bearer" in low or "cookie" in low or "pw" in low or "psk" in low
        or "otp" in low or "@" in low or "identified by" in low or "\x1b" in low
        or "contrase" in low or "kennwort" in low or "clave" in low or "mdp" in low
        or "senha" in low or "cvv" in low or "cvc" in low
        or ("pin" in low and _PIN.search(low) is not None)
        or ("code" in low and _CODE.search(low) is not None)
        or any(word in low for word in MARKED)
        or ("|" in low and ("cryptsetup" in low or "kinit" in low or "vault" in low))
        or ((" -" in low or '"-' in low or "'-" in low) and _has_option(low))
        or " /p:" in low
        or has_long_run(text)
        or (not text.isascii() and _HIDDEN_OR_WIDE.search(text) is not None)
    )  # fmt: skip


_OPTION_FORM = r"-(?:h?p|[wakxctsb][ \t\"'=,]|hmac|-creds|-src-c|-dest-c|-cookie)"
_OPTIONS = {begin: re.compile(f"{begin}(?:{_OPTION_FORM})") for begin in " \"'"}


def _has_option(low: str) -> bool:
    """Whether there is an option with which some programs take a secret, and such a program."""
    if "-u" in low or "-a " in low or "sudo -s" in low:
        return True
    options = any(begin + "-" in low and each.search(low) for begin, each in _OPTIONS.items())
    return options and not NAMES.isdisjoint(command_words(low))


_PIN = re.compile(r"(?<![a-z])pin(?![a-z])|pincode")
_CODE = re.compile(
    r"(?:pin|otp|cv[vc]|curity|cation|time|[m2]fa|sms|login|access|unlock)[ _-]?code"
)
_RUN_CHARACTERS = "A-Za-z0-9_+~%-"
_RUNS = bytes(
    ord("a" if re.fullmatch(f"[{_RUN_CHARACTERS}]", chr(code)) else " ") for code in range(256)
)
_LONG = b"a" * 16
_LONG_RUN = re.compile(f"[{_RUN_CHARACTERS}]{{16,}}")
_UPPER_OR_DIGIT = re.compile("[A-Z0-9]")


def has_long_run(text: str) -> bool:
    """Whether there is a run of characters that is long and no plain word, as tokens are."""
    if _LONG not in text.encode("utf-8", "replace").translate(_RUNS):
        return False
    runs = _LONG_RUN.finditer(text)
    return any(_UPPER_OR_DIGIT.search(text, *run.span()) for run in runs)


_HIDDEN_OR_WIDE = re.compile(
    "[\u00ad\u0130\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\uff01-\uff5e]"
)
