"""Secrets out of texts: what is not suspicious comes back as it is, the rest is masked."""

from __future__ import annotations

from callgate.audit.suspicion import suspicious


def redact(text: str) -> str:
    """The text with every secret in it replaced by `[REDACTED]`."""
    if not suspicious(text):
        return text
    return thoroughly(text)


def thoroughly(text: str, *, bare: bool = True) -> str:
    """The same without asking first. Not `bare`: a random text alone is no secret here."""
    # Hundreds of patterns: a process that never meets a suspicious text never compiles them.
    from callgate.audit.masking import mask

    return mask(text, bare=bare)
