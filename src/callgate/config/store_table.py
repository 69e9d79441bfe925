"""Where the settings say that the store is, for commands that need nothing else of them.

Settings that cannot be read hide no sessions: without a word about a store in them, it is the file
in the home.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping

import msgspec

from callgate.config.home import Home
from callgate.config.load import SettingsError, is_database, load_user
from callgate.config.schema import StoreTable


def store_table(home: Home) -> StoreTable:
    """Raises `SettingsError` where the settings name a store and cannot be read."""
    if not os.path.exists(home.settings):
        return StoreTable()
    try:
        return load_user(home)[0].store
    except SettingsError:
        table = _alone(home)
        if table is None:
            raise
        return table


def _alone(home: Home) -> StoreTable | None:
    """The table of the store in settings of which something else is wrong; None: unknown."""
    try:
        with open(home.settings, "rb") as file:
            data = file.read()
    except OSError:
        return None
    try:
        table = msgspec.convert(tomllib.loads(data.decode()).get("store", {}), StoreTable)
        return table if table.url is None or is_database(table.url) else None
    except (ValueError, msgspec.ValidationError):
        return None if b"store" in data else StoreTable()


def store_url(table: StoreTable, environ: Mapping[str, str]) -> str | None:
    """Raises `SettingsError` for a variable that is not set."""
    if table.url_env is None:
        return table.url
    url = environ.get(table.url_env, "")
    if not url:
        raise SettingsError(
            "[store] url_env", None, f"the environment variable {table.url_env} is not set"
        )
    return url
