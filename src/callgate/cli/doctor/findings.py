"""What a check of `callgate doctor` finds."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    FAILED = "failed"


class Finding(NamedTuple):
    level: Level
    text: str
    fix: str | None = None
    """A command, or what to do."""
