"""Reads the table of requirements, and finds the tests that say they prove its rows.

Marks are read from the source of the tests, not from a run, so that the answer is the same
whichever tests are selected. A mark therefore spells its ids out:

    @pytest.mark.spec("S4-36", "T-8")     above a test or a class of tests
    pytest.param(..., marks=pytest.mark.spec("T02"))
    pytestmark = pytest.mark.spec("S4-79")
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard

TESTS = Path(__file__).resolve().parent.parent
SIZES = {"S0": 57, "S1": 53, "S2": 78, "S3": 60, "S4": 80, "traps": 19, "threats": 48}
CAPABILITIES = frozenset({"socket", "hosts", "acp", "text calls", "http", "catalogue", "sandbox", "store", "mcp"})

Status = Literal["covered", "open", "diverged"]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    id: str
    part: str
    label: str
    behaviour: str
    status: Status
    brought_by: str | None = None
    """The capability that will bring an open row."""
    why: str | None = None
    """What is done instead, or in which form the behaviour is met."""


@dataclass(frozen=True)
class Proof:
    """One mark on one test."""

    id: str
    test: str
    """File and line."""


def expected_ids() -> Iterator[str]:
    """Every id there must be a row for, in the order of the table."""
    for part, size in SIZES.items():
        pattern = {"traps": "T-{}", "threats": "T{:02}"}.get(part, part + "-{:02}")
        yield from (pattern.format(number) for number in range(1, size + 1))


def load() -> list[Requirement]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [Requirement(part=part, **row) for part, content in table.items() for row in content["rows"]]


def titles() -> dict[str, str]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {part: content["title"] for part, content in table.items()}


def proofs() -> list[Proof]:
    """Every mark on every test, those of the long tests included."""
    return [
        proof
        for path in sorted(TESTS.rglob("test_*.py"))
        for proof in marks(path.read_text(encoding="utf-8"), path.relative_to(TESTS.parent))
    ]


def marks(source: str, path: Path) -> Iterator[Proof]:
    """The marks in one file. A mark that proves nothing or cannot be read is a ValueError."""
    if "spec" not in source:
        return
    tree = ast.parse(source, filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            idle = [mark for mark in node.decorator_list if _is_mark(mark)]
            if idle and not node.name.startswith(("test", "Test")):
                raise ValueError(f"{path}:{node.lineno}: {node.name} is no test")
        if not _is_mark(node):
            continue
        place = f"{path}:{node.lineno}"
        if not node.args or node.keywords:
            raise ValueError(f"{place}: a spec mark takes ids and nothing else")
        for id in node.args:
            if not (isinstance(id, ast.Constant) and isinstance(id.value, str)):
                raise ValueError(f"{place}: spell the ids out")
            yield Proof(id.value, place)


def _is_mark(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "spec"
        and ast.unparse(node.func.value) in ("pytest.mark", "mark")
    )
