"""A command over a stand-in for the workspace: what it would change is found, nothing is changed."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.commands import Command
from callgate.core.errors import ToolExecutionError
from callgate.sandbox import machines
from callgate.sandbox.dry_runs import overlays
from callgate.sandbox.dry_runs import overlays as differences
from callgate.sandbox.dry_runs.overlays import Stage, Way
from callgate.sandbox.jails import Guarantee
from callgate.sandbox.plans import Backend, Bubblewrap, CannotGuarantee, Landlock, Seccomp
from callgate.sandbox.processes.broker_client import BrokerProcess
from callgate.sandbox.profiles import SandboxPaths
from tests.kernel.sandbox.test_escapes import needed
from tests.kernel.sandbox.worlds import NOBODY, PYTHON, World, as_user, listening
from tests.needs import needs

pytestmark = needs("linux", PYTHON, "bash")

USERS = [os.getuid()] if os.getuid() else [0, NOBODY]
WAYS: list[Way] = ["overlay", "copy"]


@pytest.fixture(params=USERS, ids=lambda user: "nobody" if user == NOBODY else "us")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    needed({"namespaces", "seccomp"})
    world = World(request.param)
    os.mkdir(scratch(world))
    os.chown(scratch(world), world.user, world.user)
    yield world
    world.remove()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


class Seen:
    """What came of a command, in values that another process can send us."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.code: int = answer["code"]
        self.said: str = answer["said"]
        self.way: str = answer["way"]
        self.error: str | None = answer["error"]
        self.changes = {(kind, path) for kind, path, *_ in answer["changes"]}
        self.modes = {path: (was, becomes) for _, path, was, becomes in answer["changes"]}


def preview(
    world: World,
    script: str,
    way: Way | None = None,
    *,
    meddle: Callable[[Stage], None] = lambda stage: None,
    places: SandboxPaths | None = None,
    only: Callable[[Backend], bool] = lambda backend: True,
) -> Seen:
    """Run a script as the world's user. `meddle` is called before the command starts."""

    async def work() -> dict[str, Any]:
        process = BrokerProcess(PYTHON)
        said = bytearray()
        stage = await overlays.prepare(str(world.workspace), [scratch(world)])
        assert way in (None, stage.way)
        try:
            found = await machines.look(process, bwrap=shutil.which("bwrap"))
            backends = [each for each in found if only(each)]
            meddle(stage)
            command = Command(argv=("/bin/bash", "-c", script), cwd=stage.workspace, env={"PATH": "/usr/bin:/bin"})
            stage, running = await overlays.start(
                stage, process, backends, command, places or world.places, lambda _, data: said.extend(data)
            )
            ended = await running.wait()
            changes, error = [], None
            try:
                changes = [
                    (each.kind, each.path, each.before and each.before.mode, each.after and each.after.mode)
                    for each in differences.find(stage)
                ]
            except ToolExecutionError as refused:
                error = refused.reason
            return {"code": ended.code, "said": said.decode(), "way": stage.way, "changes": changes, "error": error}
        finally:
            process.close()
            overlays.remove(stage)

    with pytest.MonkeyPatch.context() as patch:
        if way == "copy":
            take_no_overlay(patch)
        return Seen(as_user(world.user, lambda: asyncio.run(work())))


def take_no_overlay(patch: pytest.MonkeyPatch) -> None:
    """As on a file system that an overlay cannot lie on."""
    patch.setattr(overlays, "_takes_attributes", lambda directory: False)


def scratch(world: World) -> str:
    return str(world.home / "previews")


