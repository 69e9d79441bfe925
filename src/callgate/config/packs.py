"""What the settings say of one package of tools."""

from __future__ import annotations

from typing import Any

from callgate.config.load import load_user
from callgate.config.places import Home
from callgate.config.schema import Settings
from callgate.shipped import PACKS


def settings_of(settings: Settings, name: str) -> Any:
    """Those that we ship have tables of their own, others `[packs.settings.NAME]`."""
    if name in (each.name for each in PACKS):
        return getattr(settings, name, None)
    return settings.packs.settings.get(name, {})


def read_settings(name: str) -> tuple[str, Any]:
    """The path of the home, and what its settings say of a package. Raises `SettingsError`."""
    home = Home.from_environment()
    return home.path, settings_of(load_user(home)[0], name)
