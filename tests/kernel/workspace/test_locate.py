"""Where a path leads, told before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.core.errors import WorkspaceEscapeError
from callgate.core.sessions import ResolvedPath, Root
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import Opener
from tests.support import descriptors


def place(root: Path, given: str, relative: str, **more: bool) -> ResolvedPath:
    real = str(root) if relative == "." else f"{root}/{relative}"
    told = {"exists": True, "protected": False, "writable": True, **more}
    return ResolvedPath(given=given, real=real, root=str(root), relative=relative, **told)


def test_a_place_is_named_as_it_really_is(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a.txt").write_text("")
    (root / "way").symlink_to("sub")
    (root / "abs").symlink_to(root / "sub")
    found = {
        "sub/a.txt": "sub/a.txt",
        "./sub//a.txt": "sub/a.txt",
        "sub/../sub/a.txt": "sub/a.txt",
        "way/a.txt": "sub/a.txt",
        "abs/a.txt": "sub/a.txt",
        "sub/": "sub",
        ".": ".",
        "sub/..": ".",
        f"{root}": ".",
        f"{root}/way/a.txt": "sub/a.txt",
    }
    for given, relative in found.items():
        assert files.locate(given) == place(root, given, relative)


def test_a_missing_place_is_where_it_would_be_made(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "file").write_text("")
    (root / "way").symlink_to("sub")
    (root / "later").symlink_to("sub/later.txt")
    found = {
        "new.txt": "new.txt",
        "way/new.txt": "sub/new.txt",
        "way/new/deep.txt": "sub/new/deep.txt",
        "later": "sub/later.txt",
        "no/../new.txt": "new.txt",
        "file/x": "file/x",
        f"{root}/way/new.txt": "sub/new.txt",
    }
    for given, relative in found.items():
        assert files.locate(given) == place(root, given, relative, exists=False)


@pytest.mark.spec("T07")
def test_a_protected_place_is_told_by_its_name_and_by_where_it_leads(files: WorkspaceFileAPI, root: Path) -> None:
    (root / ".git").mkdir()
    (root / "conf").mkdir()
    (root / "to_git").symlink_to(".git")
    (root / ".claude").symlink_to("conf")
    found = {
        ".git/hooks/pre-commit": ".git/hooks/pre-commit",
        "to_git/config": ".git/config",
        ".claude/settings.json": "conf/settings.json",
        "no/../.git/config": ".git/config",
        f"{root}/.MCP.json": ".MCP.json",
    }
    for given, relative in found.items():
        assert files.locate(given) == place(root, given, relative, exists=False, protected=True)


def test_the_name_of_the_root_itself_protects_nothing(tmp_path: Path, opener: Opener) -> None:
    root = tmp_path / ".claude" / "work"
    root.mkdir(parents=True)
    files = WorkspaceFileAPI(str(root), opener=opener)
    given = f"{root}/a.txt"
    assert files.locate(given) == place(root, given, "a.txt", exists=False)


def test_a_place_tells_its_root_and_whether_it_may_be_written(tmp_path: Path, root: Path, opener: Opener) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "a.txt").write_text("")
    files = WorkspaceFileAPI(str(root), extra_roots=(Root(str(lib)),), opener=opener)
    given = f"{lib}/a.txt"
    there = place(lib, given, "a.txt", writable=False)
    assert files.locate(given) == there
    assert files.resolved(given) == there
    assert files.called(there) == given
    assert files.called(files.locate("b.txt")) == "b.txt"


def test_the_innermost_root_counts(tmp_path: Path, root: Path, opener: Opener) -> None:
    (root / "a.txt").write_text("")
    files = WorkspaceFileAPI(str(root), extra_roots=(Root(str(tmp_path)),), opener=opener)
    assert files.locate(f"{root}/a.txt") == place(root, f"{root}/a.txt", "a.txt")
    other = f"{tmp_path}/outside/secret.txt"
    assert files.locate(other) == place(tmp_path, other, "outside/secret.txt", writable=False)


def test_a_place_outside_every_root_is_refused(files: WorkspaceFileAPI) -> None:
    for path in ("..", "/", "/etc/passwd", "no/../../x", "/proc/self/cwd"):
        with pytest.raises(WorkspaceEscapeError):
            files.locate(path)


def test_nothing_stays_open(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "abs").symlink_to(root / "sub")
    (root / "out").symlink_to("/etc")
    files.write("sub/a.txt", "a")

    def everything() -> None:
        for path in ("sub/a.txt", "abs/a.txt", "out/passwd", "no/where", "..", "/etc", "", "sub"):
            acts = (
                files.locate,
                files.read,
                files.list,
                files.delete,
                lambda path: files.write(path, "a"),
                lambda path: files.append(path, "a"),
                lambda path: files.patch(path, "a", "a"),
            )
            for act in acts:
                try:
                    act(path)
                except Exception:
                    pass
            files.write("sub/a.txt", "a")

    everything()
    before = descriptors()
    for _ in range(5):
        everything()
    assert descriptors() <= before


def test_a_forgotten_api_closes_its_root(root: Path, opener: Opener) -> None:
    before = descriptors()
    for _ in range(5):
        WorkspaceFileAPI(str(root), opener=opener).locate("a.txt")
    assert descriptors() <= before
