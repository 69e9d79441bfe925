"""What hosts said of their tools when they were first seen: a file each, in the home.

    hosts/NAME.json    what was said
    hosts.json         which hosts were seen, in that order, each with the hash of its file

Those of MCP servers are in `mcp/` and `mcp.json`.

Neither file is believed without the other: one that is gone, damaged or edited does not make
a host new again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

import msgspec

from callgate.config.locks import alone_in
from callgate.core.directories import make_private_directory, write_private
from callgate.sources.pins import PinDoubt, Pinned


class PinFiles:
    def __init__(
        self, home: str, kind: str = "hosts", accept: str = "callgate hosts reload"
    ) -> None:
        """`accept`: the command with which a person accepts what is said now."""
        self._directory = os.path.join(home, kind)
        self._index = os.path.join(home, f"{kind}.json")
        self._accept = accept
        self._read_last: tuple[bytes, dict[str, str]] = b"{}", {}
        """The index, and what it says: many are read one after the other."""

    def read(self, name: str, command: tuple[str, ...]) -> Pinned | None:
        try:
            pinned = self._read(name)
        except PinDoubt:
            with self._locked():  # it may just have been written
                pinned = self._read(name)
        if pinned is not None and pinned.command != command:
            raise self._doubt(name, "it was seen with another command", pinned)
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
        """It is new again, whatever was written of it."""
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
        # What a workspace brings is kept under its name and a mark; people say the name.
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
            raise self._doubt(name, f"it was seen before, but {path} is gone")
        if expected is None:
            raise self._doubt(name, f"it was seen before, but {self._index} does not know of it")
        if hashlib.sha256(data).hexdigest() != expected:
            raise self._doubt(name, f"{path} is not as it was written")
        try:
            return msgspec.json.decode(data, type=Pinned)
        except (ValueError, RecursionError):
            raise self._doubt(name, f"{path} cannot be read") from None

    def _seen(self, name: str) -> dict[str, str]:
        """Hashes by host. Raises `PinDoubt` about the host that is asked for."""
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
        """Where it is damaged, what is in it is in doubt already."""
        try:
            return self._seen("")
        except PinDoubt:
            return {}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait for whoever writes. Where there is nothing to lock, nobody does."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(alone_in(self._directory))
            yield

    def _content(self, path: str, host: str) -> bytes | None:
        """None where there is no such file."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._doubt(host, f"{path} cannot be read ({error.strerror})") from None
