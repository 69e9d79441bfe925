"""The history of changes to files: what stood there before, kept until it is too old.

    undo/calls/<call>.<session>.jsonl   one line a change (`records`)
    undo/blobs/ab/abcd...               contents that were replaced, each once (`blobs`)
    undo/pruned                         touched when old changes were dropped (`pruning`)

A line is on the disk before its file is touched. So after a crash the last line may tell of a
change that was not made, never the other way round, and a torn line is of a change that was
not made. A content larger than the bound is not kept, and its line says so. What a change
puts there is kept too, without waiting for the disk: it is only there to be compared.

Where the history cannot be written (a full or read-only disk) the change is refused: whoever
lets an agent work relies on the way back, and a call with effects is refused on such a disk
anyway, because it could not be recorded.
"""

from __future__ import annotations

import os
import re
import threading
import time
from functools import partial
from hashlib import sha256
from itertools import islice

from callgate.core.directories import make_private_directory, sync_directory, sync_file
from callgate.core.disk.background import BackgroundSync
from callgate.core.errors import ToolExecutionError
from callgate.workspace.noting import Standing, Withdraw
from callgate.workspace.paths import opening
from callgate.workspace.undo.blobs import Blobs, write_all
from callgate.workspace.undo.pruning import Bounds, Pruning
from callgate.workspace.undo.records import (
    Change,
    Line,
    Origin,
    Recorded,
    State,
    Withdrawn,
    encode,
    merged,
    read,
)

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SUFFIX = ".jsonl"

SHOWN = 1024 * 1024
"""Bytes up to which also the new content is kept: to show what someone else changed in it."""


class History:
    """The history in one directory. Any number of processes may use it at once."""

    def __init__(
        self,
        directory: str,
        bounds: Bounds = Bounds(),  # noqa: B008  # frozen
        *,
        synced: bool = True,
    ) -> None:
        """Without `synced` nothing waits for the disk."""
        self.bounds = bounds
        self.blobs = Blobs(os.path.join(directory, "blobs"), synced=synced)
        self._synced = synced
        self._calls = os.path.join(directory, "calls")
        self._pruning = Pruning(directory, self.blobs, self._calls, bounds)
        self._lock = threading.Lock()
        self._latest = 0

    def of(self, origin: Origin) -> CallHistory:
        """Who notes the changes of one call."""
        return CallHistory(self, origin)

    def of_call(self, call: str) -> Recorded:
        return self._where(0, call)

    def of_session(self, session: str) -> Recorded:
        return self._where(1, session)

    def latest(self, most: int) -> list[Recorded]:
        """The last calls that changed something, newest first."""
        dated = sorted(((_touched(path), path) for path in self._files()), reverse=True)
        found = (_read(path) for _, path in dated)
        return list(islice((each for each in found if each.changes), most))

    def content(self, state: State) -> bytes | None:
        """What the content of a state was; None where it is not kept, or no longer."""
        return self.blobs.read(state.sha256) if state.kept and state.sha256 else None

    def prune(self) -> None:
        """Drop what is too old or too much, now."""
        self._pruning.run()

    def keep(self, standing: Standing, state: State, *, durable: bool) -> None:
        """Keep the content of what stands there, if its state says so."""
        if not state.kept or standing.content is None or state.sha256 is None:
            return
        if self.blobs.keep(standing.content, state.sha256, durable=durable):
            self._pruning.added(len(standing.content))

    def append(self, origin: Origin, line: Line, *, durable: bool) -> None:
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
            text = b"\n" * torn + encode(line) + b"\n"
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
        """Now, in nanoseconds; never the same twice, never earlier than before."""
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
    """Notes the changes of one call: the `Changes` that its files are opened with."""

    __slots__ = ("_history", "_origin")

    def __init__(self, history: History, origin: Origin) -> None:
        self._history = history
        self._origin = origin

    @property
    def limit(self) -> int:
        return self._history.bounds.limit

    def note(self, real: str, before: Standing | None, after: Standing | None) -> Withdraw:
        """The old content and the line are both on the disk when this returns."""
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
            pass  # an undo finds the file as it was before, and leaves it so


def _state(standing: Standing, most: int) -> State:
    """What stands there, its content to be kept unless it is larger than `most`."""
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
    """An id as part of a file's name; one that would not do is hashed."""
    if _PLAIN.match(identity):
        return identity
    return "x-" + sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:48]


def _read(path: str) -> Recorded:
    try:
        with opening(), open(path, "rb") as file:
            return read(file.read())
    except FileNotFoundError:
        return Recorded([])  # dropped meanwhile


def _touched(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
