"""Identifiers: ULIDs that sort by the moment of their making, also within a millisecond.

A ULID is 10 characters of time, then here 10 of randomness drawn once per process and 6 of
a counter. They are identities, not secrets: nothing is allowed because someone knows one.
"""

from __future__ import annotations

import os
import re
import secrets
from time import time_ns

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_COUNTER_BITS = 30

CALL_ID = re.compile(r"tu_[0-9A-HJKMNP-TV-Z]{26}\Z")
EXTERNAL_ID = re.compile(r"[\x20-\x7e]{1,128}\Z")


def _encode(number: int) -> str:
    """Fifty bits in ten characters."""
    return (
        _PAIRS[(number >> 40) & 1023]
        + _PAIRS[(number >> 30) & 1023]
        + _PAIRS[(number >> 20) & 1023]
        + _PAIRS[(number >> 10) & 1023]
        + _PAIRS[number & 1023]
    )


class _Ulids:
    """One source per process: made anew after a fork, so that no two ever agree."""

    __slots__ = ("count", "millisecond", "prefix", "salt")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.salt = _encode(secrets.randbits(50))
        self.count = secrets.randbits(_COUNTER_BITS - 2)
        self.millisecond = 0
        self.prefix = ""

    def next(self) -> str:
        millisecond = time_ns() // 1_000_000
        count = self.count = self.count + 1
        # The prefix is all but the last two characters; never backwards, whatever the clock does.
        if millisecond > self.millisecond or not count & 1023:
            if count >> _COUNTER_BITS:
                self.reset()
                return self.next()
            self.millisecond = max(millisecond, self.millisecond)
            high = _PAIRS[count >> 20] + _PAIRS[(count >> 10) & 1023]
            self.prefix = _encode(self.millisecond) + self.salt + high
        return self.prefix + _PAIRS[count & 1023]


_source = _Ulids()
os.register_at_fork(after_in_child=_source.reset)

ulid = _source.next
"""A fresh ULID."""


def call_id() -> str:
    return "tu_" + ulid()


def session_id() -> str:
    return "sess_" + ulid()


def is_call_id(text: str) -> bool:
    """Whether an id is one of ours; any other is kept as an external id."""
    return CALL_ID.match(text) is not None
