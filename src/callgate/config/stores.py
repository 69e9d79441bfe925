"""Which store the settings name: that of the home, or one that several homes share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import StoreTable
from callgate.core.ids import owner_id
from callgate.core.stores import Store

if TYPE_CHECKING:
    from callgate.sessions.homes import HomeIdentity


def _nothing() -> None:
    pass


class SharedStore(msgspec.Struct, frozen=True, kw_only=True):
    """A store that several homes share, and which of them we are."""

    url: str
    home: HomeIdentity

    @property
    def place(self) -> str:
        """The store in words, without what is secret in its address."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def owner_id(self) -> str:
        return owner_id(self.home.id)

    async def open(
        self, *, owner: str | None = None, before_commit: Callable[[], None] = _nothing
    ) -> Store:
        """Raises `StoreError`."""
        from callgate.storage.sqlite.store import SqliteStore  # lazy: once it is used  # noqa: PLC0415

        directory = unquote(urlsplit(self.url).path)
        return await SqliteStore.open(
            directory, owner=owner or self.owner_id(), before_commit=before_commit
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
    if table.url is None:
        return None
    from callgate.config.home_ids import home_id  # lazy: most homes share nothing  # noqa: PLC0415
    from callgate.sessions.homes import HomeIdentity  # lazy: as above  # noqa: PLC0415

    parts = urlsplit(table.url)
    if parts.scheme != "sqlite" or parts.netloc or not os.path.isabs(unquote(parts.path)):
        problem = "[store] url: such as sqlite:///srv/callgate, a directory by its full path"
        raise SettingsError(home.settings, None, problem)
    identity = HomeIdentity(id=home_id(home), lost_after_s=table.lost_after_minutes * 60)
    return SharedStore(url=table.url, home=identity)
