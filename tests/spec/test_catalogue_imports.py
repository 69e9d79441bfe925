"""The core and the catalogue are two packages: neither reaches into the other.

import-linter judges import statements that run; here are those for type checkers, and imports by
string.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import callgate
import callgate_catalogue
from callgate.feature import PACK_COMMANDS, PACKS

CORE = Path(callgate.__file__).parent
CATALOGUE = Path(callgate_catalogue.__file__).parent
PROJECT = Path(__file__).parents[2]
ABOUT: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())

_ENTRY = re.compile(r"callgate\.[\w.]+:\w+\Z")


def imports(source: str) -> Iterator[str]:
    """What a module imports of callgate, by a statement or by a string that a loader takes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and _ENTRY.match(str(node.value)):
            yield node.value.replace(":", ".")
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "load", "__import__"):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_public(name: str) -> bool:
    rest = name.removeprefix("callgate.")
    return rest.split(".")[0] == "packs" or rest in callgate.__all__


def test_the_core_names_the_catalogue_in_one_table_alone() -> None:
    named = [path.relative_to(CORE) for path in CORE.rglob("*.py") if "callgate_catalogue" in path.read_text()]
    assert named == [Path("feature.py")]


def test_the_catalogue_imports_only_what_is_public() -> None:
    internal = {
        str(path.relative_to(CATALOGUE)): name
        for path in CATALOGUE.rglob("*.py")
        for name in imports(path.read_text())
        if name.startswith("callgate.") and not is_public(name)
    }
    assert internal == {}


def test_an_import_of_something_internal_would_be_found() -> None:
    ways = [
        "import callgate.core.ids",
        "from callgate.core.ids import ulid",
        "from callgate import wiring",
        "Row(x, 'callgate.tools.loading:call')",
        "import_module('callgate.runtime')",
        "if TYPE_CHECKING:\n    from callgate.runtime import Runtime",
    ]
    assert [way for way in ways if all(map(is_public, imports(way)))] == []


def test_the_linter_knows_every_internal_module() -> None:
    contracts = ABOUT["tool"]["importlinter"]["contracts"]
    [listed] = [each["forbidden_modules"] for each in contracts if each.get("source_modules") == ["callgate_catalogue"]]
    found = {path.stem for path in CORE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(listed) == {f"callgate.{name}" for name in found - {"__init__", "__main__", "packs"}}


def test_what_is_shipped_is_what_the_entry_points_say() -> None:
    points = ABOUT["project"]["entry-points"]
    assert points["callgate.tools"] == {each.name: each.entry for each in PACKS}
    assert points["callgate.commands"] == PACK_COMMANDS


def test_the_page_on_packages_names_all_that_is_public() -> None:
    [page] = PROJECT.glob("docs/**/packages.md")
    rows = dict(re.findall(r"^\| `callgate\.packs\.(\w+)` \| (.*) \|$", page.read_text(), re.MULTILINE))
    public = {path.stem: path.read_text() for path in (CORE / "packs").glob("*.py") if path.stem != "__init__"}
    assert {module: sorted(re.findall(r"`(\w+)`", names)) for module, names in rows.items()} == {
        module: sorted(re.findall(r" as (\w+)$", source, re.MULTILINE)) for module, source in public.items()
    }