def everything(root: Path) -> dict[str, tuple[int, int, int, bytes | str]]:
    found: dict[str, tuple[int, int, int, bytes | str]] = {}
    for path in (root, *root.rglob("*")):
        at = path.lstat()
        content: bytes | str = ""
        if stat.S_ISREG(at.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(at.st_mode):
            content = os.readlink(path)
        found[str(path)] = (at.st_mode, at.st_uid, at.st_mtime_ns, content)
    return found


EVERYTHING = r"""
set -e
echo more >> plain
echo new > created
mkdir -p made/below && echo x > made/below/file
rm gone
rm -r whole
rm -r replaced && mkdir replaced && echo y > replaced/other
rm -r to-file && echo file > to-file
rm to-directory && mkdir to-directory && echo z > to-directory/in
mv moved renamed
mv directory elsewhere
chmod 755 script
chmod 700 closed
ln -sfn elsewhere pointer
ln -s /etc/passwd out
touch touched
cp -p same copy-of-same && mv copy-of-same same
mkfifo pipe
rm -r emptied/*
echo > .envrc
mkdir temporary && rmdir temporary
echo > $'line\nbreak'
"""
CHANGES = {
    ("changed", "plain"),
    ("created", "created"),
    ("created", "made"),
    ("created", "made/below"),
    ("created", "made/below/file"),
    ("deleted", "gone"),
    ("deleted", "whole"),
    ("deleted", "whole/a"),
    ("deleted", "whole/b"),
    ("deleted", "whole/b/c"),
    ("deleted", "replaced/old"),
    ("deleted", "replaced/sub"),
    ("deleted", "replaced/sub/x"),
    ("created", "replaced/other"),
    ("changed", "to-file"),
    ("deleted", "to-file/in"),
    ("changed", "to-directory"),
    ("created", "to-directory/in"),
    ("deleted", "moved"),
    ("created", "renamed"),
    ("deleted", "directory"),
    ("deleted", "directory/in"),
    ("created", "elsewhere"),
    ("created", "elsewhere/in"),
    ("changed", "script"),
    ("changed", "closed"),
    ("changed", "pointer"),
    ("created", "out"),
    ("created", "pipe"),
    ("deleted", "emptied/one"),
    ("created", ".envrc"),
    ("created", "line\nbreak"),
}


def furnish(world: World) -> None:
    root = world.workspace
    for path in (
        "gone",
        "whole/a",
        "whole/b/c",
        "replaced/old",
        "replaced/sub/x",
        "to-file/in",
        "to-directory",
        "moved",
        "directory/in",
        "script",
        "touched",
        "same",
        "emptied/one",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    (root / "closed").mkdir()
    (root / "pointer").symlink_to("plain")
    for path in (root, *root.rglob("*")):
        os.chown(path, world.user, world.user, follow_symlinks=False)


def test_every_kind_of_change_is_found_and_nothing_is_changed(world: World, way: Way) -> None:
    furnish(world)
    before = everything(world.base)
    seen = preview(world, EVERYTHING, way)
    assert (seen.code, seen.said, seen.way, seen.error) == (0, "", way, None)
    assert seen.changes == CHANGES
    assert seen.modes["script"] == (0o100644, 0o100755)
    assert seen.modes["to-file"] == (0o040755, 0o100644)
    after = everything(world.base)
    del before[scratch(world)], after[scratch(world)]  # its date
    assert after == before


def test_a_command_sees_the_workspace_in_its_own_place_and_nothing_of_the_stage(world: World, way: Way) -> None:
    seen = preview(world, f"pwd; cat plain; ls {scratch(world)}/* 2>&1 || echo nothing", way)
    assert seen.said.splitlines()[0] == f"{world.workspace}"
    assert seen.said.splitlines()[1].startswith("plain")
    assert seen.said.splitlines()[-1] == "nothing"
    assert seen.changes == set()


def test_nothing_outside_can_be_written_not_even_a_granted_root(world: World, way: Way) -> None:
    before = world.outside_state()
    script = f"echo x > {world.outside}/file; echo x > link; rm {world.outside}/directory/*; touch links/new; exit 7"
    granted = SandboxPaths(
        workspace=str(world.workspace),
        home=str(world.home),
        callgate_home=str(world.callgate_home),
        write_roots=(str(world.outside),),
    )
    seen = preview(world, script, way, places=granted)
    assert (seen.code, seen.changes, world.outside_state()) == (7, set(), before)


def test_there_is_no_network(world: World, way: Way) -> None:
    with listening(world) as where:
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{where['tcp']}"
        seen = preview(world, connect, way)
    assert seen.code == 1


def test_secrets_stay_hidden(world: World, way: Way) -> None:
    seen = preview(world, f"cat {world.home}/.ssh/id {world.callgate_home}/token key", way)
    assert (seen.code, "private" in seen.said, "token\n" in seen.said) == (1, False, False)


def test_where_no_overlay_can_be_made_a_copy_is(world: World) -> None:
    seen = preview(world, "echo x > new; rm plain", meddle=lambda stage: os.rmdir(stage.work))
    assert (seen.code, seen.way, seen.changes) == (0, "copy", {("created", "new"), ("deleted", "plain")})


def test_a_machine_without_namespaces_is_refused_by_name(world: World) -> None:
    async def work() -> list[str]:
        process = BrokerProcess(PYTHON)
        stage = await overlays.prepare(str(world.workspace), [scratch(world)])
        try:
            backends = (Landlock(7), Seccomp(True))
            command = Command(argv=("true",), cwd=stage.workspace, env={})
            await overlays.start(stage, process, backends, command, world.places, lambda *_: None)
        except CannotGuarantee as refused:
            return sorted(refused.missing)
        finally:
            process.close()
            overlays.remove(stage)
        return []

    missing = as_user(world.user, lambda: asyncio.run(work()))
    assert missing == ["fresh_tmp", "metadata_frozen", "pid_namespace"]


async def test_a_copy_is_not_shown_together_with_what_must_stay_hidden(tmp_path: Path) -> None:
    """Without namespaces a command runs where its copy is."""
    (tmp_path / "ws").mkdir()
    home = tmp_path / "home"
    places = SandboxPaths(workspace=str(tmp_path / "ws"), home="/elsewhere", callgate_home=str(home))
    command = Command(argv=("true",), cwd=str(tmp_path / "ws"), env={})
    stage = await overlays.prepare(str(tmp_path / "ws"), [str(home / "previews")])
    process = BrokerProcess()
    try:
        with pytest.raises(CannotGuarantee) as refused:
            backends = (Seccomp(True), Bubblewrap("/nowhere/bwrap"))
            await overlays.start(stage, process, backends, command, places, lambda *_: None)
    finally:
        process.close()
        overlays.remove(stage)
    assert refused.value.missing == {Guarantee.HIDDEN_MASKED}


def test_a_path_with_every_separator_is_no_trouble(world: World, way: Way) -> None:
    odd = world.base / "a,b:c\\d e=f"
    odd.mkdir()
    world.workspace = world.workspace.rename(odd / "ws")
    os.chown(odd, world.user, world.user)
    before = everything(odd)
    seen = preview(world, "rm plain; echo > new", way)
    assert (seen.code, seen.way, seen.changes) == (0, way, {("deleted", "plain"), ("created", "new")})
    assert everything(odd) == before


def test_what_cannot_be_shown_whole_is_refused_and_still_removed(world: World, way: Way) -> None:
    deep = f'{PYTHON} -c \'import os\nfor _ in range(400): os.mkdir("d"); os.chdir("d")\''
    seen = preview(world, deep, way)
    assert (seen.code, seen.error, os.listdir(scratch(world))) == (0, "preview_unlisted", [])


def test_what_a_command_closed_to_us_is_still_removed(world: World, way: Way) -> None:
    script = "mkdir -p x/y && touch x/y/z && chmod 000 x/y x; touch unread; chmod 000 unread plain"
    seen = preview(world, script, way)
    assert (seen.code, os.listdir(scratch(world))) == (0, [])
    assert seen.error == ("preview_unlisted" if world.user else None)


def test_a_file_that_lost_its_read_bits_is_compared_all_the_same(world: World, way: Way) -> None:
    seen = preview(world, "chmod 000 plain; echo > unread; chmod 000 unread", way)
    assert (seen.changes, seen.modes["plain"]) == (
        {("changed", "plain"), ("created", "unread")},
        (0o100644, 0o100000),
    )


def test_a_device_cannot_be_made_to_look_like_a_deletion(world: World) -> None:
    seen = preview(world, "mknod new c 0 0; mknod .git/config c 0 0", "overlay")
    assert (seen.code, seen.changes) == (1, set())


async def test_a_stage_is_never_made_in_the_workspace_itself(tmp_path: Path) -> None:
    with pytest.raises(ToolExecutionError) as refused:
        await overlays.prepare(str(tmp_path), [str(tmp_path / "in"), str(tmp_path)])
    assert (refused.value.reason, os.listdir(tmp_path)) == ("no_scratch", [])


async def test_a_workspace_with_too_many_bytes_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "large").write_bytes(bytes(1000))
    monkeypatch.setattr(overlays, "MOST_COPIED", 999)
    take_no_overlay(monkeypatch)
    with pytest.raises(ToolExecutionError) as refused:
        await overlays.prepare(str(tmp_path / "ws"), [str(tmp_path / "s")])
    assert (refused.value.reason, os.listdir(tmp_path / "s")) == ("workspace_too_large", [])


async def test_a_copy_has_contents_modes_times_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    (root / "d").mkdir(parents=True)
    (root / "d" / "f").write_bytes(os.urandom(3_000_000))
    (root / "d" / "f").chmod(0o751)
    (root / "l").symlink_to("/etc")
    os.mkfifo(root / "p")
    os.utime(root / "d" / "f", ns=(1, 2))
    (root / "d").chmod(0o500)
    take_no_overlay(monkeypatch)
    stage = await overlays.prepare(str(root), [str(tmp_path / "s")])
    try:
        copied = {path.removeprefix(stage.tree): facts for path, facts in everything(Path(stage.tree)).items()}
        original = {path.removeprefix(str(root)): facts for path, facts in everything(root).items()}
        for path in ("/l", "/p"):  # the times of what has no content mean nothing
            copied[path], original[path] = copied[path][:2], original[path][:2]  # type: ignore[assignment]
        assert copied == original
    finally:
        overlays.remove(stage)


async def test_what_a_dead_process_left_goes_and_what_is_in_use_stays(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    parent = tmp_path / "s"
    used = await overlays.prepare(str(tmp_path / "ws"), [str(parent)])
    left = await overlays.prepare(str(tmp_path / "ws"), [str(parent)])
    os.close(left.lock)  # as the system does when a process ends
    (parent / "not-ours").mkdir()
    last = await overlays.prepare(str(tmp_path / "ws"), [str(parent)])
    names = {os.path.basename(stage.scratch) for stage in (used, last)}
    assert set(os.listdir(parent)) == {*names, "not-ours"}
    overlays.remove(used)
    overlays.remove(last)
    assert os.listdir(parent) == ["not-ours"]
