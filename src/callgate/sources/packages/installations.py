"""Where the packages of MCP servers are: in the home, a directory for each server.

    mcp/NAME/install-RANDOM/    what was fetched: the server sees it, and cannot change it
    mcp/NAME/install.json       which of these counts, what is in it, and in which versions
    mcp/NAME/cache/             what the server itself may write

An environment of Python cannot be moved, so packages are fetched where they stay, and count once
`install.json` says so. Whoever fetches, or runs what was fetched, holds a lock on the directory;
one that nobody holds and that does not count is removed with the next fetch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator

import msgspec

from callgate.core.directories import make_private_directory, write_private
from callgate.sandbox.dry_runs.copies import remove_tree

_PREFIX = "install-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class InstallRecord(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """Which packages were wanted, from where."""
    directory: str
    """Its name, in the server's own."""
    fingerprint: str
    versions: dict[str, str]
    locks: dict[str, str]
    """Files with which the same versions are fetched again."""


class Installation:
    """The packages of one server."""

    def __init__(self, home: str, name: str) -> None:
        self.path = os.path.join(home, "mcp", name)
        self._record = os.path.join(self.path, "install.json")
        self._leases: dict[str, int] = {}

    @property
    def record(self) -> InstallRecord | None:
        """None where there is none, or none that can be read."""
        try:
            with open(self._record, "rb") as file:
                return msgspec.json.decode(file.read(), type=InstallRecord)
        except (OSError, ValueError, RecursionError):
            return None

    @property
    def cache(self) -> str:
        """Made if it is missing."""
        path = os.path.join(self.path, "cache")
        make_private_directory(path)
        return path

    def directory(self, record: InstallRecord) -> str:
        return os.path.join(self.path, os.path.basename(record.directory))

    @contextlib.contextmanager
    def fetching(self) -> Iterator[str]:
        """A new directory, which is removed again unless it is what counts at the end."""
        make_private_directory(self.path)
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=self.path)
        self.hold(path)
        try:
            yield path
        finally:
            if self.record is None or self.directory(self.record) != path:
                self._release(path)
            self._sweep()

    def write(self, record: InstallRecord) -> None:
        write_private(self._record, msgspec.json.encode(record).decode())

    def hold(self, directory: str) -> None:
        """Nobody removes it as long as this process lives."""
        if directory not in self._leases:
            descriptor = os.open(directory, _DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._leases[directory] = descriptor

    def remove(self) -> None:
        """Forget all of it. What others run is left to them."""
        for directory in [*self._leases]:
            self._release(directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._record)
        with contextlib.suppress(OSError):
            self._sweep()
            remove_tree(os.path.join(self.path, "cache"))
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def _release(self, directory: str) -> None:
        descriptor = self._leases.pop(directory, None)
        if descriptor is not None:
            os.close(descriptor)

    def _sweep(self) -> None:
        record = self.record
        counts = None if record is None else os.path.basename(record.directory)
        with os.scandir(self.path) as entries:
            found = [each for each in entries if each.name.startswith(_PREFIX)]
        for each in found:
            if each.name != counts and each.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # somebody uses it
                    _remove(each.path)


def _remove(path: str) -> None:
    descriptor = os.open(path, _DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)
    finally:
        os.close(descriptor)
