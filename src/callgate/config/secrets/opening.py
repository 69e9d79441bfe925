"""From the settings of a home to its secrets: which key, and kept where."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import SecretsTable, Settings
from callgate.config.secrets.home_files import HomeFiles
from callgate.config.secrets.key_ring import KeyRing, find_keys
from callgate.config.secrets.sealing import SecretsError
from callgate.config.secrets.secrets import Secrets
from callgate.config.secrets.stores import SecretStore
from callgate.config.stores import SharedStore
from callgate.config.stores import shared_store as find_shared_store
from callgate.core.stores import Store

OpenStore = Callable[[], Awaitable[Store]]


def open_secrets(home: Home) -> Secrets:
    """The secrets of a home, as its settings say now. Raises `SecretsError`."""
    settings = _settings(home)
    return make_secrets(settings.secrets, _store(home.path, shared_store(home, settings)))


def secrets_beside(path: str, home: str | None = None) -> tuple[Secrets, str]:
    """The secrets that a file belongs to, and its name there. One that is in no home is as the
    owner of its directory has it: never encrypted. Raises `SecretsError`."""
    directory, name, is_in_home = _place(
        path, Home.from_environment().path if home is None else home
    )
    if is_in_home:
        return open_secrets(Home(directory)), name
    return Secrets(HomeFiles(directory), _no_keys), name


@functools.lru_cache(maxsize=256)
def _place(path: str, home: str) -> tuple[str, str, bool]:
    """A directory, the name of the file below it, and whether that is the home."""
    path, home = os.path.abspath(path), os.path.abspath(home)
    name = os.path.relpath(path, home)
    if name.split(os.sep)[0] == os.pardir:
        return os.path.dirname(path), os.path.basename(path), False
    return home, name, True


def make_secrets(table: SecretsTable, store: SecretStore) -> Secrets:
    def keys() -> KeyRing:
        return find_keys(table, os.environ)

    return Secrets(store, keys, plain=table.plain_files == "read")


def preload(home: Home) -> None:
    """Have the store of the secrets read, so that no reader in an event loop waits for it. For a
    thread, at the start of a server. Raises `SecretsError`."""
    open_secrets(home).store.names()


def home_secrets(home: Home) -> Secrets:
    """Those in the files of a home, also where a shared store has taken their place."""
    return make_secrets(_settings(home).secrets, HomeFiles(home.path))


def shared_store(home: Home, settings: Settings) -> OpenStore | None:
    """How to open the store that the servers of these settings share; None: it is the home's own,
    and secrets lie in files. The same function for the same settings: it is remembered by it."""
    if not settings.store.is_shared:
        return None
    shared = find_shared_store(home, settings.store)
    return None if shared is None else _opener(shared)


@functools.lru_cache(maxsize=16)
def _opener(shared: SharedStore) -> OpenStore:
    """Little is read: one connection does for it."""
    return replace(shared, table=replace(shared.table, readers=1)).open


@functools.lru_cache(maxsize=16)
def _store(home: str, open_store: OpenStore | None) -> SecretStore:
    if open_store is None:
        return HomeFiles(home)
    from callgate.config.secrets.shared_entries import SharedEntries  # lazy: few share a store  # noqa: PLC0415

    return SharedEntries(open_store)


def _no_keys() -> KeyRing:
    return KeyRing(None)


def _settings(home: Home) -> Settings:
    """Asked for with each look at a secret: read again once the file has changed."""
    try:
        status = os.stat(home.settings)
        mark = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    except FileNotFoundError:
        mark = None
    except OSError as error:
        raise SecretsError(f"{home.settings} cannot be read: {error.strerror}") from None
    try:
        return _load(home, mark)
    except SettingsError as error:
        raise SecretsError(f"the settings, which name the key of secrets: {error}") from None


@functools.lru_cache(maxsize=16)
def _load(home: Home, mark: object) -> Settings:
    """`mark`: another one for each change of the file."""
    return load_user(home)[0]
