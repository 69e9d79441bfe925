"""Opening the secrets of a home: random keys that servers share, and tokens from MCP servers.

    SERVERS   signs the requests that one server forwards to another
    ACCESS    signs tokens, cookies and login links
    AUDIT     hashes arguments in the audit logs

Servers with a shared store store each key as an entry of kind `secret`, encrypted with the key of
`[secrets]` and bound to its name: a role that can read the database, or exchange its rows, gets no
key. Servers of one home store keys like all secrets, in files of the home. The first process that
needs a key creates it; `callgate keys rotate` re-encrypts them with the others.

`TokenFile` has the tokens from one MCP server, in a file that only its owner can read. They are
encrypted if the settings name a key, and are in the store if servers share one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from callgate.config.home import Home, alone_in
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import SecretsTable, Settings
from callgate.config.sealing import PREFIX, Change, SecretsError, SecretStore
from callgate.config.secret_entries import KIND, text_of
from callgate.config.secrets import KeyRing, Secrets, find_keys
from callgate.config.stores import SharedStore
from callgate.config.stores import shared_store as find_shared_store
from callgate.core.errors import ToolError
from callgate.core.local.disk import make_private_directory, write_private_synced
from callgate.core.ops import PutEntry
from callgate.core.stores import Store, StoreMisconfigured
from callgate.dispatch.foreign_code import our_own

_LARGEST = 1024 * 1024
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ABANDONED_S = 60.0
"""A temporary file that is older belongs to no running writer."""
_KNOWN = ("keys.json", "google.json", "servers-key.json")
_TOKENS = ".tokens"
_NO_SECRETS = frozenset({"artifacts", "documents", "instances", "memory", "run", "skills", "undo"})
"""Directories of the home that may be large."""


class HomeFiles:
    """Implements `SecretStore`."""

    always_sealed: ClassVar[bool] = False

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def names(self) -> Sequence[str]:
        """Return the known files, and all others that are encrypted or named `*.tokens`."""
        return sorted(name for name in self._files() if self._is_secret(name))

    def get(self, name: str) -> str | None:
        path = self.where(name)
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SecretsError(f"{path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            _refuse_wide(path, os.fstat(descriptor))
            try:
                data = file.read(_LARGEST + 1)
                if len(data) > _LARGEST:
                    raise SecretsError(f"{path} is too large to be what callgate wrote")
                return data.decode()
            except OSError as error:
                raise SecretsError(f"{path} cannot be read: {error.strerror}") from None
            except UnicodeDecodeError:
                raise SecretsError(f"{path} is not what callgate wrote") from None

    def mark(self, name: str) -> object:
        try:
            status = os.stat(self.where(name))
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode

    def update(self, name: str, change: Change) -> None:
        path = self.where(name)
        try:
            make_private_directory(os.path.dirname(path))
            with alone_in(os.path.dirname(path)):
                known = self.get(name)
                text = change(known)
                if text is None:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                elif text != known:
                    write_private_synced(path, text)
                    _sweep(path)
        except OSError as error:
            raise SecretsError(f"{path} cannot be written: {error.strerror}") from None

    def drop(self, name: str) -> None:
        try:
            os.unlink(self.where(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise SecretsError(f"{self.where(name)} cannot be deleted: {error.strerror}") from None

    def refresh(self) -> None:
        """Do nothing: every read sees the present file."""

    def claim(self, name: str) -> None:
        """Do nothing: processes of one home read again before they renew, so they need not wait."""

    def release(self, name: str) -> None:
        pass

    def where(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _files(self) -> Iterator[str]:
        """Yield the files of the home, and of the directories directly below it."""
        for entry in _listed(self._directory):
            if entry.is_file(follow_symlinks=False):
                yield entry.name
            elif entry.is_dir(follow_symlinks=False) and entry.name not in _NO_SECRETS:
                for below in _listed(entry.path):
                    if below.is_file(follow_symlinks=False):
                        yield f"{entry.name}/{below.name}"

    def _is_secret(self, name: str) -> bool:
        if name in _KNOWN or name.endswith(_TOKENS):
            return True
        if name.endswith(".tmp"):
            return False
        try:
            descriptor = os.open(self.where(name), _FLAGS)
        except OSError:
            return False
        with os.fdopen(descriptor, "rb") as file:
            return file.read(len(PREFIX)) == PREFIX.encode()


def _sweep(path: str) -> None:
    """Remove temporary files of killed writers: they may contain data that is encrypted now."""
    for entry in _listed(os.path.dirname(path)):
        is_left = entry.path.startswith(f"{path}.") and entry.name.endswith(".tmp")
        with contextlib.suppress(OSError):
            if is_left and time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S:
                os.unlink(entry.path)


def _listed(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return list(found)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SecretsError(f"{path} cannot be read: {error.strerror}") from None


def _refuse_wide(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SecretsError(f"{path} is not a file")
    if status.st_uid != os.geteuid():
        raise SecretsError(f"{path} belongs to another user")
    if status.st_mode & 0o077:
        raise SecretsError(
            f"others may open {path}; run: chmod 600 {path}, and replace the secret if somebody "
            "has read it"
        )


OpenStore = Callable[[], Awaitable[Store]]


def open_secrets(home: Home) -> Secrets:
    """Return the secrets of a home, according to its present settings. Raises `SecretsError`."""
    settings = _settings(home)
    return make_secrets(settings.secrets, _store(home.path, shared_store(home, settings)))


def secrets_beside(path: str, home: str | None = None) -> tuple[Secrets, str]:
    """Return the secrets that contain a file, and its name there. Raises `SecretsError`.

    A file outside the home is never encrypted, and protected only by its permissions.
    """
    directory, name, is_in_home = _place(
        path, Home.from_environment().path if home is None else home
    )
    if is_in_home:
        return open_secrets(Home(directory)), name
    return Secrets(HomeFiles(directory), _no_keys), name


@functools.lru_cache(maxsize=256)
def _place(path: str, home: str) -> tuple[str, str, bool]:
    """Return a directory, the name of the file below it, and whether the directory is the home."""
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
    """Read the store of the secrets, so that no reader in an event loop waits for it.

    Call it in a thread when a server starts. Raises `SecretsError`.
    """
    open_secrets(home).store.names()


def home_secrets(home: Home) -> Secrets:
    """Return the secrets in the files of a home, even if a shared store has replaced them."""
    return make_secrets(_settings(home).secrets, HomeFiles(home.path))


def shared_store(home: Home, settings: Settings) -> OpenStore | None:
    """Return the function that opens the shared store, or None if secrets are in files of the home.

    Returns the same function for the same settings, because it is a cache key.
    """
    if not settings.store.is_shared:
        return None
    shared = find_shared_store(home, settings.store)
    return None if shared is None else _opener(shared)


@functools.lru_cache(maxsize=16)
def _opener(shared: SharedStore) -> OpenStore:
    """One connection suffices, because little is read."""
    return replace(shared, table=replace(shared.table, readers=1)).open


@functools.lru_cache(maxsize=16)
def _store(home: str, open_store: OpenStore | None) -> SecretStore:
    if open_store is None:
        return HomeFiles(home)
    from callgate.config.secret_entries import SharedEntries  # lazy: few share a store  # noqa: PLC0415

    return SharedEntries(open_store)


def _no_keys() -> KeyRing:
    return KeyRing(None)


def _settings(home: Home) -> Settings:
    """Return the settings, which are read again after a change of the file."""
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
    """`mark` differs for each version of the file."""
    return load_user(home)[0]


SERVERS = "servers-key.json"
ACCESS = "access-key.json"
AUDIT = "audit-key.json"
_BYTES = 32

FindKey = Callable[[Store], Awaitable[bytes]]


class _Value(msgspec.Struct):
    """Content of the encrypted secret; an object, like all secrets."""

    key: str


def require_key(settings: Settings, environ: Mapping[str, str]) -> None:
    """Refuse settings with a shared store, but without a key for its secrets. Raises
    `SettingsError`.
    """
    try:
        ring = find_keys(settings.secrets, environ)
    except SecretsError as error:
        raise SettingsError("[secrets]", None, str(error)) from None
    if ring.current is None:
        raise SettingsError(
            "[store]",
            None,
            "a shared store needs a key that encrypts the secrets in it, the same on every server. "
            "Make one with `openssl rand -base64 32`, put it into a variable such as "
            'CALLGATE_SECRETS_KEY, and set [secrets] key_env = "CALLGATE_SECRETS_KEY"',
        )


def key_finder(home: Home, name: str, offered: Callable[[], bytes] | None = None) -> FindKey:
    """Return the function that finds a key in a store, and creates it there if it is missing.

    `offered` returns the value of a new key. The function raises `StoreError`, also if
    the key of `[secrets]` is missing or a different one.
    """

    async def find(store: Store) -> bytes:
        try:
            all_secrets = open_secrets(home)
            value = (offered or _random)()
            if all_secrets.store.always_sealed:
                return await _from_entries(store, all_secrets, name, value)
            return _from_files(all_secrets, name, value)
        except SecretsError as error:
            raise StoreMisconfigured(str(error)) from None

    return find


async def known_key(home: Home, name: str, store: Store) -> bytes | None:
    """Return a key of a shared store, if there is one. Raises `SecretsError`."""
    all_secrets = open_secrets(home)
    for entry in await store.entries(KIND):
        if entry.name == name:
            return _decode(all_secrets.opened(name, text_of(entry)), name)
    return None


async def _from_entries(store: Store, all_secrets: Secrets, name: str, value: bytes) -> bytes:
    found = next((each for each in await store.entries(KIND) if each.name == name), None)
    if found is None:
        text = msgspec.json.encode(all_secrets.sealed(name, _encode(value))).decode()
        (receipt,) = await store.commit(PutEntry(kind=KIND, name=name, value=text, expected=0))
        found = receipt.entry
    assert found is not None
    return _decode(all_secrets.opened(name, text_of(found)), name)


def _from_files(all_secrets: Secrets, name: str, value: bytes) -> bytes:
    known = all_secrets.read(name)
    if known is None:
        all_secrets.update(name, lambda text: _encode(value) if text is None else text)
        known = all_secrets.read(name)
    return _decode(known or "", name)


def _random() -> bytes:
    return secrets.token_bytes(_BYTES)


def _encode(key: bytes) -> str:
    return msgspec.json.encode(_Value(key=key.hex())).decode()


def _decode(text: str, name: str) -> bytes:
    try:
        key = bytes.fromhex(msgspec.json.decode(text, type=_Value).key)
    except (ValueError, RecursionError):
        key = b""
    if len(key) != _BYTES:
        raise SecretsError(f"{name} is not a key that callgate wrote: delete it")
    return key


class TokenFile:
    def __init__(self, path: str, home: str | None = None) -> None:
        """`home`: the home whose settings determine the encryption; None: `CALLGATE_HOME`."""
        self._path = path
        self._home = home

    def mark(self) -> object:
        """Return a value that differs after each change; None if there are no tokens."""
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            return secrets.mark(name)

    def read(self) -> dict[str, Any]:
        """Return the tokens, or none if there are none.

        Raises a `ToolError` if other users could read the file, or it cannot be decrypted.
        """
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            return self._decoded(secrets.read(name))

    def refresh(self) -> None:
        """Make the next read see all earlier writes of any server."""
        with _explained():
            secrets_beside(self._path, self._home)[0].store.refresh()

    def claim(self) -> None:
        """Wait until no other server renews this login. A claim that lasts too long is
        overridden.
        """
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            secrets.store.claim(name)

    def release(self) -> None:
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            secrets.store.release(name)

    def update(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Read, change and write, without losing concurrent writes. Raises a `ToolError`.

        `change` is called again if another server wrote in between.
        """

        def changed(text: str | None) -> str:
            return msgspec.json.encode(change(self._decoded(text))).decode()

        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            secrets.update(name, changed)

    def write(self, tokens: dict[str, Any]) -> None:
        """Replace the tokens, unless the present ones cannot be read."""
        self.update(lambda known: tokens)

    def forget(self) -> None:
        """Delete the tokens, even if they cannot be read."""
        with _explained():
            secrets, name = secrets_beside(self._path, self._home)
            secrets.store.drop(name)

    def _decoded(self, text: str | None) -> dict[str, Any]:
        """Decode the tokens. Unreadable ones are an error: an empty result would overwrite them."""
        try:
            return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
        except (ValueError, RecursionError):
            raise SecretsError(f"{self._path} is damaged; delete it, and log in again") from None


@contextmanager
def _explained() -> Iterator[None]:
    """Raise `SecretsError` as `ToolError`. The file access counts as callgate's own, not the
    tool's.
    """
    try:
        with our_own():
            yield
    except SecretsError as error:
        raise ToolError(str(error), reason="secrets") from None
