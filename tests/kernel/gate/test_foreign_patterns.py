"""A pattern that somebody else wrote holds nobody up: ignore files, rules, globs.

Each of these took minutes to years where a backtracking engine matched it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate import Gate, tool
from callgate.core.errors import ToolErrorClass
from callgate.policy.rules import compile_glob
from tests.kernel.cli.running import callgate, environment, installed

IGNORED = "*a*a*a*a*a*a*a*ab\n/**/*a*a*a*/**/*a*a*ab\n"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    (tmp_path / ".gitignore").write_text(IGNORED)
    (tmp_path / ("a" * 200)).write_text("a" * 2_000 + "needle\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("find_files", {"pattern": "*"}),
        ("find_files", {"pattern": "*a" * 60 + "*"}),
        ("search_text", {"pattern": "a"}),
        ("search_text", {"pattern": "a", "glob": "*a" * 60 + "*"}),
    ],
)
async def test_an_ignore_file_and_a_glob_hold_no_search_up(name: str, arguments: dict[str, str], hostile: Path) -> None:
    async with Gate(hostile) as gate:
        result = await gate.call(name, arguments)
    assert result.ok and "a" * 200 in result.text


def test_an_ignore_file_holds_no_command_up(hostile: Path) -> None:
    ran = installed("call", "find_files", "pattern=*", "--timeout", "30", cwd=hostile)
    assert (ran.code, "a" * 200 in ran.out) == (0, True), ran.err


@tool(side_effects="none")
async def note(content: str) -> int:
    """Count the characters of a text."""
    return len(content)


async def test_a_rule_holds_no_large_argument_up(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "settings.toml").write_text(
        '[[policy.rules]]\ndecision = "deny"\ntool = "note"\n'
        'arguments = { content = "*password*=*secret*=*password*" }\n'
    )
    text = "password" * 100_000
    async with Gate(tmp_path, [note], home=tmp_path / "home") as gate:
        allowed = await gate.call("note", {"content": text})
        refused = await gate.call("note", {"content": text + "=secret=" + text})
    assert allowed.value == len(text)
    assert refused.error is not None and refused.error.error_class is ToolErrorClass.PERMISSION_DENIED


def test_no_glob_of_a_rule_takes_long() -> None:
    assert not compile_glob("**/*a*a*a*a/**/*a*a*a*a/**/b", paths=True)("/".join(["a" * 250] * 16))
    assert not compile_glob("a**a**a**a**a**b", paths=True)("/".join(["a" * 250] * 16))
    assert not compile_glob("*?a*?a*?a*?a*?a*?ab", paths=False)("a" * 1_000_000)


def test_a_rule_with_too_many_meanings_is_refused_with_its_place(tmp_path: Path) -> None:
    settings = tmp_path / "home" / "settings.toml"
    settings.parent.mkdir()
    settings.write_text('[[policy.rules]]\ndecision = "deny"\npath = "' + "a**" * 20 + 'b"\n')
    ran = callgate(
        "policy",
        "explain",
        "read_file",
        "path=a",
        cwd=tmp_path,
        env=environment({"CALLGATE_HOME": str(settings.parent)}),
    )
    assert ran.code != 0 and "settings.toml:3" in ran.err + ran.out, ran
