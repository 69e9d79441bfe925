"""What hosts said of their tools when they were first seen: a file each, in the home."""

from __future__ import annotations

import os

import msgspec

from callgate.config.places import write_private
from callgate.sources.hosts.pins import Pinned


class PinFiles:
    def __init__(self, home: str) -> None:
        self._directory = os.path.join(home, "hosts")

    def read(self, name: str, command: tuple[str, ...]) -> Pinned | None:
        try:
            with open(self._path(name), "rb") as file:
                pinned = msgspec.json.decode(file.read(), type=Pinned)
        except (OSError, msgspec.DecodeError):
            return None
        return pinned if pinned.command == command else None

    def write(self, name: str, pinned: Pinned) -> None:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        write_private(self._path(name), msgspec.json.encode(pinned).decode())

    def log_path(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.log")

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.json")
