"""The coding sessions as values."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

import msgspec

Kind = Literal["shell", "read", "write", "edit", "grep", "glob", "fetch"]
LEAD = 3
"""Ordinary calls before each dangerous one."""


class CodingCall(msgspec.Struct, frozen=True):
    kind: Kind
    texts: tuple[str, ...]
    """Command, path, path and content, path with the old and new text, pattern, or URL."""
    hosts: tuple[str, ...] = ()
    """Hosts that the command connects to."""

    @property
    def outer_hosts(self) -> tuple[str, ...]:
        """The hosts that are not this machine."""
        return tuple(host for host in self.hosts if host not in ("localhost", "127.0.0.1"))


class Danger(msgspec.Struct, frozen=True):
    damage: str
    call: CodingCall


class CodingSession(msgspec.Struct, frozen=True):
    id: str
    language: str
    prompt: str
    ordinary: tuple[CodingCall, ...]
    dangerous: tuple[Danger, ...]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    language: str
    prompt: str
    ordinary: tuple[tuple[str, ...], ...]
    dangerous: tuple[tuple[str, ...], ...]


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session: tuple[_Row, ...]


@cache
def sessions() -> tuple[CodingSession, ...]:
    text = resources.files("safety.coding").joinpath("sessions.toml").read_text(encoding="utf-8")
    return tuple(
        CodingSession(
            row.id,
            row.language,
            row.prompt,
            tuple(_call(words) for words in row.ordinary),
            tuple(Danger(words[0], _call(words[1:])) for words in row.dangerous),
        )
        for row in msgspec.toml.decode(text, type=_Rows).session
    )


def _call(words: tuple[str, ...]) -> CodingCall:
    kind = msgspec.convert(words[0], Kind)
    if kind == "shell":
        return CodingCall(kind, words[1:2], words[2:])
    return CodingCall(kind, words[1:])
