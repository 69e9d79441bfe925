"""Applying a preview: the workspace becomes what the command would have made of it, or nothing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from callgate.core.commands import Command
from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.sandbox import machines
from callgate.sandbox.dry_runs import overlays
from callgate.sandbox.dry_runs import overlays as differences
from callgate.sandbox.processes.broker_client import BrokerProcess
from callgate.sandbox.profiles import SandboxPaths
from callgate.tools.previews import Preview, apply, described, discard
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo.history import History
from callgate.workspace.undo.planning import plan, take
from callgate.workspace.undo.records import Origin
from tests.kernel.sandbox.test_escapes import needed
from tests.needs import needs

pytestmark = needs("linux", "bash")


class World:
    """A workspace with a twin, in which the same command really runs."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "ws"
        for path in ("a", "d/b", "d/c", "d/deep/e", "f", "run", "same"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(f"{path}\n")
        (self.root / "l").symlink_to("a")
        (self.root / "blob").write_bytes(bytes(range(256)))
        self.twin = base / "twin"
        shutil.copytree(self.root, self.twin, symlinks=True)
        self.history = History(str(base / "undo"))
        self.kept: list[Preview] = []

    def files(self, call: str = "c1", guard: object = None) -> WorkspaceFileAPI:
        origin = Origin(session="s", call=call, tool="t", workspace=os.fsencode(self.root))
        return WorkspaceFileAPI(str(self.root), guard=guard, changes=self.history.of(origin))  # type: ignore[arg-type]

    async def preview(self, script: str) -> Preview:
        process = BrokerProcess()
        try:
            stage = await overlays.prepare(str(self.root), [str(self.base / "scratch")])
            places = SandboxPaths(workspace=str(self.root), home="/nowhere", callgate_home=str(self.base / "home"))
            command = Command(argv=("/bin/bash", "-c", script), cwd=stage.workspace, env={"PATH": "/usr/bin:/bin"})
            stage, running = await overlays.start(
                stage, process, await machines.look(process), command, places, lambda *_: None
            )
            made = Preview(stage, await running.wait(), differences.find(stage))
        finally:
            process.close()
        self.kept.append(made)
        return made


@pytest.fixture
def jails() -> None:
    """A machine that can keep a command over its stage."""
    needed({"namespaces", "seccomp"})


@pytest.fixture
async def world(jails: None, tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    for each in world.kept:
        discard(each)
    assert os.listdir(tmp_path / "scratch") == []


def state(root: Path) -> dict[str, tuple[int, bytes | str]]:
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        content: bytes | str = os.readlink(path) if stat.S_ISLNK(mode) else ""
        found[str(path.relative_to(root))] = mode, path.read_bytes() if stat.S_ISREG(mode) else content
    return found


COMMANDS = [
    "true",
    "echo more >> a; echo new > n; printf x > same",
    "mkdir -p x/y/z; echo deep > x/y/z/f; mkdir empty",
    "rm -r d",
    "rm -r d; echo file > d",
    "rm f; mkdir f; echo in > f/g",
    "mv d e; mv a e/a",
    "rm l; echo file > l",
    "ln -sfn f l; ln -s nowhere d/dangling",
    "ln -s ../outside out",
    "rm f; ln -s d f",
    "chmod 755 run; chmod 600 a; echo x > run",
    "head -c 300000 /dev/zero > zeros; printf '\\0\\1' >> blob",
    "touch a; cp a b; mv b a",
    "rm -r d; mkdir -p d/deep; echo back > d/deep/e",
    "echo > $'\\xff\\xfe'; echo > $'new\\nline'; mkdir $'\\xfd'; echo > $'\\xfd/x'",
    "find . -depth -delete; echo only > one",
]


@pytest.mark.parametrize("script", COMMANDS)
async def test_applied_the_workspace_is_what_the_command_makes_of_its_twin(world: World, script: str) -> None:
    made = await world.preview(script)
    assert state(world.root) == state(world.twin)  # not yet
    subprocess.run(["bash", "-c", script], cwd=world.twin, check=False, stderr=subprocess.DEVNULL)
    named = apply(made, world.files())
    assert state(world.root) == state(world.twin)
    assert len(named) == len(made.changes)


LASTING = ("chmod 755", "echo file > d", "../outside")
"""The way back does not know modes, will not take away a file for a directory, and follows links."""


@pytest.mark.parametrize("script", [s for s in COMMANDS if not any(each in s for each in LASTING)])
async def test_what_was_applied_can_be_undone(world: World, script: str) -> None:
    made = await world.preview(script)
    apply(made, world.files())
    files = world.files("undo")
    found = plan(files, world.history, world.history.of_call("c1").changes)
    assert (found.conflicts, found.lost, found.outside, found.swapped) == ([], {}, [], [])
    for step in found.steps:
        take(files, world.history, step)
    assert state(world.root) == state(world.twin)


MEANWHILE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a changed file was changed": ("echo x >> a", lambda ws: (ws / "a").write_text("b\n")),
    "a changed file went": ("echo x >> a", lambda ws: (ws / "a").unlink()),
    "a changed file is a link": ("echo x >> a", lambda ws: ((ws / "a").unlink(), (ws / "a").symlink_to("f"))),
    "its mode was changed": ("echo x >> a", lambda ws: (ws / "a").chmod(0o600)),
    "its date was put back": ("echo x >> a", lambda ws: ((ws / "a").write_text("b\n"), os.utime(ws / "a", ns=(0, 0)))),
    "a deleted file was changed": ("rm a", lambda ws: (ws / "a").write_text("precious")),
    "a created file is there": ("echo > n", lambda ws: (ws / "n").write_text("precious")),
    "a created directory is there": ("mkdir n", lambda ws: (ws / "n").mkdir()),
    "a deleted directory got a file": ("rm -r d", lambda ws: (ws / "d" / "deep" / "n").write_text("precious")),
    "a directory on the way went": ("echo > d/deep/n", lambda ws: shutil.rmtree(ws / "d" / "deep")),
    "a directory on the way is a link": (
        "echo > d/deep/n",
        lambda ws: ((ws / "d" / "deep").rename(ws / "moved"), (ws / "d" / "deep").symlink_to(ws / "moved")),
    ),
    "a link leads elsewhere": ("ln -sfn f l", lambda ws: ((ws / "l").unlink(), (ws / "l").symlink_to("d"))),
}


@pytest.mark.parametrize("what", MEANWHILE)
async def test_nothing_is_applied_if_a_touched_file_changed_meanwhile(world: World, what: str) -> None:
    script, change = MEANWHILE[what]
    made = await world.preview(f"echo also > zz; rm -f same; {script}")
    change(world.root)
    before = state(world.root)
    with pytest.raises(ToolError) as refused:
        apply(made, world.files())
    assert (refused.value.reason, state(world.root)) == ("changed_since", before)
    assert world.history.of_call("c1").changes == []


async def test_a_change_elsewhere_is_no_reason_to_refuse(world: World) -> None:
    made = await world.preview("echo x >> a; rm d/b")
    (world.root / "d" / "other").write_text("mine")
    assert apply(made, world.files()) == ["a", "d/b"]


@pytest.mark.spec("T06")
@pytest.mark.parametrize("path", [".git/hooks/pre-commit", ".envrc", "sub/.vscode/tasks.json"])
async def test_a_protected_path_refuses_the_whole(world: World, path: str) -> None:
    made = await world.preview(f"echo x >> a; mkdir -p $(dirname {path}); echo evil > {path}")
    with pytest.raises(ToolPermissionDenied) as refused:
        apply(made, world.files())
    assert (refused.value.reason, state(world.root)) == ("protected_path", state(world.twin))


async def test_a_guard_that_refuses_one_refuses_the_whole(world: World) -> None:
    def guard(real: str, access: str) -> None:
        if access == "write" and real.endswith("/zz"):
            raise ToolPermissionDenied("no", reason="policy_deny")

    made = await world.preview("echo x >> a; echo > zz")
    with pytest.raises(ToolPermissionDenied) as refused:
        apply(made, world.files(guard=guard))
    assert (refused.value.reason, state(world.root)) == ("policy_deny", state(world.twin))


@pytest.mark.parametrize("script", ["mkfifo pipe", "chmod 700 d"])
async def test_what_the_file_api_cannot_do_refuses_the_whole(world: World, script: str) -> None:
    made = await world.preview(f"echo x >> a; {script}")
    with pytest.raises(ToolError) as refused:
        apply(made, world.files())
    assert (refused.value.reason, state(world.root)) == ("unfit_change", state(world.twin))


async def test_another_workspace_is_a_mistake_of_ours(world: World) -> None:
    made = await world.preview("echo x >> a")
    with pytest.raises(ValueError):
        apply(made, WorkspaceFileAPI(str(world.twin)))


async def test_a_description_has_a_diff_for_text_and_words_for_the_rest(world: World) -> None:
    made = await world.preview(
        "echo x >> a; rm f; chmod 755 run; ln -sfn f l; printf '\\0' > blob; mkdir n; echo > s; chmod 755 s"
    )
    assert described(made, world.files()) == "\n".join(
        [
            "--- a",
            "+++ a",
            "@@ -1 +1,2 @@",
            " a",
            "+x",
            "blob: file, 256 bytes, mode 644 -> file, 1 bytes, mode 644",
            "--- f",
            "+++ f",
            "@@ -1 +0,0 @@",
            "-f",
            "[f goes]",
            "l: link to 'a' -> link to 'f'",
            "n: nothing -> directory, mode 755",
            "run: file, 4 bytes, mode 644 -> file, 4 bytes, mode 755",
            "--- /dev/null",
            "+++ s",
            "@@ -0,0 +1 @@",
            "+",
            "s: nothing -> file, 1 bytes, mode 755",
        ]
    )


async def test_a_description_shows_nothing_of_a_file_that_may_not_be_read(world: World) -> None:
    def guard(real: str, access: str) -> None:
        if real.endswith(("/a", "/n")):
            raise ToolPermissionDenied("no", reason="policy_deny")

    made = await world.preview("echo x >> a; cp a n")
    assert described(made, world.files(guard=guard)).splitlines() == [
        "a: file, 2 bytes, mode 644 -> file, 4 bytes, mode 644",
        "n: nothing -> file, 4 bytes, mode 644",
    ]


async def test_a_digest_is_bound_to_contents_and_modes(world: World) -> None:
    scripts = ["echo 1 > n", "echo 2 > n", "echo 1 > m", "echo 1 > n; chmod 755 n", "rm a", "ln -s 1 n", "ln -s 2 n"]
    digests = {(await world.preview(each)).digest() for each in scripts}
    again = (await world.preview(scripts[0])).digest()
    assert (len(digests), again in digests) == (len(scripts), True)
