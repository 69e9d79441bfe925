"""The search after a run finds files that are executed later, wherever the run put them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from callgate.workspace.executed_later import now, search, take_stock
from tests.needs import needs

pytestmark = [needs("linux"), pytest.mark.spec("T07")]

EVIL = "[core]\nfsmonitor = ./x\n"
NOBODY = 65534


def written(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def later_than(path: Path) -> int:
    """A time after the last change of a file, by the kernel's clock."""
    while now() <= path.stat().st_ctime_ns:
        pass
    return now()


def test_a_file_is_new_from_the_first_moment_of_a_run(tmp_path: Path) -> None:
    for count in range(200):
        began = now()
        (tmp_path / str(count) / ".vscode").mkdir(parents=True)
        file = written(tmp_path / str(count) / ".vscode/tasks.json")
        assert search([str(file.parents[1])], began).files == (str(file.parent),)


@pytest.mark.parametrize("link", [".git", ".git/commondir"])
def test_a_repository_in_another_directory_that_the_run_could_write_is_found(tmp_path: Path, link: str) -> None:
    sessions = tmp_path / "sessions"
    config = written(sessions / "repository/config", EVIL)
    target = sessions / "repository"
    written(tmp_path / "ws/sub" / link, f"{target}\n" if link.endswith("commondir") else f"gitdir: {target}\n")
    roots = [str(tmp_path / "ws")]
    left = search(roots, 0)
    assert (left.git, left.files) == ((), (str(tmp_path / "ws/sub" / link),))
    left = take_stock(roots, 0, (), [str(sessions)])
    assert left.git == ((str(config), ("core.fsmonitor",)),)
    assert not config.exists()


def test_an_old_file_in_a_directory_that_was_moved_is_found_and_a_protected_one_is_not(tmp_path: Path) -> None:
    written(tmp_path / "other/.vscode/tasks.json")
    old = written(tmp_path / "old/tasks.json")
    began = later_than(old)
    (tmp_path / "old").rename(tmp_path / ".vscode")
    moved = str(tmp_path / ".vscode")
    assert search([str(tmp_path)], began).files == (moved,)
    assert search([str(tmp_path)], began, [moved]).files == ()


def test_links_in_a_circle_end_the_search(tmp_path: Path) -> None:
    written(tmp_path / "real/x")
    began = later_than(tmp_path / "real/x")
    (tmp_path / "real/loop").symlink_to(".")
    (tmp_path / ".vscode").symlink_to("real")
    assert search([str(tmp_path)], began).files == (str(tmp_path / ".vscode"),)


def unsearched(root: str, directory: str) -> str:
    """What a search without root's rights could not read."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(NOBODY, NOBODY, NOBODY)
            os.chmod(os.path.join(root, directory), 0o311)
            os.write(writing, search([root], 0).unsearched.encode())
            os.chmod(os.path.join(root, directory), 0o700)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.parametrize("directory", ["sub", "sub/.git/hooks"])
def test_a_directory_that_cannot_be_listed_is_named(directory: str) -> None:
    """git opens files in it by their names all the same."""
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as made:
        root = Path(made)
        written(root / "sub/.git/hooks/pre-commit")
        if os.geteuid() == 0:
            for path in (root, *root.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        assert unsearched(made, directory) == f"{made}/{directory} cannot be read"
