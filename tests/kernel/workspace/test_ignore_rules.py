"""Ignore files mean to us what they mean to git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from callgate.workspace.tree import Ignores

_NAMES = st.text("ab-]!# .", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
_CLASSES = [
    "[ab]",
    "[!a]",
    "[^a]",
    "[a-b]",
    "[]a]",
    "[!]a]",
    "[[:alpha:]]",
    "[[:punct:]]",
    "[a",
    "[b-a]",
    "[\\]a]",
    "[-a]",
    "[a-]",
    "[[:no:]]",
    "[[:a]",
    "[a/b]",
    "[!]-a]",
    "[+--]",
    "[\\a-\\b]",
]
_PIECES = st.sampled_from(
    ["a", "b", "ab", "*", "?", ".", "-", "]", "\\a", "\\*", "\\ ", "!", "#", "\\#", "\\", " ", *_CLASSES]
)
_SEGMENTS = st.one_of(st.lists(_PIECES, min_size=1, max_size=4).map("".join), st.just("**"))
_LINES = st.builds(
    lambda sign, root, segments, end: sign + root + "/".join(segments) + end,
    st.sampled_from(["", "", "!", "\\!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(_SEGMENTS, min_size=1, max_size=4),
    st.sampled_from(["", "", "/", "  ", "\\ ", "\r"]),
)


def _check_ignore(git: Path, lines: list[str], paths: list[str]) -> set[str]:
    """Those of the paths that git leaves out; a path that ends in `/` is a directory."""
    work = git.parent
    for each in work.iterdir():
        if each != git:
            subprocess.run(["rm", "-rf", str(each)], check=True)
    (work / ".gitignore").write_bytes("\n".join(lines).encode())
    for path in paths:
        place = work / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.touch()
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "-z", "--stdin"],
        cwd=work,
        input="\0".join(path.rstrip("/") for path in paths).encode(),
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(work), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    assert done.returncode in (0, 1), done.stderr
    return set(filter(None, done.stdout.decode().split("\0")))


def _ours(lines: list[str], path: str) -> bool:
    ignores = Ignores().within(["\n".join(lines)])
    names = path.rstrip("/").split("/")
    for depth in range(1, len(names)):
        if ignores.cover(names[:depth], is_directory=True):
            return True
        ignores = ignores.within([])
    return ignores.cover(names, is_directory=path.endswith("/"))


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("oracle")
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    return work / ".git"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(_LINES, min_size=1, max_size=5),
    st.lists(st.lists(_NAMES, min_size=1, max_size=4).map("/".join), min_size=1, max_size=6),
    st.booleans(),
)
@example(["a/**"], ["a", "a/b"], False)
@example(["**/b", "!a/b"], ["a/b", "b/b"], False)
@example(["a/**/b"], ["a/b", "a/x/y/b"], False)
@example(["[[:alpha:]-]b"], ["-b", "ab", "1b"], False)
@example(["/*", "!/a"], ["a/b", "b/a"], True)
def test_git_leaves_out_the_same(git: Path, lines: list[str], paths: list[str], slash: bool) -> None:
    files = {path + ("/" if slash and n == 0 else "") for n, path in enumerate(paths)}
    # A file cannot lie in a file, and git does not look below itself.
    plain = sorted({path.rstrip("/"): path for path in files}.values())
    assume(not any(a != b and (b.rstrip("/") + "/").startswith(a.rstrip("/") + "/") for a in plain for b in plain))
    assume(not any(name in path.split("/") for path in plain for name in (".git", ".gitignore")))
    theirs = _check_ignore(git, lines, plain)
    assert {path.rstrip("/") for path in plain if _ours(lines, path)} == theirs, lines


def test_no_line_makes_matching_take_long() -> None:
    lines = ["*a*a*a*a*a*a*a*ab", "/**/*a*a*/**/*a*a*a/**/b", "*?a*?a*?a*?a*?a*?ab"]
    ignores = Ignores().within(["\n".join(lines)])
    assert not ignores.cover(["a" * 255] * 100, is_directory=False)
