"""The store that the settings name: a file in the home, or a database that servers share."""

from __future__ import annotations

import os
from collections.abc import Callable

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.schema import StoreTable
from callgate.core.stores import MissingPackage, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.storage.moving import MovableStore
    from callgate.storage.postgres.location import PostgresLocation


async def open_store(
    home: Home,
    table: StoreTable,
    *,
    owner: str | None = None,
    before_commit: Callable[[], None] = lambda: None,
) -> Store:
    """`owner` names this process; `before_commit` makes durable what the store follows from.

    Raises a `StoreError` that says why it cannot be used at all, or `SettingsError`; never because
    it cannot be reached now.
    """
    if not table.is_shared:
        from callgate.storage.sqlite.store import SqliteStore  # lazy: once something is stored  # noqa: PLC0415

        return await SqliteStore.open(home.path, owner=owner, before_commit=before_commit)
    location = postgres_location(table)
    from callgate.storage.postgres.store import PostgresStore  # lazy: few have one  # noqa: PLC0415

    return await PostgresStore.open(
        location, home=home.path, owner=owner, before_commit=before_commit
    )


def postgres_location(table: StoreTable) -> PostgresLocation:
    """Raises `MissingPackage` or `SettingsError`."""
    import urllib.parse  # lazy: few have one  # noqa: PLC0415

    try:
        from psycopg import ProgrammingError, conninfo  # lazy: as above  # noqa: PLC0415
    except ImportError as error:
        raise MissingPackage("[store] url", "callgate[postgres]") from error
    from callgate.config.store_table import store_url  # lazy: as above  # noqa: PLC0415
    from callgate.storage.postgres.location import PostgresLocation  # lazy: as above  # noqa: PLC0415

    url = store_url(table, os.environ) or ""
    for key, text in {"url": url, "listen_url": table.listen_url or "none"}.items():
        try:
            conninfo.conninfo_to_dict("" if text == "none" else text)
            urllib.parse.urlsplit(text)
        except (ProgrammingError, ValueError):  # which say the whole of it, with the password
            raise SettingsError(f"[store] {key}", None, "is no address of a database") from None
    return PostgresLocation(
        url=url,
        listen_url=table.listen_url,
        schema=table.schema,
        readers=table.readers,
    )


def movable_store(home: Home, table: StoreTable) -> MovableStore:
    """The store that a table of the settings names, to move everything from or to."""
    if not table.is_shared:
        from callgate.storage.sqlite.files import Location  # lazy: for one command  # noqa: PLC0415
        from callgate.storage.sqlite.moving import SqliteMovable  # lazy: as above  # noqa: PLC0415

        return SqliteMovable(Location(home=home.path))
    location = postgres_location(table)
    from callgate.storage.postgres.moving import PostgresMovable  # lazy: as above  # noqa: PLC0415

    return PostgresMovable(location)
