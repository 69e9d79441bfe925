"""Directories of control groups that are ours, in either version: claimed, locked, removed.

    <place>/callgate-<random>/    one for each broker, locked as long as it or a keeper lives
        1/ 2/ 3/ ...              one for each command

The broker imports this: no msgspec.
"""

from __future__ import annotations

import fcntl
import os

PREFIX = "callgate-"


class Unavailable(OSError):
    """Why there are no groups for us."""


class ClaimedDirectory:
    """The groups of one broker. Raises OSError where the system does not let us have any."""

    def __init__(self, parent: str) -> None:
        remove_leftovers(parent)
        self.path, self._lock = _claim(parent)
        self._count = 0
        self._ended: set[str] = set()

    def new_path(self) -> str:
        """A new group."""
        self._count += 1
        path = f"{self.path}/{self._count}"
        os.mkdir(path)
        return path

    def remove(self, path: str) -> None:
        """End who is left in a group, and remove it, now or when they are dead."""
        self._ended.add(path)
        self.bury()

    def bury(self) -> None:
        self._ended = {path for path in self._ended if not remove(path)}

    def close(self) -> None:
        """What is still in use stays, for the next broker to remove."""
        self.bury()
        remove(self.path, kill=False)
        os.close(self._lock)


def remove_leftovers(parent: str) -> None:
    """Remove the groups of dead brokers: nobody holds their lock any more."""
    for name in os.listdir(parent):
        if name.startswith(PREFIX):
            path = f"{parent}/{name}"
            try:
                lock = _locked(path)
            except OSError:
                continue
            _kill(path)
            for inside in os.listdir(path):
                if os.path.isdir(f"{path}/{inside}"):
                    remove(f"{path}/{inside}")
            remove(path)
            os.close(lock)


def remove(path: str, *, kill: bool = True) -> bool:
    """Whether it is gone."""
    for attempt in (0, 1):
        try:
            os.rmdir(path)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if attempt or not kill:
                return False
            _kill(path)
    return False


def _kill(path: str) -> None:
    try:
        write(f"{path}/cgroup.kill", "1")
    except OSError:
        pass


def _claim(parent: str) -> tuple[str, int]:
    """A directory that is ours. Another broker may take it for a leftover before it is locked."""
    for _ in range(10):
        path = f"{parent}/{PREFIX}{os.urandom(6).hex()}"
        os.mkdir(path)
        try:
            return path, _locked(path)
        except OSError:
            continue
    raise Unavailable(11, "no cgroup can be kept")


def _locked(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.stat(path), os.fstat(descriptor)):
            raise FileNotFoundError(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def shown_at(path: str, kind: str, controller: str = "") -> str:
    """Where the file system shows a group. `kind` is of file systems; version 1 has one for each
    controller."""
    for line in read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        file_system, _, options = after.split(" ", 2)
        if file_system == kind and (not controller or controller in options.split(",")):
            root, mount = (_unescaped(field) for field in before.split(" ")[3:5])
            inside = os.path.relpath(path, root)
            if inside.split("/")[0] != "..":
                return os.path.normpath(os.path.join(mount, inside))
    raise Unavailable(2, f"no {kind} is mounted for us")


def _unescaped(field: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(descriptor, 16384):
            content += piece
        return os.fsdecode(content)
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
