"""Two trees are measured in one run, row beside row."""

from __future__ import annotations

import os
import subprocess

import pytest

from benchmarks.against import measure
from benchmarks.contest import Effort
from benchmarks.efforts import QUICK
from benchmarks.trees import ROOT, checkout, environment


def test_both_trees_have_the_same_rows_of_as_many_rounds(tmp_path):
    other = str(tmp_path / "other")
    os.symlink(ROOT, other)
    sides = measure(other, {"calls"}, QUICK._replace(calls=Effort(rounds=2, batch=2)))
    shapes = {tree: [(row.name, len(row.rounds)) for row in found] for tree, found in sides.items()}
    names = [f"{case}/{name}" for case in ("add", "order") for name in ("bare", "gate", "dispatcher")]
    assert shapes == dict.fromkeys((other, ROOT), [(name, 2) for name in names])


@pytest.fixture
def repository(tmp_path):
    def git(*words):
        config = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        done = subprocess.run(["git", "-C", str(tmp_path), *config, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "note").write_text("old")
    git("add", "note")
    git("commit", "-qm", "old")
    first = git("rev-parse", "HEAD")
    (tmp_path / "note").write_text("new")
    git("commit", "-qam", "new")
    return str(tmp_path), first


def test_another_commit_is_there_while_it_is_measured_and_gone_afterwards(repository):
    root, first = repository
    with checkout(first, root) as tree:
        with open(os.path.join(tree, "note")) as file:
            assert file.read() == "old"
        assert environment(tree)["PYTHONPATH"].startswith(os.path.join(tree, "src"))
    assert not os.path.exists(tree)
    listed = subprocess.run(["git", "-C", root, "worktree", "list"], capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1


def test_what_is_no_commit_is_refused(repository):
    with pytest.raises(SystemExit, match="no commit"), checkout("nothing", repository[0]):
        pass
