"""Installed packages of tools that are not used, for `callgate tools --all`: rows like those of
tools, of which nothing is known before somebody enables them."""

from __future__ import annotations

from typing import Any

from callgate.cli.errors import CliError
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.sources.packs.installed import Entry, installed


def pack_rows() -> list[dict[str, Any]]:
    """Those that are not enabled, and those that could not be used if they were."""
    try:
        enabled = load_user(Home.from_environment())[0].packs.enable
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from None
    entries = installed("callgate.tools")
    return [_row(each) for each in entries if each.problem or each.name not in enabled]


def _row(entry: Entry) -> dict[str, Any]:
    enable = f"it is not enabled: add {entry.name!r} to [packs] enable in your settings"
    return {
        "name": entry.name,
        "side_effects": "",
        "capabilities": [],
        "description": f"A package of tools: {entry.package}",
        "input_schema": {},
        "aliases": [],
        "source": "package",
        "timeout_s": 0.0,
        "visible": False,
        "hidden_because": entry.problem or enable,
    }
