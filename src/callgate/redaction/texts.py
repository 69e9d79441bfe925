"""Secrets out of texts: what is not suspicious comes back as it is, the rest is masked."""

from __future__ import annotations

from callgate.redaction.suspicion import suspicious
from callgate.redaction.values import MASK

LONGEST = 500_000
"""Characters that are looked at; beyond, all is masked where anything is suspicious."""
_EDGE = 4_096
"""Characters before that: a secret which begins there may not be recognised."""


def redact(text: str) -> str:
    """The text with every secret in it replaced by `[REDACTED]`."""
    if not suspicious(text):
        return text
    return thoroughly(text)


def thoroughly(text: str, *, bare: bool = True) -> str:
    """The same without asking first. Not `bare`: a random text alone is no secret here."""
    # Hundreds of patterns: a process that never meets a suspicious text never compiles them.
    from callgate.redaction.masking import mask  # lazy: heavy, and many texts need none  # noqa: PLC0415

    if len(text) <= LONGEST:
        return mask(text, bare=bare)
    return mask(text[:LONGEST], bare=bare)[:-_EDGE] + MASK
