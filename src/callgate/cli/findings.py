"""The values of `callgate doctor`: subject, check and finding."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from callgate.config.home import Home


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Information, not a problem."""
    FAILED = "failed"


class Finding(NamedTuple):
    level: Level
    text: str
    fix: str | None = None
    """A command or an instruction."""


class Patient(NamedTuple):
    home: Home
    workspace: str


Check = Callable[[Patient], Finding]


class AgentHere(NamedTuple):
    """A third-party agent on this machine."""

    name: str
    """Its name in `callgate hook`."""
    label: str
    is_guarded: bool
    """Its settings contain callgate's hook."""
    is_installed: bool
    """Its program is in PATH."""


def good(text: str) -> Finding:
    return Finding(Level.OK, text)
