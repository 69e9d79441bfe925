"""What MCP servers gave us so that they know us again: a file each, for its owner alone."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

import msgspec

from callgate.core.directories import write_private
from callgate.core.errors import ToolError

_LARGEST = 1024 * 1024


class TokenFile:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> dict[str, Any]:
        """Nothing where there is none. Raises a `ToolError` where others could have read it."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ToolError(f"{self._path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            if not (stat.S_ISREG(status.st_mode) and private):
                raise ToolError(f"others may open {self._path}; delete it, and log in again")
            data = file.read(_LARGEST)
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError:
            return {}

    def write(self, tokens: dict[str, Any]) -> None:
        write_private(self._path, msgspec.json.encode(tokens).decode())

    def forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
