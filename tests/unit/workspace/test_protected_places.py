"""Where protected names are in a workspace: what a sandbox is told to keep as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.workspace.protected_places import DEPTH, protected_places


def places(root: Path) -> set[str]:
    return {str(Path(place).relative_to(root)) for place in protected_places(str(root))}


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text("")


@pytest.mark.spec("T07")
def test_our_own_directory_is_there_although_it_does_not_exist(tmp_path: Path) -> None:
    assert places(tmp_path) == {".callgate/settings.toml"}
    make(tmp_path, ".callgate/skills/")
    assert places(tmp_path) == {".callgate"}


def test_of_a_repository_only_what_runs_programs_is_meant(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD", ".git/config.worktree", "sub/.git/HEAD", "sub/.git/commondir", ".hg/hgrc")
    assert places(tmp_path) == {
        ".callgate/settings.toml", ".git/hooks", ".git/config", ".git/config.worktree",
        "sub/.git/hooks", "sub/.git/config", "sub/.git/commondir", ".hg/hgrc",
    }  # fmt: skip


def test_what_is_no_repository_yet_can_become_one(tmp_path: Path) -> None:
    make(tmp_path, ".git/")
    assert places(tmp_path) == {".callgate/settings.toml"}


def test_a_bare_repository_is_one_too(tmp_path: Path) -> None:
    make(tmp_path, "HEAD", "objects/", "refs/")
    assert places(tmp_path) == {".callgate/settings.toml", "hooks", "config"}


def test_names_that_run_code_later_are_found_beside_the_root_and_below(tmp_path: Path) -> None:
    deep = "/".join("abcdefgh"[: DEPTH - 1])
    make(tmp_path, ".vscode/tasks.json", ".envrc", "plain", f"{deep}/.mcp.json", f"{deep}/z/.mcp.json")
    make(tmp_path, "node_modules/x/.vscode/", ".config/git/x")
    assert places(tmp_path) == {
        ".callgate/settings.toml", ".vscode", ".envrc", f"{deep}/.mcp.json", ".config/git",
    }  # fmt: skip


def test_a_link_is_left_out_unless_it_stands_for_a_repository_or_for_us(tmp_path: Path) -> None:
    make(tmp_path, "real/tasks.json")
    for name in (".vscode", ".git", ".callgate"):
        (tmp_path / name).symlink_to("real")
    assert places(tmp_path) == {".git", ".callgate"}


def test_a_root_that_cannot_be_read_still_gives_our_own(tmp_path: Path) -> None:
    assert places(tmp_path / "missing") == {".callgate/settings.toml"}
