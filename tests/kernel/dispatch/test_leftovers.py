"""A result of `shell` names what its command left to run later, and nothing that git writes itself."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from callgate.core.commands import Command
from callgate.core.sessions import Mode, Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, Surroundings
from callgate.sandbox.jails import Profile
from callgate.sandbox.plans import Backend
from callgate.tools.shell import Shell
from tests.kernel.sandbox import test_escapes
from tests.needs import needs
from tests.support import Bench

pytestmark = [needs("linux", "bash", "git"), pytest.mark.spec("T07")]

WHO = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b;"


def refused(*paths: str) -> str:
    return (
        f"[not written: {', '.join(paths)}; programs execute such files later without a question: "
        "write them yourself, outside the sandbox]"
    )


def later(*paths: str) -> str:
    return (
        f"[created or changed, and executed later without a question: {', '.join(paths)}; read before "
        "you open this directory with an editor, a shell or an agent]"
    )


def disabled(path: str, *settings: str) -> str:
    names = f" ({', '.join(settings)})" if settings else ""
    return f"[git would run programs by {path}{names}: renamed to {path}.disabled-by-callgate]"


PLANT = "h=$(echo x | git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$h,"
WORK = """
    echo a > a; git add a; git commit -qm a; git checkout -qb side; echo b > b; git add b; git commit -qm b
    git checkout -q main; echo c > c; git add c; git commit -qm c; git merge -q side -m m; git rebase -q HEAD~1
    echo d >> a; git stash -q; git stash pop -q; git tag t; git gc -q; git branch x; git commit -qam e; git fsck
"""
CASES = {
    "ordinary work": (WORK, []),
    "a new repository": ("git init -q evil; git -C evil config user.name x", []),
    "one that runs programs": (
        "git init -q evil; git -C evil config core.fsmonitor ./x; echo > evil/.git/hooks/post-checkout",
        [refused("evil/.git/config", "evil/.git/hooks/post-checkout")],
    ),
    "one without files": ("git init -q --bare store; git -C store config core.pager ./x", [refused("store/config")]),
    "one that is made by hand": (
        "mkdir -p e/objects e/refs; echo 'ref: refs/heads/x' > e/HEAD; echo '[core] sshCommand = ./x' > e/config",
        [refused("e/config")],
    ),
    "one whose configuration comes first": (
        "mkdir e; echo '[core] sshCommand = ./x' > e/config; mkdir e/objects e/refs; echo x > e/HEAD",
        [refused("e/HEAD"), disabled("e/config", "core.sshcommand")],
    ),
    "one that is moved to its place": (
        "mkdir -p e/objects/x d; echo '[alias] st = !./x' > e/config; mv e d/.git",
        [refused("d/.git")],
    ),
    "one that another names": (
        "mkdir -p e sub; echo '[core] fsmonitor = ./x' > e/config; echo 'gitdir: ../e' > sub/.git",
        [disabled("e/config", "core.fsmonitor")],
    ),
    "one that a link names": (
        "mkdir e sub; echo '[core] fsmonitor = ./x' > e/config; ln -s ../e sub/.git",
        [refused("sub/.git")],
    ),
    "one that shares another's": (
        "mkdir -p e s/.git; echo '[core] fsmonitor = ./x' > e/config; echo ../../e > s/.git/commondir; echo x > s/.git/HEAD",
        [disabled("e/config", "core.fsmonitor")],
    ),
    "a submodule's place": (
        "git init -q --bare .git/modules/evil; git -C .git/modules/evil config core.editor ./x",
        [refused(".git/modules/evil/config")],
    ),
    "a worktree": ("git worktree add -q inside", []),
    "settings of a worktree": (
        "git worktree add -q inside; echo '[core] fsmonitor = ./x' > .git/worktrees/inside/config.worktree",
        [refused(".git/worktrees/inside/config.worktree")],
    ),
    "a mode that hides nothing": (
        "echo evil > .envrc; chmod 1400 .envrc; mkdir .vscode; echo > .vscode/tasks.json; chmod 1400 .vscode",
        [refused(".envrc", ".vscode/tasks.json")],
    ),
    "a file below the reach of a search": ("echo more >> a/b/c/d/e/f/g/h/.envrc", [refused("a/b/c/d/e/f/g/h/.envrc")]),
    "files of a commit": (
        f"{PLANT}.vscode/tasks.json; git commit -qm x; git checkout -q -- .vscode",
        [later(".vscode")],
    ),
    "files that git moves to a protected name": ("git mv old .fleet", [later(".fleet")]),
    "files behind a link whose target was missing": (
        "mkdir -p shown/zed; echo x > shown/zed/tasks.json",
        [later(".zed")],
    ),
    "files behind a link": ("echo evil > real/tasks.json; test $(cat real/tasks.json) = x || echo > .envrc", []),
    "a repository of another kind": (
        "mkdir -p e/.hg f/.jj/repo; echo '[hooks]' > e/.hg/hgrc; echo > e/.hg/requires; echo > f/.jj/repo/config.toml",
        [later("e/.hg/hgrc", "f/.jj/repo/config.toml")],
    ),
    "a remote that is a program": (
        "git init -q evil; git -C evil config branch.main.remote x::y",
        [refused("evil/.git/config")],
    ),
    "old configuration that becomes a repository's": (
        "mkdir dotgit/objects dotgit/refs; echo ref: refs/heads/x > dotgit/HEAD",
        [refused("dotgit/HEAD")],
    ),
    "an old repository that a new file names": (
        "mkdir sub; echo 'gitdir: ../a/b/c/d/e/f/g/h/store' > sub/.git",
        [disabled("a/b/c/d/e/f/g/h/store/config", "core.fsmonitor")],
    ),
    "what a server runs": (
        "mkdir -p .github/workflows; echo > .github/workflows/new.yml; echo x >> .gitlab-ci.yml",
        ["[changed, and runs on a server after a push: .github/workflows, .gitlab-ci.yml]"],
    ),
    "a rebase that is left": (
        "GIT_SEQUENCE_EDITOR=\"sed -i '1i break\\nexec ./evil --now'\" git rebase -qi --root",
        ["[a rebase is unfinished: .git/rebase-merge; continuing it runs: exec ./evil --now]"],
    ),
    "a rebase of no repository": (
        "mkdir .git/rebase-merge; echo x ./evil > .git/rebase-merge/git-rebase-todo",
        ["[a rebase is unfinished: .git/rebase-merge; continuing it runs: x ./evil]"],
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
        for name in ("old/tasks.json", "real/tasks.json", "shown/x"):
            (workspace / name).parent.mkdir()
            (workspace / name).write_text("x\n")
        for repository in (workspace / "dotgit", deep / "store"):
            repository.mkdir()
            (repository / "config").write_text("[core]\nfsmonitor = ./x\n")
        for name in ("store/objects", "store/refs"):
            (deep / name).mkdir()
        (deep / "store/HEAD").write_text("ref: refs/heads/x\n")
        (workspace / ".zed").symlink_to("shown/zed")
        (workspace / ".idea").symlink_to("real")
        script = f"{WHO} git init -qb main; echo 1 > one; git add one old; git commit -qm one"
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


async def test_no_repository_of_a_command_runs_a_program_outside(workspace: Path, sandbox: Sandbox) -> None:
    """A second command meets a repository that no mount protects yet, and goes around git."""
    run = Bench(workspace, Shell, sandbox=sandbox, mode=Mode.WRITE).run
    for command in (
        "git init -q evil; git -C evil commit -q --allow-empty -m x; git add evil",
        "printf '[core]\\nfsmonitor = touch $PWD/RUN;false\\n' > c; cp c evil/.git/config; mv c evil/.git/config; ln -f c evil/.git/config",
        "ln evil/.git/config other; printf '[core]\\nfsmonitor = touch ../RUN;false\\n' >> other",
    ):
        await run("shell", {"command": f"{WHO} {command}"})
        subprocess.run(["git", "status"], cwd=workspace, check=True, capture_output=True)
        assert not list(workspace.rglob("RUN"))


RACE = """
import os, threading, ctypes
libc = ctypes.CDLL(None)
name = ctypes.create_string_buffer(b"harmless", 64)
done = threading.Event()
def swap():
    while not done.is_set():
        name.value = b".envrc"
        name.value = b"harmless"
