"""Pins of hosts: the tool definitions from their first start, in files of the home.

    hosts/NAME.json    the definitions of one host
    hosts.json         the pinned hosts in order, each with the hash of its file

The pins of MCP servers are in `mcp/` and `mcp.json`.

Neither file is trusted without the other: if one is missing, damaged or edited, the host does not
count as new.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

import msgspec

from callgate.config.home import Home, alone_in
from callgate.config.load import SettingsError
from callgate.config.stores import configured_store
from callgate.core.local.disk import make_private_directory, write_private
from callgate.feature import port
from callgate.sources.pins import PinDoubt, Pinned


class PinFiles:
    def __init__(
        self, home: str, kind: str = "hosts", accept: str = "callgate hosts reload"
    ) -> None:
        """`accept`: the command with which a person accepts the present definitions."""
        self._directory = os.path.join(home, kind)
        self._index = os.path.join(home, f"{kind}.json")
        self._accept = accept
        self._read_last: tuple[bytes, dict[str, str]] = b"{}", {}
        """Cache of the index and its content, because it is read often."""

    def read(self, name: str, command: tuple[str, ...]) -> Pinned | None:
        try:
            pinned = self._read(name)
        except PinDoubt:
            with self._locked():  # another process may be writing it
                pinned = self._read(name)
        if pinned is not None and pinned.command != command:
            raise self._doubt(name, "it was first seen with another command", pinned)
        return pinned

    def write(self, name: str, pinned: Pinned) -> None:
        make_private_directory(self._directory)
        with self._locked():
            self._write(name, pinned)

    def write_first(self, name: str, pinned: Pinned) -> None:
        make_private_directory(self._directory)
        with self._locked():
            if self._is_new(name):
                self._write(name, pinned)

    def forget(self, name: str) -> None:
        """Delete the pin, so that the host counts as new."""
        with self._locked():
            seen = {each: seal for each, seal in self._seen_or_nothing().items() if each != name}
            self._write_index(seen)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name))

    def known(self) -> list[str]:
        return [*self._seen_or_nothing()]

    def log_path(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.log")

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.json")

    def _write(self, name: str, pinned: Pinned) -> None:
        data = msgspec.json.encode(pinned)
        seen = {**self._seen_or_nothing(), name: hashlib.sha256(data).hexdigest()}
        write_private(self._path(name), data.decode())
        self._write_index(seen)

    def _write_index(self, seen: dict[str, str]) -> None:
        text = msgspec.json.format(msgspec.json.encode(seen)).decode()
        write_private(self._index, text + "\n")

    def _doubt(self, name: str, problem: str, pinned: Pinned | None = None) -> PinDoubt:
        # A pin from a workspace has a name and a mark; messages show only the name.
        return PinDoubt(name.partition("@")[0], problem, pinned, self._accept)

    def _is_new(self, name: str) -> bool:
        try:
            return self._read(name) is None
        except PinDoubt:
            return False

    def _read(self, name: str) -> Pinned | None:
        path, expected = self._path(name), self._seen(name).get(name)
        data = self._content(path, name)
        if data is None and expected is None:
            return None
        if data is None:
            raise self._doubt(name, f"it was seen before, but {path} is missing")
        if expected is None:
            raise self._doubt(name, f"it was seen before, but {self._index} does not list it")
        if hashlib.sha256(data).hexdigest() != expected:
            raise self._doubt(name, f"{path} was changed by another program")
        try:
            return msgspec.json.decode(data, type=Pinned)
        except (ValueError, RecursionError):
            raise self._doubt(name, f"{path} cannot be read") from None

    def _seen(self, name: str) -> dict[str, str]:
        """Return the hashes by host. Raises `PinDoubt` about the host `name`."""
        data = self._content(self._index, name)
        if data is None:
            return {}
        if data != self._read_last[0]:
            try:
                self._read_last = data, msgspec.json.decode(data, type=dict[str, str])
            except (ValueError, RecursionError):
                raise self._doubt(name, f"{self._index} is damaged") from None
        return self._read_last[1]

    def _seen_or_nothing(self) -> dict[str, str]:
        """Return the hashes by host, or none if the index is damaged: then all pins are in
        doubt.
        """
        try:
            return self._seen("")
        except PinDoubt:
            return {}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait for concurrent writers. Without a directory there are none."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(alone_in(self._directory))
            yield

    def _content(self, path: str, host: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._doubt(host, f"{path} cannot be read ({error.strerror})") from None


def open_pins(home: Home, kind: str, accept: str) -> PinFiles:
    """Return the pins of the hosts, or of the MCP servers, of a home. Raises `SettingsError`."""
    shared = configured_store(home)
    if shared is None:
        return PinFiles(home.path, kind, accept)
    make = port("shared_pins")
    if make is None:
        raise SettingsError("[store]", None, "this callgate cannot share a store")
    pins: PinFiles = make(home, shared, kind, accept)
    return pins
