"""What a store is asked to commit: in batches, by one thread, each on top of the ones before it.

    write --queue--> thread: before_commit -> a batch -> one transaction -> outcomes told

Nobody waits for company: a lone commit is written at once, and those that arrive while it is on its
way to the disk share the next transaction. Whatever happens here, whoever waits is told. An engine
says what a transaction is.
"""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from callgate.core.ops import Op
from callgate.core.stores import StoreError
from callgate.storage.changes import apply
from callgate.storage.views import Rows, View

BATCH_OPS = 256
log = logging.getLogger("callgate.store")


class Commit(msgspec.Struct, frozen=True, eq=False):
    """What one `commit` asked for."""

    ops: Sequence[Op[Any]]
    texts: dict[str, str]
    """The event texts, by id."""
    waiter: Any
    """Handed back with the outcome."""


Outcome = tuple[Commit, tuple[Any, ...] | Exception]
Tell = Callable[[Sequence[Outcome], Mapping[str, int]], None]
"""Takes the outcomes of a batch and the changed sessions; called in the writer's thread."""


def batches(commits: Iterable[Commit]) -> Iterable[list[Commit]]:
    """In their order; at most `BATCH_OPS` ops each, unless one commit has more."""
    batch: list[Commit] = []
    room = BATCH_OPS
    for commit in commits:
        alone = any(op.sole for op in commit.ops)
        room -= len(commit.ops)
        if batch and (alone or room < 0):
            yield batch
            batch, room = [], BATCH_OPS - len(commit.ops)
        batch.append(commit)
        if alone:
            yield batch
            batch, room = [], BATCH_OPS
    if batch:
        yield batch


def apply_all(batch: Sequence[Commit], rows: Rows) -> tuple[list[Outcome], View]:
    """Apply each commit on top of the ones before it; one that fails leaves nothing."""
    view = View(rows)
    outcomes: list[Outcome] = []
    for commit in batch:
        view.begin(commit.texts)
        try:
            results = tuple([apply(op, view) for op in commit.ops])
        except UnicodeDecodeError:  # of a row, not of the commit
            raise
        except (StoreError, ValueError) as error:
            view.undo()
            outcomes.append((commit, error))
        else:
            outcomes.append((commit, results))
    return outcomes, view


class BatchWriter(ABC):
    idle_s: float | None = None
    """How long nothing may come until `_on_idle` is called; None: it is never called."""

    def __init__(self, tell: Tell, before_commit: Callable[[], None]) -> None:
        """Both are called in the writer's thread."""
        self._tell = tell
        self._before_commit = before_commit
        self._queue: queue.SimpleQueue[list[Commit] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _transact(self, batch: list[Commit]) -> tuple[list[Outcome], dict[str, int]]:
        """Write a batch in one transaction: the outcome of each commit, and the sessions that
        changed. Raises `StoreError` where none of it can be written now."""

    @abstractmethod
    def _disconnect(self) -> None: ...

    def _on_idle(self) -> None:  # noqa: B027
        """Nothing came for a while."""

    def _split(self, batch: list[Commit]) -> Iterable[list[Commit]]:
        """The parts of a batch that need transactions of their own."""
        return (batch,)

    @abstractmethod
    def _after_batch(self, changed: Mapping[str, int]) -> None:
        """After whoever waited was told: for what nobody waits for."""

    def write(self, commits: list[Commit]) -> None:
        """Take these, in their order. The thread starts with the first ones."""
        self._queue.put(commits)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="callgate-store-writer", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Write what was taken, and end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self._disconnect()

    def _run(self) -> None:
        ending = False
        while not ending:
            taken = [self._wait_for_work()]
            while not self._queue.empty():
                taken.append(self._queue.get())
            ending = None in taken
            commits = [commit for some in taken if some is not None for commit in some]
            if commits:
                self._before_commit()
            for batch in batches(commits):
                for part in self._split(batch):
                    self._write(part)

    def _wait_for_work(self) -> list[Commit] | None:
        while True:
            try:
                return self._queue.get(timeout=self.idle_s)
            except queue.Empty:
                self._on_idle()

    def _write(self, batch: list[Commit]) -> None:
        """Write a batch and tell its outcome."""
        changed: dict[str, int] = {}
        try:
            outcomes, changed = self._transact(batch)
        except StoreError as error:
            outcomes = [(commit, error) for commit in batch]
        except Exception as error:
            if len(batch) > 1:  # one of them is the cause: the others need not suffer
                for commit in batch:
                    self._write([commit])
                return
            if not isinstance(error, ValueError):  # a mistake of the caller, who is told
                log.exception("a commit failed")
            outcomes = [(batch[0], error)]
        self._tell(outcomes, changed)
        self._after_batch(changed)
