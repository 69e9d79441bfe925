"""The history of changes to files: previous contents, retained until they are too old.

    undo/calls/<call>.<session>.jsonl   one line per change (`records`)
    undo/blobs/ab/abcd...               replaced contents, each once (`records`)
    undo/open/, undo/files/             files that commands changed (`command_changes`)
    undo/pruned                         touched when old changes are dropped

A line is durable before its file is touched. So after a crash the last line may describe a change
that was not made, never the reverse, and a torn line belongs to a change that was not made. A
content above the size limit is not stored, which its line records. The new content is stored
without waiting for the disk, because it is only compared.

Where the history cannot be written (a full or read-only disk) the change is refused: the user
relies on undo, and a call with effects is refused on such a disk anyway, because it could not be
recorded.

`pruning` deletes old changes.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice

from callgate.core.errors import ToolExecutionError
from callgate.core.local.disk import (
    BackgroundSync,
    make_private_directory,
    sync_directory,
    sync_file,
    sync_tree,
)
from callgate.core.local.preimage_store import Store, content_parts, path_of
from callgate.core.local.preimages import LOG, Recorder
from callgate.workspace.noting import Standing, Withdraw
from callgate.workspace.paths import opening
from callgate.workspace.undo import command_changes, open_commands, other_disks
from callgate.workspace.undo.command_changes import ChangeSet
from callgate.workspace.undo.pruning import FRESH_S, Bounds, Pruning, size_of
from callgate.workspace.undo.records import (
    PIPE,
    Blobs,
    Change,
    Key,
    Line,
    Origin,
    Recorded,
    State,
    Withdrawn,
    encode,
    merged,
    read,
    write_all,
)

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SUFFIX = ".jsonl"

SHOWN = 1024 * 1024
"""Size in bytes up to which the new content is stored, too, to show later changes by others."""


Parts = tuple[int, Iterator[tuple[int, bytes]]]
"""The size of a content, and its parts: offset and data."""


class History:
    """The history in one directory. Any number of processes may use it concurrently."""

    def __init__(
        self,
        directory: str,
        bounds: Bounds = Bounds(),  # noqa: B008  # frozen
        *,
        synced: bool = True,
        key: Key = lambda: None,
    ) -> None:
        """If not `synced`, no operation waits for the disk. `key` encrypts stored copies."""
        self.bounds = bounds
        self._key = key
        self.blobs = Blobs(os.path.join(directory, "blobs"), synced=synced, key=key)
        self._synced = synced
        self._calls = os.path.join(directory, "calls")
        self._open = os.path.join(directory, "open")
        self._locks: dict[str, int] = {}
        """By directory of a command: a locked descriptor."""
        self.stored_files = os.path.join(directory, "files")
        self._pruning = Pruning(directory, self.blobs, self._calls, self.stored_files, bounds)
        self._lock = threading.Lock()
        self._latest = 0

    def of(self, origin: Origin) -> CallHistory:
        """Return the history of one call."""
        return CallHistory(self, origin)

    def of_call(self, call: str) -> Recorded:
        return self._where(0, call)

    def of_session(self, session: str) -> Recorded:
        return self._where(1, session)

    def of_turn(self, turn: str) -> Recorded:
        """Return the changes of all calls of a turn."""
        found = merged(map(_read, self._files()))
        return found._replace(changes=[c for c in found.changes if c.origin.turn == turn])

    def since(self, moment: float, workspace: str) -> Recorded:
        """Return all changes in a workspace from a time on, in seconds since 1970."""
        recent = (path for path in self._files() if _touched(path) >= moment * 1e9)
        found = merged(map(_read, recent))
        real = os.path.realpath(workspace)
        return found._replace(
            changes=[
                each
                for each in found.changes
                if each.at >= moment * 1e9 and os.path.realpath(each.origin.directory) == real
            ]
        )

    def latest(self, most: int) -> list[Recorded]:
        """Return the last calls that changed a file, newest first."""
        dated = sorted(((_touched(path), path) for path in self._files()), reverse=True)
        found = (_read(path) for _, path in dated)
        return list(islice((each for each in found if each.changes), most))

    def content(self, state: State) -> bytes | None:
        """Return the content of a state; None if it is not or no longer stored."""
        if state.kind == "link" and state.target is not None:
            return state.target
        name = state.body or state.stored
        if name is None:
            return self.blobs.read(state.sha256) if state.kept and state.sha256 else None
        try:
            with self.stored_parts(name) as (size, parts):
                content = bytearray(size)
                for offset, block in parts:
                    content[offset : offset + len(block)] = block
        except (OSError, ValueError):
            return None
        is_intact = state.sha256 is None or sha256(content).hexdigest() == state.sha256
        return bytes(content) if is_intact else None

    @contextmanager
    def stored_parts(self, name: str) -> Iterator[Parts]:
        """Return the size of a stored file, and its parts without holes. Raises `OSError`, or
        `ValueError` for a damaged file."""
        directory, _, stored = name.partition("/")
        with opening(), open(self.stored_path(name), "rb", buffering=0) as file:
            key = self.command_key(directory) if stored.startswith("S") else None
            yield content_parts(file.fileno(), stored.encode(), key)

    def has(self, state: State) -> bool:
        """Whether a state can be restored without a file of the workspace."""
        if state.kind == "directory":
            return True
        if state.kind == "other":
            return state.target == PIPE
        name = state.body or state.stored
        if name is not None and state.sha256 is None:  # possibly too large for memory
            return os.path.exists(self.stored_path(name))
        return self.content(state) is not None

    def stored_path(self, name: str) -> str:
        """Return the path of a stored file of a state."""
        directory, _, stored = name.partition("/")
        return path_of(os.path.join(self.stored_files, directory), stored)

    def command_key(self, name: str) -> bytes | None:
        """Return the key for the copies of one command; None if no key is set."""
        key = self._key()
        return None if key is None else hmac.digest(key, b"command:" + name.encode(), "sha256")

    # --- commands -----------------------------------------------------------------------------

    def begin_command(self, origin: Origin, roots: Sequence[str] = ()) -> str:
        """Create the directory for the pre-images of one command, which may write to `roots`."""
        name = f"{_plain(origin.call)}.{_plain(origin.session)}.{self.moment()}"
        directory, lock = open_commands.begin(self._open, name, origin, roots)
        self._locks[directory] = lock
        return directory

    def discard(self, directory: str) -> None:
        """Remove the directory of a command that did not start."""
        other_disks.remove(directory)
        self.release(directory)

    def release(self, directory: str) -> None:
        """Let other processes settle the changes of a command."""
        lock = self._locks.pop(directory, None)
        if lock is not None:
            os.close(lock)

    def forget(self) -> None:
        """Let other processes settle the changes of all commands of this one."""
        for directory in list(self._locks):
            self.release(directory)

    def settle(self, directory: str, origin: Origin) -> ChangeSet:
        """Store the changes of a command that has ended. Idempotent. Blocks."""
        try:
            return self._settle(directory, origin)
        finally:
            self.release(directory)

    def _settle(self, directory: str, origin: Origin) -> ChangeSet:
        name = os.path.basename(directory)
        found = command_changes.collect(directory, origin, lambda: self.command_key(name))
        if found.changes:
            if self._synced:
                sync_tree(directory)
            self._append(origin, found.changes, durable=True)
        if any(map(_has_stored, found.changes)):
            with opening():
                make_private_directory(self.stored_files, synced=self._synced)
                os.rename(directory, os.path.join(self.stored_files, name))
                if self._synced:
                    sync_directory(self.stored_files)
            self._pruning.added(size_of(os.path.join(self.stored_files, name)))
        else:
            other_disks.remove(directory)
        return found

    def running(self) -> list[tuple[Origin, frozenset[str]]]:
        """Return the running commands, each with the paths that it changed so far."""
        return list(open_commands.running(self._open))

    def settle_unfinished(self) -> None:
        """Store the changes of commands whose callgate was killed."""
        for directory in open_commands.unfinished(self._open):
            origin = open_commands.origin_of(directory)
            if origin is not None:
                self.settle(directory, origin)
            elif time.time() - os.stat(directory).st_mtime > FRESH_S:
                other_disks.remove(directory)

    def prune(self) -> None:
        """Delete contents beyond the limits of age and size now."""
        self._pruning.run()

    def keep(self, standing: Standing, state: State, *, durable: bool) -> None:
        """Store a content, if its state has one."""
        if not state.kept or standing.content is None or state.sha256 is None:
            return
        if self.blobs.keep(standing.content, state.sha256, durable=durable):
            self._pruning.added(len(standing.content))

    def append(self, origin: Origin, line: Line, *, durable: bool) -> None:
        self._append(origin, [line], durable=durable)

    def _append(self, origin: Origin, lines: Sequence[Line], *, durable: bool) -> None:
        path = os.path.join(self._calls, f"{_plain(origin.call)}.{_plain(origin.session)}{_SUFFIX}")
        try:
            fd = _opened(path)
        except FileNotFoundError:
            with opening():
                make_private_directory(self._calls, synced=self._synced)
            fd = _opened(path)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            text = b"\n" * torn + b"".join(encode(line) + b"\n" for line in lines)
            try:
                write_all(fd, text)
            except OSError:
                os.ftruncate(fd, size)
                raise
            if durable and self._synced:
                # The file of a call is new.
                directory = BackgroundSync(partial(_sync_names, self._calls))
                sync_file(fd)
                directory.wait()
        finally:
            os.close(fd)
        self._pruning.added(len(text))

    def moment(self) -> int:
        """Return the present time in nanoseconds, strictly increasing."""
        with self._lock:
            self._latest = max(self._latest + 1, time.time_ns())
            return self._latest

    def _where(self, part: int, wanted: str) -> Recorded:
        name = _plain(wanted)
        files = [path for path in self._files() if os.path.basename(path).split(".")[part] == name]
        return merged(map(_read, files))

    def _files(self) -> list[str]:
        try:
            names = os.listdir(self._calls)
        except FileNotFoundError:
            return []
        return [os.path.join(self._calls, name) for name in names if name.endswith(_SUFFIX)]


class CallHistory:
    """Notes the changes of one call: the `Changes` of its files."""

    __slots__ = ("_history", "_origin")

    def __init__(self, history: History, origin: Origin) -> None:
        self._history = history
        self._origin = origin

    @property
    def limit(self) -> int:
        return self._history.bounds.limit

    def recorded(self) -> list[Change]:
        """Return the changes of the call so far."""
        return self._history.of_call(self._origin.call).changes

    @contextmanager
    def recording(self, roots: Sequence[str]) -> Iterator[Recorder]:
        """Record the changes in a block as changes of one command."""
        history, origin = self._history, self._origin
        directory = history.begin_command(origin)
        with opening():
            log = os.open(os.path.join(directory, LOG), _APPEND, 0o600)
        fcntl.flock(log, fcntl.LOCK_SH)
        bounds = history.bounds
        key = history.command_key(os.path.basename(directory))
        store = Store(directory, bounds.limit, bounds.max_call, key=key)
        recorder = Recorder(list(map(os.fsencode, roots)), log, store)
        try:
            recorder.begin()
            yield recorder
            recorder.end()
        finally:
            store.close()
            os.close(log)
            history.settle(directory, origin)

    def note(self, real: str, before: Standing | None, after: Standing | None) -> Withdraw:
        """Note a change. The old content and the line are on disk when this returns."""
        change = Change(
            origin=self._origin,
            path=os.fsencode(real),
            before=before and _state(before, self.limit),
            after=after and _state(after, min(self.limit, SHOWN)),
            at=self._history.moment(),
        )
        try:
            self._write(change, before, after)
        except OSError as error:
            raise ToolExecutionError(
                "The history of changes cannot be written"
                f" ({error.strerror or error}), so no file is changed",
                reason="undo_unwritable",
                underlying=error,
            ) from error
        return lambda: self._withdraw(change.at)

    def _write(self, change: Change, before: Standing | None, after: Standing | None) -> None:
        history = self._history
        if after is not None and change.after is not None:
            history.keep(after, change.after, durable=False)
        # A directory's line may wait for the line of the file in it.
        durable = after is None or after.kind != "directory"
        if before is None or change.before is None or not change.before.kept:
            history.append(self._origin, change, durable=durable)
            return
        content = BackgroundSync(partial(history.keep, before, change.before, durable=True))
        try:
            history.append(self._origin, change, durable=durable)
        finally:
            content.end()
        try:
            content.wait()
        except OSError:
            self._withdraw(change.at)
            raise

    def _withdraw(self, at: int) -> None:
        try:
            self._history.append(self._origin, Withdrawn(at), durable=False)
        except OSError:
            pass  # an undo finds the previous file, and leaves it unchanged


def _has_stored(change: Change) -> bool:
    return any(state and (state.body or state.stored) for state in (change.before, change.after))


def _state(standing: Standing, most: int) -> State:
    """Return a state, with its content unless that is larger than `most`."""
    content = standing.content
    if content is None or standing.kind not in ("file", "link"):
        return State(standing.kind, standing.mode, standing.size)
    digest = sha256(content).hexdigest()
    return State(standing.kind, standing.mode, standing.size, digest, len(content) <= most)


def _sync_names(directory: str) -> None:
    with opening():
        sync_directory(directory)


def _opened(path: str) -> int:
    with opening():
        return os.open(path, _APPEND, 0o600)


def _plain(identity: str) -> str:
    """Return an id as part of a file name; an unsuitable one is hashed."""
    if _PLAIN.match(identity):
        return identity
    return "x-" + sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:48]


def _read(path: str) -> Recorded:
    try:
        with opening(), open(path, "rb") as file:
            return read(file.read())
    except FileNotFoundError:
        return Recorded([])  # pruned since the list was read


def _touched(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
