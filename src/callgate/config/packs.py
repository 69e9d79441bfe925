"""Settings of one package of tools."""

from __future__ import annotations

from typing import Any

from callgate.config.home import Home
from callgate.config.load import load_user


def read_settings(name: str) -> tuple[str, Any]:
    """Return the path of the home and the settings of a package. Raises `SettingsError`."""
    home = Home.from_environment()
    return home.path, load_user(home)[0].of_pack(name)
