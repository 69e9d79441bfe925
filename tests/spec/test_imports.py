"""Our modules import each other by statements: every tool and every reader sees each arrow.

`lint-imports` judges what these statements say (layers, circles, what surfaces may use).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

import callgate
import callgate_catalogue
from callgate.feature import FEATURES

PACKAGE = Path(callgate.__file__).parent
CATALOGUE = Path(callgate_catalogue.__file__).parent
SOURCES = sorted([*PACKAGE.rglob("*.py"), *CATALOGUE.rglob("*.py")])
BY_NAME = {
    "__init__.py": "the names of the package, each loaded when it is first used",
    "sources/functions.py": "the user's own tools",
    "feature.py": "a feature that may be removed, and what an entry point names",
    "cli/command_line.py": "the commands of packages that we ship, by their entry points",
    "callgate_catalogue/speech/voice.py": "a package that may be missing",
    "features/chat/models/local.py": "a package that may be missing",
    "callgate_catalogue/web/tools.py": "a package that may be missing",
}
"""Who may import what a text names, and what that is."""
IMPORTS = frozenset({"import_module", "__import__"})
_MAY_NAME = re.compile(r"import_module|__import__|callgate\.\w+\.")
_MAY_IMPORT_INSIDE = re.compile(r"^[ \t]+.*\bimport\b|:[ \t]*(?:from|import)\b", re.MULTILINE)
"""Most modules match neither, and are not parsed."""
ENTRIES = {
    "callgate.__main__": "python -m callgate",
    "callgate.host.zygote": "its own process, by `sandbox/processes/zygotes.py`",
    "callgate_catalogue.speech.voice": "its own process, by `speech/speaker.py`",
    **{
        f"callgate_catalogue.{name}.pack": "an entry point"
        for name in ("google", "web", "memory", "documents", "speech")
    },
    "callgate_catalogue.commands": "an entry point",
    **{f"callgate.features.{each.name}.feature": "loaded by `callgate.feature`" for each in FEATURES},
    "callgate.adapters.inspect_registry": "an entry point",
    **{
        f"callgate.adapters.{name}": "imported by a program that has the framework"
        for name in ("agno", "claude_agent_sdk", "fastmcp", "langchain", "openai_agents", "pydantic_ai")
    },
    **{f"callgate.features.{each.name}.feature": "a feature that may be removed" for each in FEATURES},
}
"""Modules that nothing imports, and what starts them."""

FOUND = [
    ("importlib.import_module(f'{__package__}.call')", ["importlib.import_module(f'{__package__}.call')"]),
    ("__import__(name)", ["__import__(name)"]),
    ("load('callgate.cli.commands.call')", ["'callgate.cli.commands.call'"]),
    ("ROW = 'callgate.tools.loading:call'", ["'callgate.tools.loading:call'"]),
    ("log = getLogger('callgate.store')", []),
    ("from callgate.gate import Gate", []),
]


def named(source: str) -> Iterator[str]:
    """What in a module imports by a text, or names a module of ours in one."""
    if not _MAY_NAME.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and last_name(node.func) in IMPORTS:
            yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module = re.fullmatch(r"callgate((?:\.\w+){2,})(?::\w+)?", node.value)
            if module is not None and PACKAGE.joinpath(*module[1].split(".")).with_suffix(".py").is_file():
                yield repr(node.value)


def last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize(("source", "found"), FOUND)
def test_an_import_by_a_text_is_recognized(source: str, found: list[str]) -> None:
    assert list(named(source)) == found


def test_no_module_of_ours_is_imported_by_a_text() -> None:
    found = {name for path in SOURCES if any(named(path.read_text())) and (name := relative(path))}
    assert found == set(BY_NAME)


def test_an_import_inside_a_function_is_recognized() -> None:
    ways = ["import x", "from x import y", "if a:\n        import x"]
    assert [list(inner_imports(f"def f():\n    {way}\n")) for way in ways] == [[2], [2], [3]]
    assert list(inner_imports("def f(): import x")) == [1]


def test_an_import_inside_a_function_says_why() -> None:
    silent = [
        f"{relative(path)}:{line}"
        for path in SOURCES
        for text in [path.read_text()]
        for line in inner_imports(text)
        if not re.search(r"# lazy: \w", "".join(text.splitlines()[line - 1 : line + 1]))
    ]
    assert silent == []


def inner_imports(source: str) -> Iterator[int]:
    """The lines of imports that run with a function, not with the module."""
    if not _MAY_IMPORT_INSIDE.search(source):
        return
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield node.lineno


def test_every_module_is_imported_by_another_or_started_by_itself() -> None:
    graph = grimp.build_graph("callgate", "callgate_catalogue", cache_dir=None)
    alone = {
        module
        for module in graph.modules
        if not graph.find_children(module) and not graph.find_modules_that_directly_import(module)
    }
    assert alone == set(ENTRIES)


def test_no_surface_reaches_the_dispatcher() -> None:
    """Outside of `dispatch`, the two modules that compose a runtime use their own dispatcher only."""
    composing = {PACKAGE / "runtime.py", PACKAGE / "instance/wiring/runtime.py"}
    reached = [
        f"{relative(path)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.is_relative_to(PACKAGE / "dispatch") and "dispatcher" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in ("dispatcher", "_dispatcher")
        if path not in composing or ast.unparse(node.value) != "self"
    ]
    assert reached == []


def test_one_module_builds_runtimes() -> None:
    built = {
        relative(path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if "Wired" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Wired"
    }
    assert built == {"instance/wiring/builder.py"}


def test_each_port_of_a_runtime_has_at_most_twelve_methods(home: Path, tmp_path: Path) -> None:
    runtime = callgate.Gate(tmp_path).runtime
    for port in (runtime.calls, runtime.sessions, runtime.permission):
        named = [name for name in dir(port) if not name.startswith("_")]
        assert len([name for name in named if callable(getattr(port, name))]) <= 12


def test_type_checkers_see_every_name_of_the_package_where_it_is_loaded_from() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    seen = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
        if alias.asname is not None
    }
    assert seen == callgate._HOME


def relative(path: Path) -> str:
    above = PACKAGE if path.is_relative_to(PACKAGE) else CATALOGUE.parent
    return path.relative_to(above).as_posix()
