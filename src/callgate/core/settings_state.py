"""What a runtime says of the settings that it works by."""

from __future__ import annotations

import msgspec


class SettingsState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: str
    """Of the policy in force: the same files have the same, and others another."""
    problem: str | None = None
    """Why the files as they are now cannot be used. What held before them still does, and calls
    with effects are refused."""
    restart_for: tuple[str, ...] = ()
    """Parts of the settings that have changed and are read at the start only."""
