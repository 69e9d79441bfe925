"""`[tools] load`: the user's own tools, from a file or a module, all of them or none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from callgate.sources.functions import ToolLoadError, load_tools
from tests.kernel.cli.running import callgate

GOOD = """
from callgate import tool

@tool(side_effects="none")
async def one() -> int:
    '''Give 1.'''
    return 1
"""

BY_CLASS = """
from callgate import SideEffects, TextBlock, ToolDefinition, ToolOutput

class Two:
    definition = ToolDefinition(
        name="two", description="Give 2.", side_effects=SideEffects.NONE,
        input_schema={"type": "object", "properties": {}},
    )
    async def execute(self, input, context):
        return ToolOutput(content=[TextBlock("2")])
    async def cancel(self):
        return False

TOOLS = [Two]
"""


def names(spec: str, **more: str) -> list[str]:
    return [factory().definition.name for factory in load_tools(spec, **more)]


def test_functions_and_listed_classes_are_found(tmp_path: Path) -> None:
    file = tmp_path / "t.py"
    file.write_text(GOOD + BY_CLASS)
    assert names(str(file)) == ["one", "two"]


def test_a_listed_function_is_found_once(tmp_path: Path) -> None:
    file = tmp_path / "t.py"
    file.write_text(GOOD + "TOOLS = (one,)\n")
    assert names(str(file)) == ["one"]


def test_a_relative_path_counts_from_the_home_and_never_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.py").write_text(GOOD)
    assert names("t.py", beside=str(tmp_path)) == ["one"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolLoadError):
        load_tools("t.py")


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t.py").write_text(GOOD)
    assert names("~/t.py") == ["one"]


def test_a_module_is_imported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tools_pkg").mkdir()
    (tmp_path / "my_tools_pkg" / "some.py").write_text(GOOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names("my_tools_pkg.some") == ["one"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\nx = = 2\n", 2),
        ("\n\nraise RuntimeError('no')\n", 3),
        ("def f():\n    g()\ndef g():\n    1 / 0\nf()\n", 4),
        ("import no_such_module_here\n", 1),
        (GOOD.replace('"none"', '"everything"'), 4),
        (GOOD.replace("() -> int", "(x: complex) -> int"), 4),
        ("x = 1\n", None),
        ("TOOLS = 5\n", None),
        ("TOOLS = [5]\n", None),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_line(text: str, line: int | None, tmp_path: Path) -> None:
    file = tmp_path / "t.py"
    file.write_text(text)
    before = set(sys.modules)
    with pytest.raises(ToolLoadError) as raised:
        load_tools(str(file))
    assert (raised.value.file, raised.value.line) == (str(file), line)
    left = {name for name in set(sys.modules) - before if name.startswith("callgate_tools_")}
    assert left == set()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolLoadError) as raised:
        load_tools(str(tmp_path / "t.py"))
    assert (raised.value.file, raised.value.line) == (str(tmp_path / "t.py"), None)


def test_a_module_that_fails_is_named_with_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_tools_mod.py").write_text("\n1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ToolLoadError) as raised:
        load_tools("failing_tools_mod")
    assert (raised.value.file, raised.value.line) == (str(tmp_path / "failing_tools_mod.py"), 2)
    with pytest.raises(ToolLoadError) as raised:
        load_tools("no_such.module.anywhere")
    assert (raised.value.file, raised.value.line) == ("no_such.module.anywhere", None)


@pytest.mark.parametrize(
    "bad",
    ["1 / 0\n", GOOD.replace("one", "shell"), GOOD, "x = 1\n"],
    ids=["raises", "built-in name", "name of another file", "no tool"],
)
def test_the_command_line_loads_nothing_if_one_file_is_wrong(bad: str, ws: Path, home: Path) -> None:
    (home / "good.py").write_text(GOOD)
    (home / "bad.py").write_text(bad)
    (home / "settings.toml").write_text('[tools]\nload = ["good.py", "bad.py"]\n')
    ran = callgate("call", "one", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (2, "settings_invalid")
    assert "bad.py" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.spec("T23")
def test_a_workspace_loads_no_tools(ws: Path) -> None:
    (ws / ".callgate").mkdir()
    (ws / ".callgate" / "settings.toml").write_text('[tools]\nload = ["evil.py"]\n')
    (ws / "evil.py").write_text("open('ran', 'w')\n")
    callgate("trust", ".", cwd=ws)
    assert callgate("call", "list_dir", cwd=ws).code == 2
    assert not (ws / "ran").exists()
