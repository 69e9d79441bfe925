"""A result of `shell` names what its command left to run later, and nothing that git writes itself."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from callgate.core.sessions import Mode
from callgate.dispatch.commands.sandboxes import Sandbox, Surroundings
from callgate.sandbox.plans import Backend
from callgate.tools.shell import Shell
from tests.needs import needs
from tests.support import Bench
from tests.unit.sandbox import test_escapes

pytestmark = [needs("linux", "bash", "git"), pytest.mark.spec("T07")]

WHO = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b;"
LATER = "created, and may run later by themselves"
WORK = """
    echo a > a; git add a; git commit -qm a; git checkout -qb side; echo b > b; git add b; git commit -qm b
    git checkout -q main; echo c > c; git add c; git commit -qm c; git merge -q side -m m; git rebase -q HEAD~1
    echo d >> a; git stash -q; git stash pop -q; git tag t; git gc -q; git branch x; git commit -qam e; git fsck
"""
CASES = {
    "ordinary work": (WORK, []),
    "a new repository": ("git init -q evil", [f"[{LATER}: evil/.git]"]),
    "one that runs programs": (
        "git init -q evil; git -C evil config core.fsmonitor ./x; echo > evil/.git/hooks/post-checkout",
        [f"[{LATER}: evil/.git (core.fsmonitor, hooks/post-checkout)]"],
    ),
    "one without files": ("git init -q --bare store", [f"[{LATER}: store]"]),
    "a submodule's place": ("git init -q --bare .git/modules/evil", [f"[{LATER}: .git/modules/evil]"]),
    "a worktree": ("git worktree add -q inside", [f"[{LATER}: inside/.git]"]),
    "a worktree of another repository": (
        "git worktree add -q inside; echo ../../../evil > .git/worktrees/inside/commondir",
        [f"[{LATER}: .git/worktrees/inside/commondir, inside/.git]"],
    ),
    "what git may read one day": ("echo > .git/new", [f"[{LATER}: .git/new]"]),
    "a mode that hides nothing": (
        "echo evil > .envrc; chmod 1400 .envrc; mkdir .vscode; echo > .vscode/tasks.json; chmod 1400 .vscode",
        [f"[{LATER}: .envrc, .vscode]"],
    ),
    "a file below the reach of a search": (
        "echo more >> a/b/c/d/e/f/g/h/.envrc",
        ["[changed, and may run later by themselves: a/b/c/d/e/f/g/h/.envrc]"],
    ),
    "what a server runs": (
        "mkdir -p .github/workflows; echo > .github/workflows/new.yml; echo x >> .gitlab-ci.yml",
        ["[changed, and runs on a server after a push: .github/workflows, .gitlab-ci.yml]"],
    ),
    "a rebase that is left": (
        "GIT_SEQUENCE_EDITOR=\"sed -i '1i break\\nexec ./evil --now'\" git rebase -qi --root",
        ["[a rebase is left unfinished: .git/rebase-merge; continuing it runs: exec ./evil --now]"],
    ),
    "a rebase of no repository": (
        "mkdir .git/rebase-merge; echo x ./evil > .git/rebase-merge/git-rebase-todo",
        ["[a rebase is left unfinished: .git/rebase-merge; continuing it runs: x ./evil]"],
    ),
}


@pytest.fixture(scope="module")
def backends() -> tuple[Backend, ...]:
    return test_escapes.backends()


@pytest.fixture
def workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as made:
        workspace = Path(made) / "ws"
        deep = workspace / "a/b/c/d/e/f/g/h"
        deep.mkdir(parents=True)
        (deep / ".envrc").write_text("x\n")
        (workspace / ".gitlab-ci.yml").write_text("x\n")
        script = f"{WHO} git init -qb main; echo 1 > one; git add one; git commit -qm one"
        subprocess.run(["/bin/bash", "-c", script], cwd=workspace, check=True)
        yield workspace


@pytest.fixture(params=["namespaces", "bubblewrap"])
async def sandbox(
    request: pytest.FixtureRequest, workspace: Path, backends: tuple[Backend, ...]
) -> AsyncIterator[Sandbox]:
    chosen = tuple(each for each in backends if each.name in ("seccomp", request.param))
    for each in chosen:
        if each.problem is not None:
            pytest.skip(f"needs {each.name}: {each.problem}")
    home = str(workspace.parent / "home")
    made = Sandbox(Surroundings(home=home, callgate_home=f"{home}/.callgate"), chosen)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES)
async def test_a_result_names_what_runs_later(workspace: Path, sandbox: Sandbox, case: str) -> None:
    command, expected = CASES[case]
    bench = Bench(workspace, Shell, sandbox=sandbox, mode=Mode.WRITE)
    command = f"{{ {WHO} {command}\n}} > /dev/null 2>&1; true"
    result = await bench.run("shell", {"command": command})
    assert result.content[0].text.splitlines() == expected


async def test_a_configuration_that_can_be_changed_is_named_when_it_is(workspace: Path, sandbox: Sandbox) -> None:
    """Where places are for a minute is remembered: a new repository is not yet among them."""
    run = Bench(workspace, Shell, sandbox=sandbox, mode=Mode.WRITE).run
    await run("shell", {"command": "git init -q evil"})
    result = await run("shell", {"command": "git -C evil config core.pager ./x"})
    assert result.content[0].text == "[changed, and may run later by themselves: evil/.git/config]"
