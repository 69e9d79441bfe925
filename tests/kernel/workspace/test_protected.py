"""Names that run code later: written by an explicit rule only."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.core.errors import WorkspaceEscapeError
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import Opener
from callgate.workspace.protected import is_protected
from tests.kernel.workspace.worlds import picture

PROTECTED = [
    ".config/pip/pip.conf",
    ".config/uv/uv.toml",
    ".pip/pip.conf",
    ".git",
    ".git/config",
    ".git/hooks/pre-commit",
    "vendor/lib/.git/config",
    "worktree/.git",
    ".gitmodules",
    ".hg/hgrc",
    ".svn/entries",
    ".callgate/settings.toml",
    ".bashrc",
    "home/.zshrc",
    ".profile",
    ".config/fish/config.fish",
    ".config/systemd/user/x.service",
    "Library/LaunchAgents/x.plist",
    ".envrc",
    ".mcp.json",
    ".claude/settings.json",
    ".cursor/mcp.json",
    ".codex/config.toml",
    ".gemini/settings.json",
    ".qwen/settings.json",
    ".vibe/hooks.toml",
    ".kimi-code/config.toml",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".idea/workspace.xml",
    ".zed/settings.json",
    ".husky/pre-commit",
    ".pre-commit-config.yaml",
    ".devcontainer/devcontainer.json",
    "project.code-workspace",
    ".github/workflows/ci.yml",
    "sub/.github/workflows",
    ".gitlab-ci.yml",
]

OTHER_LETTERS = [
    ".GIT/config",
    ".Git/hooks/x",
    ".MCP.JSON",
    ".g\u200dit/config",
    ".ｇｉｔ/config",
    ".git /config",
    ".git./config",
    ".git ",
    "GIT~1/config",
    ".BASHRC",
    ".GitHub/Workflows/ci.yml",
    ".GITLAB-CI.yml",
    ".ba\u017fhrc",
]

ORDINARY = [
    "README.md",
    "src/git/config.py",
    "git/config",
    ".github/dependabot.yml",
    "workflows/.github",
    ".gitignore",
    ".gitattributes",
    "docs/.bashrc.md",
    "vscode/tasks.json",
    ".config/app/settings.toml",
    ".env",
    "package.json",
    "AGENTS.md",
    "a.git/config",
    "...",
    "a. /b",
    "日本語.txt",
]


@pytest.mark.spec("T07")
@pytest.mark.parametrize("path", PROTECTED)
def test_what_runs_code_later_is_protected(path: str) -> None:
    assert is_protected(path)


@pytest.mark.spec("T08")
@pytest.mark.parametrize("path", OTHER_LETTERS)
def test_other_letters_for_the_same_name_do_not_help(path: str) -> None:
    assert is_protected(path)


@pytest.mark.parametrize("path", ORDINARY)
def test_ordinary_files_are_not_protected(path: str) -> None:
    assert not is_protected(path)


@pytest.mark.spec("T07", "T08")
@pytest.mark.parametrize("path", [*PROTECTED, *OTHER_LETTERS])
def test_a_protected_path_is_neither_made_nor_changed_nor_deleted(
    files: WorkspaceFileAPI, root: Path, path: str
) -> None:
    acts = (
        lambda: files.write(path, "x"),
        lambda: files.append(path, "x"),
        lambda: files.write(f"deep/below/{path}", "x"),
    )
    for act in acts:
        with pytest.raises(WorkspaceEscapeError) as refused:
            act()
        assert refused.value.reason == "protected_path"
    assert list(root.iterdir()) == []


@pytest.mark.spec("T07")
def test_an_existing_protected_file_can_be_read_but_not_changed(files: WorkspaceFileAPI, root: Path) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("[core]")
    (root / "way").symlink_to(".git")
    (root / "same").hardlink_to(root / ".git" / "config")
    (root / ".claude").symlink_to("conf")
    before = picture(root)
    for path in (".git/config", "way/config"):
        assert files.read(path) == "[core]"
        acts = (
            lambda path: files.write(path, "x"),
            lambda path: files.append(path, "x"),
            lambda path: files.patch(path, "core", "x"),
            files.delete,
        )
        for act in acts:
            with pytest.raises(WorkspaceEscapeError) as refused:
                act(path)
            assert refused.value.reason == "protected_path"
    with pytest.raises(WorkspaceEscapeError):
        files.write(".claude/settings.json", "x")
    assert picture(root) == before
    files.write("same", "x")
    assert (root / ".git" / "config").read_text() == "[core]"


def test_a_guard_decides_about_protected_paths_instead(root: Path, opener: Opener) -> None:
    files = WorkspaceFileAPI(str(root), guard=lambda real, access: None, opener=opener)
    files.write(".git/config", "x")
    assert files.read(".git/config") == "x"
