"""Secrets in files of the home, each readable by its owner alone."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

from callgate.config.locks import alone_in
from callgate.config.secrets.sealing import PREFIX, SecretsError
from callgate.config.secrets.stores import Change
from callgate.core.directories import make_private_directory, write_private_synced

_LARGEST = 1024 * 1024
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ABANDONED_S = 60.0
"""A half-written file that is older has no writer any more."""
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
        """Of our own files, and of whatever else is sealed or called `*.tokens`."""
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
        """Every read sees the file as it is."""

    def claim(self, name: str) -> None:
        """Processes of one home do not wait for each other: they read again before they renew."""

    def release(self, name: str) -> None:
        pass

    def where(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _files(self) -> Iterator[str]:
        """Those of the home, and of the directories right below it."""
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
    """Remove what killed writers left of a file: it may hold what is encrypted now."""
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
            f"others may open {path}; run: chmod 600 {path}, and replace what is in it if somebody "
            "has read it"
        )
