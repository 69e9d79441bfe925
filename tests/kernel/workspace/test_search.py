"""Finding files and lines beneath the wall."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callgate.core.errors import (
    ToolCancelled,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
    WorkspaceEscapeError,
)
from callgate.core.sessions import Root
from callgate.workspace import search as bounds
from callgate.workspace import tree
from callgate.workspace.files import Access, WorkspaceFileAPI
from callgate.workspace.opening import Opener
from callgate.workspace.search import Match, Matches, Paths, find, search
from tests.needs import needs
from tests.support import descriptors


def make(root: Path, *names: str, text: str = "needle\n") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(*paths: str) -> Paths:
    return Paths(list(paths), complete=True)


def paths_of(matches: Matches) -> list[str]:
    return [match.path for match in matches.matches]


def test_files_are_found_by_name_at_any_depth(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, "a.py", "b.txt", "src/c.py", "src/deep/d.py", ".hidden/e.py")
    assert find(files, "*.py") == found(".hidden/e.py", "a.py", "src/c.py", "src/deep/d.py")
    assert find(files, "src/*.py") == found("src/c.py")
    assert find(files, "deep/*.py", "src") == found("src/deep/d.py")
    assert find(files, "*.py", str(root / "src")) == found("src/c.py", "src/deep/d.py")
    assert find(files, "*.py", "src/c.py") == found("src/c.py")
    assert find(files, "*.rs") == found()


def test_lines_are_found_with_those_around_them(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, "a.txt", text="one\r\ntwo\nneedle here\nfour\n")
    make(root, "src/b.py", text="Needle")
    assert search(files, "needle", context=1) == Matches(
        [Match("a.txt", 3, "needle here", ["two"], ["four"])], True, 2, []
    )
    assert paths_of(search(files, "NEEDLE", ignore_case=True)) == ["a.txt", "src/b.py"]
    assert paths_of(search(files, "needle", ignore_case=True, glob="*.py")) == ["src/b.py"]
    assert paths_of(search(files, "^N", "src")) == ["src/b.py"]
    assert search(files, "one$").matches == [Match("a.txt", 1, "one")]
    assert search(files, "", "a.txt").matches[-1] == Match("a.txt", 4, "four")


def test_links_are_not_followed_and_nothing_outside_is_seen(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, "sub/a.txt", text="SECRET of ours\n")
    (root / "out").symlink_to("../outside")
    (root / "out_file").symlink_to("../outside/secret.txt")
    (root / "in").symlink_to("sub")
    (root / "sub" / "circle").symlink_to("..")
    os.mkfifo(root / "pipe")
    assert find(files, "*") == found("sub/a.txt")
    assert paths_of(search(files, "SECRET")) == ["sub/a.txt"]
    assert find(files, "*", "in") == found("sub/a.txt")
    for path in ("out", "out_file", "..", "/"):
        with pytest.raises(WorkspaceEscapeError):
            find(files, "*", path)
        with pytest.raises(WorkspaceEscapeError):
            search(files, "SECRET", path)
    with pytest.raises(ToolExecutionError) as refused:
        find(files, "*", "pipe")
    assert refused.value.reason == "wrong_type"


def test_ignore_files_are_honoured_at_every_level(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, ".git/config", "a.log", "keep.log", "build/x.txt", "src/build/y.txt", "src/z.log")
    make(root, "src/only.txt", "src/deep/only.txt", "top.tmp", "src/top.tmp", "x.gen", "src/y.gen")
    (root / ".gitignore").write_text("# rules\n*.log\n!keep.log\nbuild/\n/top.tmp\n\\\n")
    (root / "src" / ".gitignore").write_text("/only.txt\n!z.log\n")
    (root / ".ignore").write_text("*.gen\n")
    (root / "src" / ".callgateignore").write_bytes(b"\xff\n.gitignore\n.callgateignore\n")
    assert find(files, "*") == found(
        ".gitignore", ".ignore", "keep.log", "src/deep/only.txt", "src/top.tmp", "src/z.log"
    )
    assert find(files, "*", "src") == found("src/deep/only.txt", "src/top.tmp", "src/z.log")
    assert paths_of(search(files, "needle", "src/deep")) == ["src/deep/only.txt"]


def test_what_is_ignored_can_still_be_asked_for_by_name(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, "build/out/x.txt", "build/out/y.log", "a.log")
    (root / ".gitignore").write_text("build/\n*.log\n")
    assert find(files, "*", "build") == found("build/out/x.txt", "build/out/y.log")
    assert find(files, "*", "build/out") == found("build/out/x.txt", "build/out/y.log")
    assert paths_of(search(files, "needle", "a.log")) == ["a.log"]


def test_a_guard_hides_what_may_not_be_read(root: Path, opener: Opener) -> None:
    make(root, "a.txt", "secret/b.txt")

    def guard(real: str, access: Access) -> None:
        if "/secret" in real:
            raise ToolPermissionDenied("no")

    files = WorkspaceFileAPI(str(root), guard=guard, opener=opener)
    assert find(files, "*.txt") == found("a.txt")
    assert paths_of(search(files, "needle")) == ["a.txt"]
    with pytest.raises(ToolPermissionDenied):
        find(files, "*", "secret")


def test_files_of_another_root_are_named_in_full(root: Path, tmp_path: Path, opener: Opener) -> None:
    make(tmp_path / "lib", "a.txt")
    files = WorkspaceFileAPI(str(root), extra_roots=(Root(str(tmp_path / "lib")),), opener=opener)
    assert find(files, "*", str(tmp_path / "lib")) == found(f"{tmp_path}/lib/a.txt")


def test_binary_and_large_files_are_passed_over(
    files: WorkspaceFileAPI, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_FILE", 100)
    make(root, "a.txt")
    make(root, "large.txt", text="needle\n" * 100)
    (root / "b.bin").write_bytes(b"needle\0")
    (root / "latin.txt").write_bytes(b"needle \xe9")
    assert search(files, "needle") == Matches(
        [Match("a.txt", 1, "needle"), Match("latin.txt", 1, "needle \ufffd")],
        complete=True,
        files_searched=3,
        too_large=["large.txt"],
    )


def test_a_bound_that_was_reached_is_told(files: WorkspaceFileAPI, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(root, "a.txt", "b.txt", "c/d.txt", text="needle\nneedle\n")
    assert find(files, "*", limit=2) == Paths(["a.txt", "b.txt"], complete=False)
    assert find(files, "*", limit=3) == found("a.txt", "b.txt", "c/d.txt")
    assert [(m.path, m.line) for m in search(files, "needle", limit=3).matches] == [
        ("a.txt", 1),
        ("a.txt", 2),
        ("b.txt", 1),
    ]
    assert [search(files, "needle", limit=n).complete for n in (5, 6)] == [False, True]
    monkeypatch.setattr(tree, "MAX_DEPTH", 0)
    assert find(files, "*") == Paths(["a.txt", "b.txt"], complete=False)
    monkeypatch.setattr(tree, "MAX_ENTRIES", 1)
    assert find(files, "*") == Paths(["a.txt"], complete=False)
    monkeypatch.setattr(bounds, "MAX_SECONDS", -1.0)
    assert find(files, "*") == Paths([], complete=False)
    assert search(files, "needle").complete is False


def test_of_a_long_line_only_the_beginning_counts(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, "a.txt", text="x" * 1_990 + "needle" + "needle!" * 100)
    assert [len(match.text) for match in search(files, "needle").matches] == [2_000]
    assert search(files, "needle!").matches == []


def test_a_search_stops_when_it_is_told_to(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, "a.txt", "b.txt")
    for act in (
        lambda: find(files, "*", should_stop=lambda: True),
        lambda: search(files, "needle", should_stop=lambda: True),
    ):
        with pytest.raises(ToolCancelled):
            act()


def test_a_wrong_pattern_is_invalid(files: WorkspaceFileAPI) -> None:
    with pytest.raises(ToolValidationError):
        search(files, "(")
    with pytest.raises(ToolValidationError):
        search(files, "x", glob="{a,b}" * 20)
    with pytest.raises(ToolValidationError):
        find(files, "")


@needs("linux")
def test_names_that_are_no_text_are_passed_over(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, "a.txt")
    (root / os.fsdecode(b"bad\xff.txt")).write_text("needle")
    assert find(files, "*") == found("a.txt")
    assert paths_of(search(files, "needle")) == ["a.txt"]


def test_a_search_keeps_nothing_open(files: WorkspaceFileAPI, root: Path) -> None:
    make(root, "a/b/c.txt", "a/d.txt")
    (root / "a" / ".gitignore").write_text("x\n")
    find(files, "*")
    before = descriptors()
    find(files, "*", "a/b")
    find(files, "*", limit=1)
    search(files, "needle", limit=1)
    search(files, "(n+)+eedle", "a")
    with pytest.raises(ToolCancelled):
        find(files, "*", should_stop=iter([False, True]).__next__)
    assert descriptors() <= before
