"""The configured store: the database of the home, or a store that several homes share.

A small file gives each home an id. A copied home must not retain it: two homes with one id would
treat each other's journals as read. `home_place` distinguishes them while both are in use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from callgate.config.home import Home
from callgate.config.load import SettingsError, is_database, load_user
from callgate.config.schema import StoreTable
from callgate.core.ids import owner_id, ulid
from callgate.core.stores import Store
from callgate.feature import port

if TYPE_CHECKING:
    from callgate.sessions.homes import HomeIdentity


_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\Z")


def home_id(home: Home) -> str:
    """Return the id of a home; creates it if needed. Raises `SettingsError` if it is damaged."""
    known = known_home_id(home)
    if known is not None:
        return known
    home.make()
    temporary = f"{home.id}.{ulid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, f"{ulid()}\n".encode())
        os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was faster
            os.link(temporary, home.id)
    finally:
        os.close(descriptor)
        os.unlink(temporary)
    return home_id(home)


def known_home_id(home: Home) -> str | None:
    """Return the id of a home, or None if it has none."""
    try:
        with open(home.id, encoding="ascii", errors="replace") as file:
            text = file.read(100).strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(home.id, None, f"cannot be read: {error.strerror}") from None
    if not _ID.match(text):
        raise SettingsError(home.id, 1, "is not the id of a home; restore it, or remove the file")
    return text


def home_place(home: Home) -> str:
    """Return the location of a home: equal for all its processes, different for a copy."""
    found = os.stat(home.path)
    return f"{_machine()}:{found.st_dev:x}:{found.st_ino:x}"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(100).strip()
    except OSError:
        return os.uname().nodename


def _nothing() -> None:
    pass


class SharedStore(msgspec.Struct, frozen=True, kw_only=True):
    """A store that several homes share, and the identity of this home in it."""

    table: StoreTable
    url: str
    home: HomeIdentity
    directory: str
    """The directory of the home."""

    @property
    def label(self) -> str:
        """Description of the store, without secrets in its address."""
        label: str = shared_homes().label(self.url)
        return label

    def owner_id(self) -> str:
        return owner_id(self.home.id)

    async def open(
        self, *, owner: str | None = None, before_commit: Callable[[], None] = _nothing
    ) -> Store:
        """Open the store. Raises `StoreError`, but not if a database is temporarily unreachable."""
        owner = owner or self.owner_id()
        if is_database(self.url):
            opened: Store = await shared_homes().open_store(
                self.table, home=self.directory, owner=owner, before_commit=before_commit
            )
            return opened
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
    """Open the shared store, or the one of the home. Raises `StoreError`.

    `owner` names this process; `before_commit` makes data durable on which the store relies.
    """
    if shared is not None:
        return await shared.open(owner=owner, before_commit=before_commit)
    from callgate.storage.sqlite.store import SqliteStore  # lazy: once something is stored  # noqa: PLC0415

    return await SqliteStore.open(home.path, owner=owner, before_commit=before_commit)


def shared_homes() -> Any:
    """Return `features.fleet.shared_homes`, the feature for databases and shared homes.

    Raises `SettingsError` if it is not installed.
    """
    homes = port("shared_homes")
    if homes is None:
        raise SettingsError(
            "[store] url", None, "needs the feature 'fleet', which is not installed"
        )
    return homes()


def configured_store(home: Home) -> SharedStore | None:
    """Return the shared store of a home, for a command without a runtime.

    Raises `SettingsError` if there is one, but the settings do not identify it.
    """
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
    """Return the shared store that the settings name, or None for the store of the home.

    Raises `SettingsError` for an unknown store.
    """
    if not table.is_shared:
        return None
    from callgate.sessions.homes import HomeIdentity  # lazy: few share  # noqa: PLC0415

    url = store_url(table, os.environ)
    identity = HomeIdentity(
        id=home_id(home), lost_after_s=table.lost_after_minutes * 60, path=home_place(home)
    )
    return SharedStore(table=table, url=url, home=identity, directory=home.path)


def store_url(table: StoreTable, environ: Mapping[str, str]) -> str:
    """Return the address of the store. Raises `SettingsError` if the variable has none."""
    if table.url_env is None:
        return table.url or ""
    url = environ.get(table.url_env, "")
    if not is_database(url):
        problem = f"the environment variable {table.url_env} is not set to a postgresql:// address"
        raise SettingsError("[store] url_env", None, problem)
    return url


def store_table(home: Home) -> StoreTable:
    """Return the store settings, even if other settings are invalid.

    Raises `SettingsError` if the settings name a store and cannot be read.
    """
    try:
        return load_user(home)[0].store
    except SettingsError:
        table = _table_alone(home)
        if table is None:
            raise
        return table


def _table_alone(home: Home) -> StoreTable | None:
    """Return the store table of settings that are otherwise invalid; None: unknown."""
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
