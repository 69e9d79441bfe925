"""A repository in the workspace: real git works in a jail, and cannot be made to run a program later."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from callgate.sandbox import profiles
from callgate.sandbox.backends import placeholders
from callgate.sandbox.plans import SandboxPlan, choose
from callgate.workspace.protected_places import protected_places
from tests.kernel.sandbox.test_escapes import needed, together
from tests.kernel.sandbox.worlds import PYTHON, World, run
from tests.needs import needs

pytestmark = needs("linux", "bash", "git", PYTHON)

MOUNTING = ["namespaces", "bubblewrap"]
BACKENDS = [*MOUNTING, "supervisor"]
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}

MADE = """
    git init -qb main library && (cd library && echo 1 > f && git add f && git commit -qm one)
    rm -r .git links link key && git init -qb main . && git add plain && git commit -qm first
    git submodule --quiet add ./library sub && git commit -qm sub && git branch other
    git worktree add -q ../outside/tree other
    git config include.path ../shared.ini && git config core.hooksPath run-by-git
"""
WORK = """
    set -e; git status --short -uno; echo a > a; git add a; git commit -qm a
    git checkout -qb side; echo b > b; git add b; git commit -qm b
    git checkout -q main; echo c > c; git add c; git commit -qm c
    git merge -q side -m merged; git branch new
    git checkout -qb again HEAD~1; echo d > d; git add d; git commit -qm d; git rebase -q main
    echo e >> a; git stash -q; git stash pop -q; git commit -qam e; git tag t
    git worktree add -q inside 2> /dev/null; git -C inside commit -q --allow-empty -m i
    git worktree list | wc -l; git worktree remove inside; git gc -q; git fsck --no-dangling
    (cd sub; git checkout -qb on; echo 2 > g; git add g; git commit -qm two; git log --oneline | wc -l)
    git add sub; git commit -qm moved; git submodule status | cut -d' ' -f3
    git rev-list --count HEAD; git reset -q --hard HEAD~1; git -C sub checkout -q -
    git cherry-pick t &> /dev/null || git cherry-pick --skip; git reflog | wc -l > /dev/null
    git bisect start HEAD HEAD~3 > /dev/null; git bisect reset 2> /dev/null
    git clone -q . copied; git -C copied log --oneline -1 | wc -l
"""
SUBMODULES = """
    set -e; git clone -q --recurse-submodules . cloned 2> /dev/null; git -C cloned submodule status | cut -c 43-45
    cd fresh; git submodule --quiet update 2> /dev/null; git submodule status | cut -c 43-45
    git -C sub log --oneline | wc -l; git submodule --quiet foreach 'git commit -q --allow-empty -m e; git log --oneline | wc -l'
    git submodule summary | wc -l
"""
PLANTED = """
    config config.worktree commondir hooks/post-checkout info/attributes
    worktrees/tree/config.worktree worktrees/tree/commondir worktrees/tree/gitdir worktrees/tree/hooks/x
    modules/sub/config modules/sub/config.worktree modules/sub/commondir modules/sub/info/attributes
    modules/sub/hooks/post-checkout
""".split()
EVIL = """
    git init -q evil; git config -f evil/.git/config core.fsmonitor "touch $PWD/ran; false"
    cp -r .git/objects .git/refs .git/HEAD evil/.git
    planted() { git config -f "$1" core.fsmonitor "touch $PWD/ran; false"; }
