"""Every task has an owner: tasks are started by `core/tasks`, or in a task group."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import callgate
import callgate_catalogue

PACKAGE = Path(callgate.__file__).parent
CATALOGUE = Path(callgate_catalogue.__file__).parent
STARTERS = {
    "core/tasks.py": "the one way",
    "callgate_catalogue/speech/speaker.py": "a package of its own: it has what `callgate` exports, and no more",
}
"""Who may start tasks by asyncio itself, and why."""
BARE = frozenset({"create_task", "ensure_future"})


def bare_starts(source: str) -> Iterator[int]:
    """Lines on which a task is started by asyncio itself, and by no task group."""
    tree = ast.parse(source)
    groups = set(_groups(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in BARE:
            if ast.unparse(node.value) not in groups:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            yield from (node.lineno for each in node.names if each.name in BARE)


def _groups(tree: ast.AST) -> Iterator[str]:
    """Names of task groups: entered in this module, or given to a function that says so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and node.optional_vars is not None:
            if ast.unparse(node.context_expr) == "asyncio.TaskGroup()":
                yield ast.unparse(node.optional_vars)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            if ast.unparse(node.annotation) == "asyncio.TaskGroup":
                yield node.arg


def dropped_starts(source: str) -> Iterator[int]:
    """Lines on which `start_task` is called, and nobody keeps the task."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func) in ("start_task", "task_sets.start_task"):
                yield node.lineno


def sources() -> Iterator[tuple[str, str]]:
    for package, prefix in ((PACKAGE, ""), (CATALOGUE, "callgate_catalogue/")):
        for path in package.rglob("*.py"):
            text = path.read_text()
            if any(word in text for word in (*BARE, "start_task")):  # the others need no parser
                yield prefix + path.relative_to(package).as_posix(), text


def test_tasks_are_started_by_whoever_owns_them() -> None:
    found = {name: lines for name, text in sources() if (lines := list(bare_starts(text)))}
    assert {name: lines for name, lines in found.items() if name not in STARTERS} == {}


def test_whoever_starts_a_single_task_keeps_it() -> None:
    assert {name: lines for name, text in sources() if (lines := list(dropped_starts(text)))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.create_task(work)",
        "asyncio.get_running_loop().create_task(work)",
        "loop.create_task(work)",
        "asyncio.ensure_future(work)",
        "from asyncio import create_task",
        "start = loop.create_task",
    ],
)
def test_a_bare_task_is_found(source: str) -> None:
    assert list(bare_starts(source)) == [1]


@pytest.mark.parametrize(
    "source",
    [
        "async def f():\n async with asyncio.TaskGroup() as group:\n  group.create_task(work)",
        "def f(group: asyncio.TaskGroup):\n group.create_task(work)",
        "task = start_task(work)",
        "self._tasks.start(work)",
    ],
)
def test_a_task_with_an_owner_is_none(source: str) -> None:
    assert list(bare_starts(source)) == []


def test_a_single_task_that_nobody_keeps_is_found() -> None:
    assert list(dropped_starts("start_task(work)")) == [1]
    assert list(dropped_starts("await start_task(work)")) == []
