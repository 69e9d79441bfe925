"""The directories of running commands: who started them, and whether they still run.

    undo/open/<call>.<session>.<moment>/    log, origin and stored files, while the command runs

A directory that remains belongs to a command whose callgate was killed. It is locked as long as
callgate or the command's keeper lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from callgate.core.local import preimages
from callgate.core.local.disk import make_private_directory
from callgate.workspace.paths import opening
from callgate.workspace.undo import other_disks, preimage_logs
from callgate.workspace.undo.records import Origin

_ORIGIN = "origin"


def begin(open_directory: str, name: str, origin: Origin, roots: Sequence[str]) -> tuple[str, int]:
    """Create the directory of a command's pre-images. Returns it, and a descriptor that locks it
    for its owner."""
    directory = os.path.join(open_directory, name)
    with opening():
        make_private_directory(open_directory, synced=False)
        os.mkdir(directory, 0o700)
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        _write_origin(directory, _Begun(origin, boot_id()))
    except BaseException:
        os.close(lock)
        raise
    other_disks.prepare(directory, origin.directory, roots)
    return directory, lock


def _write_origin(directory: str, begun: _Begun) -> None:
    """Store the author as the target of a link: unlike the content of a file, it is on the disk
    before any later change of a name is, without a sync."""
    path, text = os.path.join(directory, _ORIGIN), msgspec.json.encode(begun)
    try:
        os.symlink(text, os.fsencode(path))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        with opening(), open(path, "xb") as file:
            file.write(text)


def origin_of(directory: str) -> Origin | None:
    """Return the author of the changes in a directory; None if it is unreadable."""
    begun = _begun(directory)
    return None if begun is None else begun.origin


class _Begun(NamedTuple):
    origin: Origin
    boot: str


def _begun(directory: str) -> _Begun | None:
    try:
        path = os.fsencode(os.path.join(directory, _ORIGIN))
        if os.path.islink(path):
            return msgspec.json.decode(os.readlink(path), type=_Begun)
        with opening(), open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=_Begun)
    except (OSError, ValueError, RecursionError):
        return None


def is_in_use(directory: str) -> bool:
    """Whether a keeper may still append to the log in a directory, or callgate settles it."""
    for path in (directory, os.path.join(directory, preimages.LOG)):
        try:
            with opening():
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
        finally:
            os.close(file)
    return False


def moment_of(directory: str) -> int:
    """Return the moment in the name of a command's directory."""
    moment = directory.rpartition(".")[2]
    return int(moment) if moment.isdigit() else 0


def is_of_earlier_boot(directory: str) -> bool:
    """Whether the machine has restarted since a command began, so that data may be missing."""
    begun = _begun(directory)
    return begun is None or begun.boot != boot_id()


def boot_id() -> str:
    """Return an id that differs after each start of the machine; empty if there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def running(open_directory: str) -> Iterator[tuple[Origin, frozenset[str]]]:
    """Yield the authors of commands that still run, and the paths that each changed so far."""
    for directory in _directories(open_directory):
        origin = origin_of(directory) if is_in_use(directory) else None
        if origin is None:
            continue
        try:
            with opening(), open(os.path.join(directory, preimages.LOG), "rb") as log:
                lines, _, _ = preimage_logs.read(log.read())
        except OSError:
            continue
        yield origin, frozenset(map(os.fsdecode, preimage_logs.paths(lines)))


def unfinished(open_directory: str) -> Iterator[str]:
    """Yield the directories of commands that were not settled and no longer run."""
    for directory in _directories(open_directory):
        if not is_in_use(directory):
            yield directory


def _directories(open_directory: str) -> list[str]:
    try:
        names = sorted(os.listdir(open_directory))
    except FileNotFoundError:
        return []
    return [os.path.join(open_directory, name) for name in names]
