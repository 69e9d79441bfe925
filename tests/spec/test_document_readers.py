"""Every reader of JSON, TOML or YAML handles a document that it cannot read.

A decoder raises `ValueError` (malformed, not UTF-8, an integer with too many digits) or
`RecursionError` (nested too deep). `msgspec.DecodeError` alone misses text that is not UTF-8, and
`tomllib.TOMLDecodeError` misses long integers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
DECODERS = frozenset(
    "json.loads json.load msgspec.json.decode tomllib.loads tomllib.load tomlkit.parse yaml.parse"
    " json_texts.loads".split()
)
STORE = "the store wrote it, and reports a damaged row itself"
SERVER = "a server of the same store answers, and its answer is signed"
OWN = "written by this process a moment ago"
READ = "the text was read before, by a reader that refuses"
RAISES = "raises both, and says so"
EXEMPT = {
    "callgate/audit/verify.py": STORE,
    "callgate/features/agents/commands/editing.py": OWN,
    "callgate/features/agents/commands/trying.py": "a model server for one trial, which the agent under trial calls",
    "callgate/cli/ui/call_results.py": OWN,
    "callgate/features/fleet/commands/workers.py": STORE,
    "callgate/features/agents/hooks/jsonc_edits.py": READ,
    "callgate/features/fleet/mirror.py": STORE,
    "callgate/config/secret_entries.py": STORE,
    "callgate/config/settings_file.py": READ,
    "callgate/features/fleet/shared_homes.py": STORE,
    "callgate/core/budgets.py": STORE,
    "callgate/core/schemas.py": OWN,
    "callgate/protocol/json_texts.py": RAISES,
    "callgate/protocol/jsonrpc.py": READ,
    "callgate/protocol/toolcalls/find.py": READ,
    "callgate/protocol/toolcalls/mend.py": "one number, which a pattern has matched",
    "callgate/features/fleet/directory.py": STORE,
    "callgate/features/web/routes/records.py": SERVER,
    "callgate/features/fleet/carrying.py": SERVER,
}


def uncovered(source: str) -> list[int]:
    """Lines of decoders that no handler around them covers."""
    if not re.search("json|toml|yaml", source):  # a part of each decoder's name
        return []
    tree = ast.parse(source)
    return list(_visit(tree, DECODERS | _named_decoders(tree), ()))


def _named_decoders(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        is_value = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.Attribute)
        if is_value and ast.unparse(node.value).startswith("msgspec.json.Decoder("):
            found.update(map(ast.unparse, node.targets))
        if isinstance(node, ast.ImportFrom) and node.module == "callgate.protocol.json_texts":
            found.update(each.asname or each.name for each in node.names if each.name == "loads")
    return found


def _visit(node: ast.AST, decoders: set[str] | frozenset[str], caught: tuple[str, ...]) -> Iterator[int]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        caught = ()
    if isinstance(node, ast.Try):
        names = [name for handler in node.handlers for name in _caught(handler)]
        for child in node.body:
            yield from _visit(child, decoders, (*caught, *names))
        for child in (*node.handlers, *node.orelse, *node.finalbody):
            yield from _visit(child, decoders, caught)
        return
    if isinstance(node, ast.Call) and _name(node.func) in decoders:
        if not {"ValueError", "RecursionError"} <= set(caught) and "Exception" not in caught:
            yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, decoders, caught)


def _name(node: ast.expr) -> str:
    """A dotted name; nothing for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _caught(handler: ast.ExceptHandler) -> list[str]:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [ast.unparse(each) for each in types if each is not None]


def test_every_reader_of_documents_handles_one_that_cannot_be_read() -> None:
    found = {
        str(path.relative_to(SOURCES)): lines
        for path in sorted(SOURCES.rglob("*.py"))
        if (lines := uncovered(path.read_text()))
    }
    assert {name: lines for name, lines in found.items() if name not in EXEMPT} == {}
    assert EXEMPT.keys() - found.keys() == set(), "these need no exemption any more"


@pytest.mark.parametrize(
    ("handler", "covered"),
    [
        ("(ValueError, RecursionError)", True),
        ("Exception", True),
        ("msgspec.DecodeError", False),
        ("ValueError", False),
        ("(tomllib.TOMLDecodeError, RecursionError)", False),
    ],
)
def test_a_handler_that_misses_an_error_is_found(handler: str, covered: bool) -> None:
    source = f"try:\n    tomllib.loads(text)\nexcept {handler}:\n    pass\n"
    assert uncovered(source) == ([] if covered else [2])
