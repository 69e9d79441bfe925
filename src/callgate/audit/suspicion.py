"""Whether a text could hold a secret at all: most do not, and this says so in a microsecond."""

from __future__ import annotations

import re

FLAGGED = (
    "-u", "-a ", "mysql", "mariadb", "redis-cli", "docker login", "ldap", "smbclient", "sudo -s",
)  # fmt: skip
"""Words beside a flag that a secret may follow without a telling name."""


def suspicious(text: str) -> bool:
    """Whether a text could hold a secret at all: no more than a dozen looks into it."""
    low = text.lower()
    return (
        "pass" in low or "secret" in low or "token" in low or "key" in low or "auth" in low
        or "cred" in low or "bearer" in low or "cookie" in low or "pwd" in low or "psk" in low
        or "otp" in low or "@" in low or "identified by" in low or "\x1b" in low
        or (" -" in low and any(word in low for word in FLAGGED))
        or has_long_run(text)
        or (not text.isascii() and _HIDDEN_OR_WIDE.search(text) is not None)
    )  # fmt: skip


_RUN_CHARACTERS = "A-Za-z0-9_+~%-"
_RUNS = bytes(
    ord("a" if re.fullmatch(f"[{_RUN_CHARACTERS}]", chr(code)) else " ") for code in range(256)
)
_LONG = "a" * 16
_LONG_RUN = re.compile(f"[{_RUN_CHARACTERS}]{{16,}}")
_UPPER_OR_DIGIT = re.compile("[A-Z0-9]")


def has_long_run(text: str) -> bool:
    """Whether there is a run of characters that is long and no plain word, as tokens are."""
    if _LONG not in text.encode("utf-8", "replace").translate(_RUNS).decode("ascii"):
        return False
    runs = _LONG_RUN.finditer(text)
    return any(_UPPER_OR_DIGIT.search(text, *run.span()) for run in runs)


_HIDDEN_OR_WIDE = re.compile(
    "[\u00ad\u0130\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\uff01-\uff5e]"
)
