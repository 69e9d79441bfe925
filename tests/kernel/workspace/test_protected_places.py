"""Where protected names are in a workspace: what a sandbox is told to keep as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callgate.workspace.protected_places import DEPTH, MOST_MODULES, protected_places

OF_GIT = ("hooks", "config", "config.worktree", "commondir", "info")


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
        ".callgate/settings.toml",
        ".hg/hgrc",
        ".hg/hgrc-not-shared",
        *(f"{top}.git/{name}" for top in ("", "sub/") for name in OF_GIT),
    }


@pytest.mark.spec("T07")
def test_of_a_repository_all_is_kept_that_git_does_not_write_itself(tmp_path: Path) -> None:
    written = """HEAD ORIG_HEAD MERGE_HEAD MERGE_MSG MERGE_MODE CHERRY_PICK_HEAD REVERT_HEAD REBASE_HEAD FETCH_HEAD
        BISECT_LOG BISECT_EXPECTED_REV COMMIT_EDITMSG TAG_EDITMSG SQUASH_MSG AUTO_MERGE index index.lock HEAD.lock
        sharedindex.0a1b packed-refs packed-refs.lock packed-refs.new shallow shallow.lock gc.pid gc.log
        index.stash.12 next-index-12.lock objects/ab/cd refs/heads/main logs/HEAD rebase-merge/git-rebase-todo
        rebase-apply/patch sequencer/todo rr-cache/a/preimage lfs/objects/a info/exclude info/refs
        info/sparse-checkout"""
    kept = """branches/x remotes/origin later fsmonitor.sh info/grafts info/attributes HEAD.sh config.lock.d Index2
        worktrees/a/gitdir worktrees/a/hooks/x modules/m/config modules/m/hooks/x modules/m/what"""
    make(tmp_path, *(f".git/{name}" for name in f"{written} {kept}".split() if name != "HEAD"))
    make(tmp_path, ".git/modules/m/HEAD", ".git/HEAD", ".git/modules/m/objects/x")
    found = places(tmp_path)
    for name in written.split():
        assert not any(f".git/{name}" == each or f".git/{name}".startswith(f"{each}/") for each in found), name
    for name in kept.split():
        assert any(f".git/{name}" == each or f".git/{name}".startswith(f"{each}/") for each in found), name


def test_a_submodules_own_file_is_kept_at_any_depth(tmp_path: Path) -> None:
    deep = "/".join("abcdefghij")
    make(tmp_path, ".git/HEAD", ".git/modules/m/HEAD", f"{deep}/.git")
    (tmp_path / ".git/modules/m/config").write_text(f"[core]\nworktree = ../../../{deep}\n")
    assert f"{deep}/.git" in places(tmp_path)


def test_what_a_server_runs_is_left_to_commands(tmp_path: Path) -> None:
    make(tmp_path, ".github/workflows/ci.yml", ".gitlab-ci.yml", ".github/workflows/.envrc")
    assert places(tmp_path) == {".callgate/settings.toml", ".github/workflows/.envrc"}


def test_what_is_no_repository_yet_can_become_one(tmp_path: Path) -> None:
    make(tmp_path, ".git/")
    assert places(tmp_path) == {".callgate/settings.toml"}


def test_a_bare_repository_is_one_too(tmp_path: Path) -> None:
    make(tmp_path, "HEAD", "objects/", "refs/", ".envrc")
    make(tmp_path, "a/b.git/HEAD", "a/b.git/objects/", "a/b.git/refs/")
    names = OF_GIT
    below = {f"a/b.git/{name}" for name in names}
    assert places(tmp_path) == {".callgate/settings.toml", ".envrc", *names, *below}


@pytest.mark.spec("T07")
@pytest.mark.parametrize("left", ["HEAD", "config", "hooks/", "objects/", "refs/"])
def test_a_repository_that_something_was_taken_from_is_still_one(tmp_path: Path, left: str) -> None:
    make(tmp_path, f".git/{left}")
    of_git = {f".git/{name}" for name in OF_GIT}
    assert places(tmp_path) == {".callgate/settings.toml", *of_git}


@pytest.mark.spec("T07")
def test_a_bare_repository_that_something_was_taken_from_is_still_one(tmp_path: Path) -> None:
    make(tmp_path, "b.git/hooks/", "a/config")
    (tmp_path / "b.git/config").write_text("[core]\n\trepositoryformatversion = 0\n")
    of_git = {f"b.git/{name}" for name in OF_GIT}
    assert places(tmp_path) == {".callgate/settings.toml", *of_git}


@pytest.mark.spec("T07")
def test_a_repository_that_a_file_names_is_found_at_any_depth(tmp_path: Path) -> None:
    make(tmp_path, "a/b/c/d/repo/HEAD", "work/", "other/")
    (tmp_path / "work/.git").write_text("gitdir: ../a/b/c/d/repo\n")
    (tmp_path / "other/.git").write_text("gitdir: /etc\n")
    of_git = {f"a/b/c/d/repo/{name}" for name in OF_GIT}
    assert places(tmp_path) == {".callgate/settings.toml", "work/.git", "other/.git", *of_git}


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_configuration_is_not_waited_for(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD", "work/.git/HEAD")
    os.mkfifo(tmp_path / ".git/config")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "work/.git/config").write_text("[include]\n\tpath = ../../pipe\n")
    names = OF_GIT
    of_git = {f"{top}.git/{name}" for name in names for top in ("", "work/")}
    assert places(tmp_path) == {".callgate/settings.toml", "pipe", *of_git}


def test_a_path_with_a_nul_ends_there(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD")
    (tmp_path / ".git/config").write_text("[include]\n\tpath = ../a\0b\n")
    of_git = {f".git/{name}" for name in OF_GIT}
    assert places(tmp_path) == {".callgate/settings.toml", "a", *of_git}


@pytest.mark.spec("T07")
def test_worktrees_and_submodules_say_where_configuration_is_too(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD", ".git/worktrees/a/commondir", ".git/worktrees/b/config.worktree")
    make(tmp_path, ".git/modules/one/HEAD", ".git/modules/in/two/HEAD")
    make(tmp_path, ".git/modules/one/modules/deep/HEAD")
    repositories = (
        ".git",
        ".git/modules/one",
        ".git/modules/in/two",
        ".git/modules/one/modules/deep",
    )
    assert places(tmp_path) == {
        ".callgate/settings.toml",
        *(f".git/worktrees/{tree}/{name}" for tree in "ab" for name in ("commondir", "config.worktree")),
        *(f"{path}/{name}" for path in repositories for name in OF_GIT),
    }


def test_more_submodules_than_can_be_looked_after_are_kept_as_they_are(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD", *(f".git/modules/{n}/HEAD" for n in range(MOST_MODULES + 1)))
    of_git = {f".git/{name}" for name in (*OF_GIT, "modules")}
    assert places(tmp_path) == {".callgate/settings.toml", *of_git}


@pytest.mark.spec("T07")
def test_what_a_configuration_names_in_the_workspace_is_meant_too(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD", "shared/config", "linked", "scripts/hooks/")
    (tmp_path / "link").symlink_to("linked")
    (tmp_path / ".git" / "config").write_text(
        "[include] path = ../shared/config\n"
        '[includeIf "gitdir:~/x"]\n\tPATH = "../mis\\\nsing" ; a comment\n'
        "[include]\npath = /etc/gitconfig\npath = ../link\npath = ..\n"
        "[Core]\n  hooksPath = scripts/hooks # in the worktree\n[extensions] worktreeConfig\n"
    )
    (tmp_path / "shared" / "config").write_text("[include]\npath = more\npath = config\n")
    of_git = {f".git/{name}" for name in OF_GIT}
    assert places(tmp_path) == {
        ".callgate/settings.toml",
        *of_git,
        "shared/config",
        "shared/more",
        "missing",
        "linked",
        "scripts/hooks",
    }


def test_other_kinds_of_repositories_have_configuration_too(tmp_path: Path) -> None:
    make(tmp_path, ".hg/requires", ".jj/repo/x", "bzr/.bzr/branch/x", "svn/.svn/x")
    assert places(tmp_path) == {
        ".callgate/settings.toml",
        ".hg/hgrc",
        ".hg/hgrc-not-shared",
        ".hg/requires",
        ".jj/repo/config.toml",
        ".jj/workspace-config.toml",
        "bzr/.bzr/branch/branch.conf",
    }


def test_names_that_run_code_later_are_found_beside_the_root_and_below(tmp_path: Path) -> None:
    deep = "/".join("abcdefgh"[: DEPTH - 1])
    make(tmp_path, ".vscode/tasks.json", ".envrc", "plain", f"{deep}/.mcp.json", f"{deep}/z/.mcp.json")
    make(tmp_path, "node_modules/x/.vscode/", ".config/git/x")
    assert places(tmp_path) == {
        ".callgate/settings.toml",
        ".vscode",
        ".envrc",
        f"{deep}/.mcp.json",
        ".config/git",
    }


def test_a_link_that_stands_for_a_repository_or_for_us_is_named_itself(tmp_path: Path) -> None:
    make(tmp_path, "real/tasks.json")
    for name in (".git", ".callgate"):
        (tmp_path / name).symlink_to("real")
    assert places(tmp_path) == {".git", ".callgate"}


def test_instead_of_another_link_its_target_in_the_workspace_is_named(tmp_path: Path) -> None:
    make(tmp_path, "real/tasks.json", "skills/x/run.sh", ".claude/skills/x", ".claude/inner/x", "hooks.json")
    for name, target in (
        (".vscode", "real"),
        (".idea", "missing"),
        (".zed", "/etc"),
        (".fleet", "."),
        (".claude/commands", "../skills"),
        (".claude/inner/hooks.json", "../../hooks.json"),
    ):
        (tmp_path / name).symlink_to(target)
    assert places(tmp_path) == {".callgate/settings.toml", ".claude", "hooks.json", "real", "skills"}


def test_a_directory_in_which_an_agent_creates_a_file_at_its_start_stays_open_for_it(tmp_path: Path) -> None:
    make(tmp_path, ".opencode/agent/a.md", "sub/.opencode/opencode.json")
    ours = ".callgate/settings.toml"
    assert places(tmp_path) == {ours, ".opencode/agent", "sub/.opencode/opencode.json"}
    make(tmp_path, ".opencode/.gitignore")
    assert places(tmp_path) == {ours, ".opencode", "sub/.opencode/opencode.json"}


def test_a_root_that_cannot_be_read_still_gives_our_own(tmp_path: Path) -> None:
    assert places(tmp_path / "missing") == {".callgate/settings.toml"}


@pytest.mark.parametrize("file", [".gitconfig", ".config/git/config"])
def test_hooks_that_the_configuration_of_the_user_names_are_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / file).parent.mkdir(parents=True)
    (tmp_path / "home" / file).write_text("[core]\n\thooksPath = tools/hooks\n")
    workspace = tmp_path / "work"
    make(workspace, ".git/HEAD", "tools/hooks/pre-commit", "sub/.git/HEAD", "sub/tools/x", "new/.git/HEAD")
    found = {path for path in places(workspace) if path.endswith("tools/hooks")}
    assert found == {"tools/hooks", "sub/tools/hooks"}
