"""ARCHITECTURE.md says what is true: packages, layers, modules, dependencies, the hour's reading."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import callgate

ROOT = Path(__file__).parents[2]
SOURCE = Path(callgate.__file__).parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

MOST_MODULES = 25
MOST_AT_THE_TOP = 6
MOST_LINES = 2_000
"""What a newcomer reads in an hour."""
DIRECTORIES = [SOURCE, *(each for each in SOURCE.rglob("*") if each.is_dir() and any(each.glob("*.py")))]


def section(heading: str) -> str:
    return re.split(r"^## ", TEXT.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.M)[0]


def block(text: str, number: int = 0) -> str:
    """The text of a fenced block."""
    return re.findall(r"^```\n(.*?)^```$", text, flags=re.M | re.S)[number]


def test_the_packages_are_those_that_there_are() -> None:
    described = re.findall(r"^(\w+)(?:/|\.py) ", block(section("Packages")), flags=re.M)
    there = {
        each.stem
        for each in SOURCE.iterdir()
        if (each.suffix == ".py" or (each / "__init__.py").is_file()) and not each.stem.startswith("__")
    }
    assert sorted(described) == sorted(there)


def test_the_layers_are_those_that_import_linter_holds() -> None:
    contract = next(each for each in PROJECT["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    assert block(section("Packages"), 1).split("\n")[:-1] == contract["layers"]


def test_the_dependencies_are_those_of_the_package() -> None:
    rows = re.findall(r"^\| ([\w, -]+) \|", section("Dependencies, and why"), flags=re.M)
    named = {name for row in rows if row != "package" for name in row.split(", ")}
    installed = {re.split(r"[^\w-]", each)[0] for each in PROJECT["project"]["dependencies"]}
    assert named == installed


MENTIONED = sorted(set(re.findall(r"`((?:\w+/)+\w+(?:\.py|/)?)`", TEXT)))


def _exists(mention: str) -> bool:
    if mention.startswith(("tests/", "docs/", "protocols/", "src/")):
        return (ROOT / mention).exists()
    paths = [SOURCE / mention, SOURCE / "dispatch" / mention]  # the table of stages is about `dispatch/`
    return any(each.exists() or each.with_suffix(".py").is_file() for each in paths)


@pytest.mark.parametrize("mention", MENTIONED)
def test_every_module_that_is_named_exists(mention: str) -> None:
    in_the_home = re.compile(r"(run|hosts|mcp|skills|documents|memory|undo|artifacts|instances)/")
    assert _exists(mention) or in_the_home.match(mention), mention


def test_every_holder_of_state_is_a_class() -> None:
    paragraph = section("Where state lives").strip().split("\n\n")[0]
    classes = set(re.findall(r"`(\w+)`", paragraph))
    source = "\n".join(each.read_text(encoding="utf-8") for each in SOURCE.rglob("*.py"))
    assert classes and {each for each in classes if not re.search(rf"^class {each}\b", source, flags=re.M)} == set()


def test_the_reading_of_the_first_hour_is_an_hours_reading() -> None:
    named = re.findall(r"`([\w/.]+\.(?:py|md))`", section("The first hour"))
    files = [ROOT / each if each.endswith(".md") else SOURCE / each for each in named]
    assert ROOT / "ARCHITECTURE.md" in files
    lines = {str(each): len(each.read_text(encoding="utf-8").splitlines()) for each in files}
    assert sum(lines.values()) <= MOST_LINES, lines


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda each: str(each.relative_to(SOURCE)))
def test_no_directory_hides_its_structure_behind_many_modules(directory: Path) -> None:
    most = MOST_AT_THE_TOP if directory == SOURCE else MOST_MODULES
    names = {each.stem for each in directory.glob("*.py")} - (set() if directory == SOURCE else {"__init__"})
    assert len(names) <= most


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda each: str(each.relative_to(SOURCE)))
def test_every_package_says_what_it_is_for(directory: Path) -> None:
    assert (directory / "__init__.py").read_text(encoding="utf-8").startswith('"""')
