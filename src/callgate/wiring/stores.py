"""Stores that a table of the settings names, for commands that are about the store itself."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from callgate.config import stores
from callgate.config.home import Home
from callgate.config.load import is_database
from callgate.config.schema import StoreTable
from callgate.config.stores import postgres_location, shared_store
from callgate.core.stores import Store

if TYPE_CHECKING:
    from callgate.storage.moving import MovableStore


async def open_store(home: Home, table: StoreTable) -> Store:
    """Raises a `StoreError` that says why it cannot be used at all, or `SettingsError`; never
    because it cannot be reached now."""
    return await stores.open_store(home, shared_store(home, table))


def movable_store(home: Home, table: StoreTable) -> MovableStore:
    """To move everything from or to."""
    if table.is_shared and (table.url is None or is_database(table.url)):
        from callgate.storage.postgres.moving import PostgresMovable  # lazy: for one command  # noqa: PLC0415

        return PostgresMovable(postgres_location(table))
    from callgate.storage.sqlite.files import Location  # lazy: as above  # noqa: PLC0415
    from callgate.storage.sqlite.moving import SqliteMovable  # lazy: as above  # noqa: PLC0415

    directory = home.path if table.url is None else unquote(urlsplit(table.url).path)
    return SqliteMovable(Location(home=directory))
