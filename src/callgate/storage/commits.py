"""What a store is asked to commit: in batches, each commit applied on top of the ones before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from callgate.core.ops import Op
from callgate.core.stores import StoreError
from callgate.storage.changes import apply
from callgate.storage.views import Rows, View

BATCH_OPS = 256


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
        except (StoreError, ValueError) as error:
            view.undo()
            outcomes.append((commit, error))
        else:
            outcomes.append((commit, results))
    return outcomes, view
