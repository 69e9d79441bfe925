"""The stages of a call know nothing of each other: what one finds out, it returns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import grimp
import msgspec
import pytest

import callgate
from callgate.core.schemas import Checked
from callgate.dispatch.journal import Journal
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tools.registry import Registered
from callgate.policy.decisions import Decision

DISPATCH = Path(callgate.__file__).parent / "dispatch"
STAGES = ("resolve", "validate", "sites.here", "authorize", "lanes", "execute")
"""In ARCHITECTURE's order. `running` is no stage: the table of calls, by which each can be stopped."""
PASSED_ON = (Registered, Checked, Subject, Decision, Confirmation, Answer)


def module(name: str) -> str:
    return f"callgate.dispatch.{name}"


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("callgate", cache_dir=None)


def test_there_is_a_module_for_each_stage() -> None:
    assert [name for name in STAGES if not (DISPATCH / f"{name.replace('.', '/')}.py").is_file()] == []


def test_no_stage_imports_another_nor_what_imports_another(graph: grimp.ImportGraph) -> None:
    chains = [
        graph.find_shortest_chain(importer=module(one), imported=module(other))
        for one, other in permutations(STAGES, 2)
    ]
    assert [chain for chain in chains if chain is not None] == []


def test_no_stage_imports_the_dispatcher(graph: grimp.ImportGraph) -> None:
    importers = graph.find_modules_that_directly_import(module("dispatcher"))
    assert importers.isdisjoint(map(module, STAGES))


def assignments(source: str) -> Iterator[tuple[str, int]]:
    """Attributes of something called a journal that a module sets, by statement or `setattr`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if _is_journal(node.value):
                yield node.attr, node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            if node.args and _is_journal(node.args[0]):
                yield "setattr", node.lineno


def _is_journal(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2].strip("_") == "journal"


def test_nobody_sets_an_attribute_of_the_journal() -> None:
    sources = ((str(path), path.read_text()) for path in DISPATCH.parent.rglob("*.py"))
    found = {path: list(assignments(text)) for path, text in sources if "journal" in text}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    ["journal.tool = tool", "self._journal.tool += 1", "del call.journal.tool", "setattr(journal, 'a', 1)"],
)
def test_such_an_assignment_is_found(source: str) -> None:
    assert list(assignments(source))


def test_a_journal_has_nothing_to_set() -> None:
    public = {name for name in vars(Journal) if not name.startswith("_")}
    assert not {
        name for name in public if not callable(vars(Journal)[name]) and not isinstance(vars(Journal)[name], property)
    }


@pytest.mark.parametrize("value", PASSED_ON)
def test_what_stages_pass_on_is_frozen(value: type[msgspec.Struct]) -> None:
    assert value.__struct_config__.frozen
