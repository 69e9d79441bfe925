"""Which store the settings name: that of the home, or one that several homes share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from callgate.config.home import Home
from callgate.config.load import SettingsError, is_database, load_user
from callgate.config.schema import StoreTable
from callgate.core.ids import owner_id
from callgate.core.stores import MissingPackage, Store

if TYPE_CHECKING:
    from callgate.sessions.homes import HomeIdentity
    from callgate.storage.postgres.location import PostgresLocation


def _nothing() -> None:
    pass


class SharedStore(msgspec.Struct, frozen=True, kw_only=True):
    """A store that several homes share, and which of them we are."""

    table: StoreTable
    url: str
    home: HomeIdentity
    directory: str
    """Of the home."""

    @property
    def place(self) -> str:
        """The store in words, without what is secret in its address."""
        from callgate.storage.postgres.location import redacted  # lazy: few have one  # noqa: PLC0415

        return redacted(self.url)

    def owner_id(self) -> str:
        return owner_id(self.home.id)

    async def open(
        self, *, owner: str | None = None, before_commit: Callable[[], None] = _nothing
    ) -> Store:
        """Raises `StoreError`; never because a database cannot be reached now."""
        owner = owner or self.owner_id()
        if is_database(self.url):
            location = postgres_location(self.table)
            from callgate.storage.postgres.store import PostgresStore  # lazy: few have one  # noqa: PLC0415

            return await PostgresStore.open(
                location, home=self.directory, owner=owner, before_commit=before_commit
            )
        from callgate.storage.sqlite.store import SqliteStore  # lazy: once it is used  # noqa: PLC0415

        directory = unquote(urlsplit(self.url).path)
        return await SqliteStore.open(directory, owner=owner, before_commit=before_commit)


async def open_store(
    home: Home,
    shared: SharedStore | None,
    *,
    owner: str | None = None,
    before_commit: Callable[[], None] = _nothing,
) -> Store:
    """The shared store, or that of the home. `owner` names this process; `before_commit` makes
    durable what the store follows from. Raises `StoreError`."""
    if shared is not None:
        return await shared.open(owner=owner, before_commit=before_commit)
    from callgate.storage.sqlite.store import SqliteStore  # lazy: once something is stored  # noqa: PLC0415

    return await SqliteStore.open(home.path, owner=owner, before_commit=before_commit)


def postgres_location(table: StoreTable) -> PostgresLocation:
    """Raises `MissingPackage` or `SettingsError`."""
    try:
        from psycopg import ProgrammingError, conninfo  # lazy: few have one  # noqa: PLC0415
    except ImportError as error:
        raise MissingPackage("[store] url", "callgate[postgres]") from error
    from callgate.storage.postgres.location import PostgresLocation  # lazy: as above  # noqa: PLC0415

    url = store_url(table, os.environ)
    for key, text in {"url": url, "listen_url": table.listen_url or "none"}.items():
        try:
            conninfo.conninfo_to_dict("" if text == "none" else text)
            urlsplit(text)
        except (ProgrammingError, ValueError):  # which say the whole of it, with the password
            raise SettingsError(f"[store] {key}", None, "is no address of a database") from None
    return PostgresLocation(
        url=url,
        listen_url=table.listen_url,
        schema=table.schema,
        readers=table.readers,
        answer_s=table.answer_timeout_s,
    )


def configured_store(home: Home) -> SharedStore | None:
    """The shared store of a home, for a command without a runtime. `SettingsError` where there is
    one and the settings do not tell which."""
    try:
        with open(home.settings, "rb") as file:
            is_named = b"store" in file.read()
    except OSError:
        is_named = False
    if not is_named and not os.path.exists(home.id):
        return None
    try:
        table = load_user(home)[0].store
    except SettingsError:
        if os.path.exists(home.id):
            raise
        return None
    return shared_store(home, table)


def shared_store(home: Home, table: StoreTable) -> SharedStore | None:
    """The store that the settings name; None: that of the home. `SettingsError` for one that is
    not known here."""
    if not table.is_shared:
        return None
    from callgate.config.home_ids import home_id, home_place  # lazy: few share  # noqa: PLC0415
    from callgate.sessions.homes import HomeIdentity  # lazy: as above  # noqa: PLC0415

    url = store_url(table, os.environ)
    identity = HomeIdentity(
        id=home_id(home), lost_after_s=table.lost_after_minutes * 60, place=home_place(home)
    )
    return SharedStore(table=table, url=url, home=identity, directory=home.path)


def store_url(table: StoreTable, environ: Mapping[str, str]) -> str:
    """Raises `SettingsError` for a variable that names none."""
    if table.url_env is None:
        return table.url or ""
    url = environ.get(table.url_env, "")
    if not is_database(url):
        problem = f"the environment variable {table.url_env} is not set to a postgresql:// address"
        raise SettingsError("[store] url_env", None, problem)
    return url


def store_table(home: Home) -> StoreTable:
    """What the settings say of the store, also where something else is wrong with them. Raises
    `SettingsError` where they name a store and cannot be read."""
    try:
        return load_user(home)[0].store
    except SettingsError:
        table = _table_alone(home)
        if table is None:
            raise
        return table


def _table_alone(home: Home) -> StoreTable | None:
    """The table of the store in settings of which something else is wrong; None: unknown."""
    import tomllib  # lazy: few settings are wrong  # noqa: PLC0415

    try:
        with open(home.settings, "rb") as file:
            data = file.read()
        table = msgspec.convert(tomllib.loads(data.decode()).get("store", {}), StoreTable)
    except OSError:
        return None
    except (ValueError, RecursionError):
        return None if b"store" in data else StoreTable()
    return table if table.url is None or is_database(table.url) else None
