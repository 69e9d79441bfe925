"""Home of callgate: `CALLGATE_HOME`, by default `~/.callgate`, and the lock for changes in it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from callgate.config.home_check import ensure_safe, home_path
from callgate.core.local.disk import make_private_directory


class Home(NamedTuple):
    """The home directory. Light to create and to import: every command starts with it."""

    path: str

    @classmethod
    def from_environment(cls) -> Home:
        return cls(home_path())

    @classmethod
    def at(cls, path: str) -> Home:
        """Return the home at a path. Raises `UnsafeHome` if others control it."""
        path = os.path.abspath(path)
        ensure_safe(path)
        return cls(path)

    @property
    def settings(self) -> str:
        return os.path.join(self.path, "settings.toml")

    @property
    def saved_rules(self) -> str:
        """Saved approvals, as rules that a person can read and edit."""
        return os.path.join(self.path, "rules.toml")

    @property
    def trust(self) -> str:
        return os.path.join(self.path, "trust.json")

    @property
    def store(self) -> str:
        """The file of the store, unless the settings name another store."""
        return os.path.join(self.path, "callgate.db")

    @property
    def audit(self) -> str:
        return os.path.join(self.path, "audit.jsonl")

    @property
    def artifacts(self) -> str:
        """Output too large to show, by session."""
        return os.path.join(self.path, "artifacts")

    @property
    def processes(self) -> str:
        """The files of running processes."""
        return os.path.join(self.path, "run")

    @property
    def id(self) -> str:
        """The file with the id of this home among homes that share a store."""
        return os.path.join(self.path, "home.id")

    def make(self) -> None:
        make_private_directory(self.path)


def workspace_settings(workspace: str) -> str:
    return os.path.join(workspace, ".callgate", "settings.toml")


_LOCKED = threading.local()
"""Directories that this thread has locked: the lock is reentrant."""


@contextmanager
def alone_in(directory: str) -> Iterator[None]:
    """Lock a directory, so that concurrent read-change-write operations lose nothing."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        key = status.st_dev, status.st_ino
        locked: set[tuple[int, int]] = _LOCKED.__dict__.setdefault("directories", set())
        if key in locked:
            yield
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        locked.add(key)
        try:
            yield
        finally:
            locked.discard(key)
    finally:
        os.close(descriptor)
