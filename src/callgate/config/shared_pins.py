"""What hosts said when they were first seen, where several homes share a store.

The rows of the store are what counts; the files of the home follow them (`mirror`), and are read as
ever. What is accepted in one home counts in all of them.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from callgate.config.home import Home
from callgate.config.mirror import PINS, Mirror, SharedPin
from callgate.config.pins import PinFiles
from callgate.config.stores import SharedStore, configured_store
from callgate.core.ids import ulid
from callgate.core.ops import DropEntry, PutEntry
from callgate.sources.pins import Pinned


class SharedPinFiles(PinFiles):
    """Changes block while the store is written; `OSError` where it does not take one."""

    def __init__(self, home: Home, shared: SharedStore, kind: str, accept: str) -> None:
        super().__init__(home.path, kind, accept)
        self._mirror = Mirror(home, shared)
        self._entries = PINS[kind]

    def write(self, name: str, pinned: Pinned) -> None:
        self._mirror.change(self._put(name, pinned, self._first_seen(name)))

    def write_first(self, name: str, pinned: Pinned) -> None:
        put = self._put(name, pinned, ulid())
        self._mirror.change(msgspec.structs.replace(put, expected=0))

    def forget(self, name: str) -> None:
        self._mirror.change(DropEntry(kind=self._entries, name=name))
        with suppress(FileNotFoundError):  # one that was never shared
            os.unlink(self._path(name))

    def _put(self, name: str, pinned: Pinned, at: str) -> PutEntry:
        value = SharedPin(at, msgspec.Raw(msgspec.json.encode(pinned)))
        text = msgspec.json.encode(value).decode()
        return PutEntry(kind=self._entries, name=name, value=text)

    def _first_seen(self, name: str) -> str:
        known = (each for each in self._mirror.read(self._entries) if each.name == name)
        return next((msgspec.json.decode(each.value, type=SharedPin).at for each in known), ulid())


def open_pins(home: Home, kind: str, accept: str) -> PinFiles:
    """What is pinned for the hosts, or the servers, of a home."""
    shared = configured_store(home)
    if shared is None:
        return PinFiles(home.path, kind, accept)
    return SharedPinFiles(home, shared, kind, accept)
