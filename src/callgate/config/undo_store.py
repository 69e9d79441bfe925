"""The history of changes in a home, according to its settings, and the key of its contents.

The key is a secret of the home, `undo-key.json`. It exists if `[secrets]` names a key, which
encrypts it. `callgate keys rotate` encrypts only this file again, not the stored contents.
"""

from __future__ import annotations

import base64
import os
import threading

import msgspec

from callgate.config.home import Home
from callgate.config.schema import Settings
from callgate.config.sealing import SecretsError
from callgate.config.secret_opening import HomeFiles, make_secrets
from callgate.workspace.paths import opening
from callgate.workspace.undo.history import History
from callgate.workspace.undo.pruning import Bounds

KEY_FILE = "undo-key.json"
_KEY_BYTES = 32
_DAY_S = 86_400.0


def open_history(home: Home, settings: Settings) -> History:
    """Return the history of a home."""
    table, retention = settings.undo, settings.retention
    bounds = Bounds(
        max_file=table.file_bytes,
        max_call=table.call_bytes,
        max_total=retention.undo_bytes or _UNLIMITED,
        max_age_s=retention.undo_days * _DAY_S or _UNLIMITED,
        excluded=tuple(table.exclude),
        strict=table.unstorable == "refuse",
        tolerant=table.full_disk == "allow",
    )
    synced = settings.durability.files == "synced"
    directory = os.path.join(home.path, "undo")
    return History(directory, bounds, synced=synced, key=_Key(home, settings))


_UNLIMITED = 1 << 62


class _KeyText(msgspec.Struct):
    key: str


class _Key:
    """Reads the key of a home once, and creates it if it is needed."""

    def __init__(self, home: Home, settings: Settings) -> None:
        self._secrets = make_secrets(settings.secrets, HomeFiles(home.path))
        self._lock = threading.Lock()
        self._found: list[bytes | None] = []

    def __call__(self) -> bytes | None:
        """Return the key; None if contents are not encrypted. Raises `OSError` if it cannot be
        read, so that a change without encryption is refused."""
        with self._lock, opening():  # a tool's change needs the key, not the tool
            if not self._found:
                try:
                    self._found.append(self._read())
                except SecretsError as error:
                    raise OSError(str(error)) from error
            return self._found[0]

    def _read(self) -> bytes | None:
        if self._secrets.keys().current is None and self._secrets.store.get(KEY_FILE) is None:
            return None
        self._secrets.update(KEY_FILE, lambda text: _created() if text is None else text)
        text = self._secrets.read(KEY_FILE)
        try:
            key = base64.b64decode(msgspec.json.decode(text or "", type=_KeyText).key)
        except (ValueError, RecursionError):
            key = b""
        if len(key) != _KEY_BYTES:
            raise SecretsError(f"{self._secrets.store.where(KEY_FILE)} is damaged")
        return key


def _created() -> str:
    key = base64.b64encode(os.urandom(_KEY_BYTES)).decode()
    return msgspec.json.encode(_KeyText(key)).decode()
