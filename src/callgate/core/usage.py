"""Tokens and what they cost. Light to import: settings name prices."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, as the provider counted them."""

    input: int = 0
    """All of the prompt, cached or not."""
    output: int = 0
    """With what was thought."""
    cache_read: int = 0
    """Of the input, what came from the provider's cache."""
    cache_write: int = 0
    """Of the input, what went into it."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
        )


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars for a million tokens."""

    input: float = 0.0
    """Of the prompt."""
    output: float = 0.0
    """Of the reply."""
    cache_read: float | None = None
    """Of the prompt, where it came from the provider's cache; absent: as any input."""
    cache_write: float | None = None
    """Of the prompt, where it went into that cache; absent: as any input."""

    def of(self, usage: Usage) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cache_read - usage.cache_write
        cost = plain * self.input + usage.cache_read * read + usage.cache_write * write
        return (cost + usage.output * self.output) / 1_000_000