"""
ATTACKS = {
    "commondir": f"{EVIL} echo ../evil/.git > .git/commondir",
    "commondir, by renaming": f"{EVIL} echo ../evil/.git > c; mv -f c .git/commondir",
    "commondir, by a link": f"{EVIL} echo ../evil/.git > c; ln -f c .git/commondir",
    "another worktree": f"{EVIL} echo ../../../evil/.git > .git/worktrees/tree/commondir",
    "a worktree in its place": (
        f"{EVIL} cp -r .git/worktrees w; echo ../../../evil/.git > w/tree/commondir; "
        "mv .git/worktrees old; mv w .git/worktrees"
    ),
    "a submodule's configuration": f"{EVIL} planted .git/modules/sub/config",
    "a submodule's commondir": f"{EVIL} echo ../../../evil/.git > .git/modules/sub/commondir",
    "a submodule in its place": (
        f"{EVIL} cp -r .git/modules m; planted m/sub/config; mv .git/modules old; mv m .git/modules"
    ),
    "a submodule that is elsewhere": f"{EVIL} echo 'gitdir: ../evil/.git' > sub/.git",
    "an included file": f"{EVIL} planted shared.ini",
    "a directory of hooks": (
        "mkdir run-by-git; printf '#!/bin/sh\\ntouch '$PWD/ran > run-by-git/post-index-change; "
        "chmod +x run-by-git/post-index-change"
    ),
}
LOOKS = "git status; git -C ../outside/tree status; git -C sub status; touch plain; git status"


class Repository:
    def __init__(self) -> None:
        self.world = World(os.getuid())
        self.path = self.world.workspace
        self.git(MADE)

    def git(self, script: str) -> str:
        """As the user does it, outside."""
        environment = {**ENVIRONMENT, "HOME": str(self.world.home)}
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=self.path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.stdout

    def jailed(self, script: str, backend: str) -> tuple[int | None, str, str]:
        chosen = needed(together(backend))
        bwrap = next((getattr(each, "path", None) for each in chosen if each.name == backend), None)
        protected = protected_places(str(self.path))
        places = msgspec.structs.replace(self.world.places, protected=protected)
        return self._run(choose(profiles.workspace(places), chosen), script, bwrap)

    def bare(self, script: str) -> tuple[int | None, str, str]:
        return self._run(None, script, None)

    def _run(self, plan: SandboxPlan | None, script: str, bwrap: str | None) -> tuple[int | None, str, str]:
        argv = ("/bin/bash", "-c", script)
        environment = {**ENVIRONMENT, "HOME": str(self.world.home)}
        environment.pop("PATH")
        ended, out, err = asyncio.run(run(plan, argv, str(self.path), bwrap=bwrap, **environment))
        return ended.code, out, err

    @property
    def ran(self) -> bool:
        self.git(LOOKS)
        return (self.path / "ran").exists()

    def placeholders(self) -> list[str]:
        """Not those that a command copied to somewhere else."""
        inside = (self.path / ".git", self.path / "library")
        paths = (*self.path.iterdir(), *(path for each in inside for path in each.rglob("*")))
        found = (path for path in paths if not path.is_symlink())
        return [str(path) for path in found if placeholders.is_one(stat.S_IMODE(path.stat().st_mode))]


@pytest.fixture
def repository() -> Iterator[Repository]:
    made = Repository()
    yield made
    made.world.remove()


@pytest.mark.parametrize("backend", BACKENDS)
def test_git_works_and_leaves_nothing_of_ours_behind(repository: Repository, backend: str) -> None:
    assert repository.jailed(WORK, backend) == (0, "3\n2\nsub\n9\n1\n", "")
    after = repository.git("git status --short; git fsck --no-dangling")
    assert after == "?? copied/\n?? library/\n"
    assert repository.placeholders() == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_submodules_are_fetched_and_worked_in(repository: Repository, backend: str) -> None:
    repository.git("git clone -q . fresh; git -C fresh submodule --quiet init")
    assert repository.jailed(SUBMODULES, backend) == (0, "sub\nsub\n1\n2\n3\n", "")


@pytest.mark.spec("T02", "T07")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_command_writes_in_a_repository_only_what_git_writes(repository: Repository, backend: str) -> None:
    """Neither by writing, nor by renaming something onto it, nor by a directory above it."""
    names = " ".join(PLANTED)
    before = {name: repository.git(f"cat .git/{name} 2> /dev/null") for name in PLANTED}
    script = f"""
        for name in {names}; do
            mkdir -p .git/$(dirname $name); echo evil > .git/$name
            echo evil > made; mv -f made .git/$name; ln -f plain .git/$name; ln -sf plain .git/$name
        done
        for name in info modules/sub modules worktrees/tree worktrees hooks; do
            mv .git/$name .git/old; mkdir -p .git/$name; rm -rf .git/$name .git/old
        done
    """
    repository.jailed(script, backend)
    after = {name: repository.git(f"cat .git/{name} 2> /dev/null") for name in PLANTED}
    assert after == before
    assert repository.placeholders() == []


@pytest.mark.spec("T07")
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_planted_does_not_wait_for_the_user_to_turn_it_on(repository: Repository, backend: str) -> None:
    repository.jailed(f"{EVIL} planted .git/config.worktree", backend)
    repository.git("git config extensions.worktreeConfig true")
    assert not repository.ran


@pytest.mark.parametrize("backend", MOUNTING)
def test_git_works_outside_while_a_command_runs(repository: Repository, backend: str) -> None:
    needed(together(backend))
    pipes = [str(repository.path / name) for name in ("up", "go")]
    for pipe in pipes:
        os.mkfifo(pipe)
    up, go = (os.open(pipe, os.O_RDWR) for pipe in pipes)
    head = repository.git("git rev-parse HEAD")
    with ThreadPoolExecutor(1) as elsewhere:
        command = elsewhere.submit(repository.jailed, "echo > up; read < go", backend)
        assert select.select([up], [], [], 30)[0]
        seen = repository.git("git rev-parse HEAD; cat .git/commondir; git -C sub status --short")
        os.write(go, b"\n")
        assert command.result(30) == (0, "", "")
    for pipe in (up, go):
        os.close(pipe)
    assert seen == f"{head}.\n"


@pytest.mark.spec("T02", "T07")
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_next_git_of_the_user_runs_nothing(repository: Repository, backend: str, attack: str) -> None:
    repository.jailed(ATTACKS[attack], backend)
    assert not repository.ran
    assert repository.placeholders() == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_a_jail_it_would_have(repository: Repository, attack: str) -> None:
    repository.bare(ATTACKS[attack])
    assert repository.ran


@pytest.mark.spec("T07")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_repository_cannot_be_hidden_from_one_command_for_the_next(repository: Repository, backend: str) -> None:
    repository.jailed("mv .git/HEAD kept; mv .git/objects o; mv .git/refs r", backend)
    repository.jailed(f"{EVIL} planted .git/config; mv kept .git/HEAD; mv o .git/objects; mv r .git/refs", backend)
    assert not repository.ran


@pytest.mark.spec("T07")
@pytest.mark.parametrize("backend", MOUNTING)
def test_a_secret_cannot_be_moved_by_one_command_for_the_next(backend: str) -> None:
    chosen = needed(together(backend))
    bwrap = next((getattr(each, "path", None) for each in chosen if each.name == backend), None)
    world = World(os.getuid())
    (world.home / ".config" / "gh").mkdir(parents=True)
    (world.home / ".config" / "gh" / "hosts.yml").write_text("private")
    home = str(world.home)
    try:
        said = []
        for script in ("mv .config elsewhere", "cat elsewhere/gh/hosts.yml"):
            places = msgspec.structs.replace(world.places, workspace=home, protected=())
            plan = choose(profiles.workspace(places), chosen)
            ended, out, _ = asyncio.run(run(plan, ("/bin/sh", "-c", script), home, bwrap=bwrap))
            said.append((ended.code, out))
        assert said == [(1, ""), (1, "")]
    finally:
        world.remove()


@needs("root")
@pytest.mark.parametrize("backend", MOUNTING)
def test_the_kernels_settings_are_not_roots_to_write_even_where_all_else_is(backend: str) -> None:
    chosen = needed(together(backend))
    bwrap = next((getattr(each, "path", None) for each in chosen if each.name == backend), None)
    world = World(os.getuid())
    try:
        plan = choose(profiles.open(world.places), chosen)
        argv = ("/bin/sh", "-c", "find /sys -xdev -type f -writable 2>/dev/null | head -1")
        ended, out, err = asyncio.run(run(plan, argv, str(world.workspace), bwrap=bwrap))
        assert (ended.code, out, err) == (0, "", "")
    finally:
        world.remove()