threads = [threading.Thread(target=swap) for _ in range(2)]
[t.start() for t in threads]
for _ in range(20000):
    fd = libc.open(name, os.O_CREAT | os.O_WRONLY, 0o600)
    if fd >= 0: os.close(fd)
    if os.path.exists(".envrc"): break
    if os.path.exists("harmless"): os.unlink("harmless")
done.set()
print("created" if os.path.exists(".envrc") else "not created")
"""


async def test_a_name_that_wins_the_race_against_the_refusal_is_reported(workspace: Path, sandbox: Sandbox) -> None:
    (workspace / "race.py").write_text(RACE)
    run = Bench(workspace, Shell, sandbox=sandbox, mode=Mode.WRITE).run
    result = await run("shell", {"command": "/usr/bin/python3 race.py", "timeout_seconds": 60})
    assert (workspace / ".envrc").exists() == (later(".envrc") in result.content[0].text)


async def test_a_host_creates_nothing_that_is_executed_later_and_its_end_is_searched(
    workspace: Path, sandbox: Sandbox
) -> None:
    reported = asyncio.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "git would run programs by" in record.getMessage():
                reported.set()

    handler = Handler()
    logging.getLogger("callgate.dispatch.commands.launchers").addHandler(handler)
    session = Session(workspace=str(workspace), mode=Mode.WRITE)
    await sandbox.ready()
    launcher = sandbox.process_launcher(Enclosure(Profile.WORKSPACE), session)
    script = "mkdir e; echo '[core] editor = ./x' > e/config; mkdir e/objects e/refs; echo x > .envrc"
    reading, writing = os.pipe()
    command = Command(argv=("/bin/bash", "-c", script), cwd=str(workspace), env={"PATH": os.defpath}, stdin=reading)
    async with asyncio.timeout(60), await launcher.start(command, lambda *_: None) as running:
        ended = await running.wait()
        assert ended.left.refused == (f"{workspace}/.envrc",)
        await reported.wait()
    assert (workspace / "e/config.disabled-by-callgate").exists() and not (workspace / "e/config").exists()
    logging.getLogger("callgate.dispatch.commands.launchers").removeHandler(handler)
    os.close(reading)
    os.close(writing)
