"""Glob patterns over relative paths."""

from __future__ import annotations

import pytest

from callgate.core.errors import ToolValidationError
from callgate.workspace.tree import Glob


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.py", "a.py"),
        ("*.py", "src/deep/a.py"),
        ("src/*.py", "src/a.py"),
        ("src/**/*.py", "src/a.py"),
        ("src/**/*.py", "src/x/y/a.py"),
        ("**/a.py", "a.py"),
        ("**", "x/y/z"),
        ("src/**", "src/x/y"),
        ("./src/a.py", "src/a.py"),
        ("*.{ts,tsx}", "x/a.tsx"),
        ("{src,lib}/*.{c,h}", "lib/a.h"),
        ("{a,{b,c}}.txt", "c.txt"),
        ("[ab]?.txt", "a1.txt"),
        ("[!a].txt", "b.txt"),
        ("a{}.txt", "a.txt"),
        ("a/**/b/**/c", "a/x/b/y/z/c"),
        (".*", "x/.env"),
    ],
)
def test_a_pattern_matches(pattern: str, path: str) -> None:
    assert Glob(pattern).matches(path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.py", "a.pyc"),
        ("src/*.py", "src/x/a.py"),
        ("src/*.py", "lib/src/a.py"),
        ("src/**/*.py", "lib/a.py"),
        ("a?c", "a/c"),
        ("A.py", "a.py"),
        ("/src", "src/a.py"),
    ],
)
def test_a_pattern_does_not_match(pattern: str, path: str) -> None:
    assert not Glob(pattern).matches(path)


def test_no_pattern_takes_long() -> None:
    assert not Glob("*a" * 100 + "b").matches("a" * 255)
    assert not Glob("**/*a/" * 100 + "b").matches("/".join("a" * 200))


@pytest.mark.parametrize("pattern", ["", "a\0", "x" * 1001, "{a,b}" * 20])
def test_what_cannot_be_a_pattern_is_invalid(pattern: str) -> None:
    with pytest.raises(ToolValidationError):
        Glob(pattern)
