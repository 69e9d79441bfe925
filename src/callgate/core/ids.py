"""Identifiers: ULIDs that sort by the moment of their making, also within a millisecond.

A ULID is 10 characters of time, then here 10 of randomness drawn once per process and 6 of
a counter. They are identities, not secrets: nothing is allowed because someone knows one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from time import time_ns

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TWO_CHARACTERS = [a + b for a in _ALPHABET for b in _ALPHABET]
_COUNTER_BITS = 30

CALL_ID = re.compile(r"tu_[0-9A-HJKMNP-TV-Z]{26}\Z")
EXTERNAL_ID = re.compile(r"[\x20-\x7e]{1,128}\Z")


def _encode(number: int) -> str:
    """Fifty bits in ten characters."""
    return (
        _TWO_CHARACTERS[(number >> 40) & 1023]
        + _TWO_CHARACTERS[(number >> 30) & 1023]
        + _TWO_CHARACTERS[(number >> 20) & 1023]
        + _TWO_CHARACTERS[(number >> 10) & 1023]
        + _TWO_CHARACTERS[number & 1023]
    )


def _ulids() -> Iterator[str]:
    """An endless supply, each greater than the one before, whatever the clock does."""
    latest, prefix, count = 0, "", 0
    while True:
        millisecond = time_ns() // 1_000_000
        if millisecond > latest or not count & 1023:
            latest = max(millisecond, latest)
            count %= 1 << _COUNTER_BITS
            if count == 0:  # a new salt, so that the counter may begin anew
                salt, latest = _encode(int.from_bytes(os.urandom(7))), latest + 1
            high = _TWO_CHARACTERS[count >> 20] + _TWO_CHARACTERS[(count >> 10) & 1023]
            prefix = _encode(latest) + salt + high
        yield prefix + _TWO_CHARACTERS[count & 1023]
        count += 1


class _Source:
    """The supply of this process; a forked child gets one of its own."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.next = _ulids().__next__


_source = _Source()
os.register_at_fork(after_in_child=_source.renew)


def ulid() -> str:
    """A fresh ULID. In any thread."""
    while True:
        try:
            return _source.next()
        except ValueError:  # another thread is just making one
            continue


def made_at(id: str) -> float:
    """When an id of ours was made, in seconds since 1970; 0 where it does not say."""
    text = id.rpartition("_")[2][:10]
    if len(text) < 10 or any(each not in _ALPHABET for each in text):
        return 0.0
    number = 0
    for each in text:
        number = number * 32 + _ALPHABET.index(each)
    return number / 1000


def call_id() -> str:
    return "tu_" + ulid()


def session_id() -> str:
    return "sess_" + ulid()


def owner_id(home: str | None = None) -> str:
    """Names a process, as the owner of sessions and calls; never used again. `home` is the id of
    its home, where several homes share a store."""
    return f"own_{ulid()}" if home is None else f"own_{ulid()}_{home}"


def home_of(owner: str) -> str | None:
    """The id of the home that an owner's name tells; None where it tells none."""
    return owner[31:] or None if owner[:4] == "own_" and owner[30:31] == "_" else None


def turn_id() -> str:
    return "turn_" + ulid()


def is_call_id(text: str) -> bool:
    """Whether an id is one of ours; any other is kept as an external id."""
    return CALL_ID.match(text) is not None
