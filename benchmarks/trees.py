"""A checkout of the project that is measured: this one, or one of another commit beside it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def environment(tree: str) -> dict[str, str]:
    """In which `callgate` and `benchmarks` are those of a tree, whatever is installed.

    Bytecode is written, or a fresh tree would be compiled anew at every start.
    """
    path = os.pathsep.join([os.path.join(tree, "src"), tree])
    given = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    return given


@contextmanager
def checkout(revision: str, repository: str = ROOT) -> Iterator[str]:
    """The directory of another commit, for as long as it is measured."""
    git = ["git", "-C", repository]
    commit = f"{revision}^{{commit}}"
    known = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", commit], capture_output=True, text=True
    )
    if known.returncode != 0:
        raise SystemExit(f"{revision!r} is no commit of this repository")
    with tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as directory:
        tree = os.path.join(directory, "tree")
        add = [*git, "worktree", "add", "--quiet", "--detach", tree, known.stdout.strip()]
        subprocess.run(add, check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", tree], check=True)
