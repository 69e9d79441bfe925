"""No pattern uses what Debian's Python 3.11.2 gets wrong: possessive quantifiers, atomic groups."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
_SUSPECT = re.compile(r"\(\?>|(?:[\])\w.\"]|\\.|\})[*+?]\+|\{\d*,?\d*\}\}?\+")
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")


def texts(path: Path) -> list[str]:
    """The texts of a module, without docstrings."""
    found, docs = [], set()
    for node in ast.walk(ast.parse(path.read_text())):  # a statement comes before its value
        if isinstance(node, ast.Expr):
            docs.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            found.append(node.value)
    return found


def test_no_pattern_is_possessive_or_atomic() -> None:
    found = [
        (str(path.relative_to(SOURCE)), text)
        for path in sorted(SOURCE.rglob("*.py"))
        for text in texts(path)
        if "#$%&" not in text  # a list of characters
        if _SUSPECT.search(_CLASS.sub("[]", text))
    ]
    assert found == []


@pytest.mark.parametrize("text", ["a*+", "[ab]++", r"\w?+", "(?>a)", "a{0,4}+", "(?:a|b)*+"])
def test_such_a_pattern_is_found(text: str) -> None:
    assert _SUSPECT.search(_CLASS.sub("[]", text))
