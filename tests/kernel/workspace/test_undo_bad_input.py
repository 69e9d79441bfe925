"""Undo of commands on disks, files and programs that make it difficult: nothing is lost in silence."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from callgate.core.commands import Running, Stream
from callgate.core.errors import ToolError
from callgate.workspace.undo import other_disks
from callgate.workspace.undo.history import History
from callgate.workspace.undo.pruning import Bounds
from tests.kernel.workspace.command_worlds import BACKENDS, EARLIER, CommandWorld, plant
from tests.kernel.workspace.small_disks import fill, small_disk
from tests.kernel.workspace.test_command_undo import sequence
from tests.needs import needs

pytestmark = needs("linux")


@contextmanager
def opened(base: Path, backend: str) -> Iterator[CommandWorld]:
    world = CommandWorld(base, backend)
    try:
        if world.problems:
            pytest.skip("; ".join(world.problems))
        yield world
    finally:
        world.close()


@pytest.fixture(params=sorted(BACKENDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandWorld]:
    with opened(tmp_path, request.param) as made:
        yield made


@pytest.fixture(params=sorted(BACKENDS))
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandWorld]:
    """A world whose home is on another, small file system."""
    with small_disk(tmp_path / "home", "size=8m"), opened(tmp_path, request.param) as made:
        yield made
        remove_links(made)


def disk_of(world: CommandWorld) -> Path:
    return world.root.parent / "home"


# --- disks ------------------------------------------------------------------------------------------


@needs("root")
@pytest.mark.parametrize("seed", range(4))
async def test_a_store_on_another_file_system_undoes_exactly(elsewhere: CommandWorld, seed: int) -> None:
    await sequence(elsewhere, 7_000 + seed)


@needs("root")
@pytest.mark.parametrize("seed", range(8))
async def test_a_workspace_that_is_a_disk_of_its_own_is_undone_exactly(tmp_path: Path, seed: int) -> None:
    """No directory outside of the workspace can contain hard links, so removed files are copied."""
    with small_disk(tmp_path / "ws", "size=64m"), opened(tmp_path, sorted(BACKENDS)[seed % 2]) as world:
        (world.root / "lost+found").mkdir()
        await sequence(world, 7_100 + seed)


@needs("root")
async def test_a_mode_is_restored_after_the_undo_of_a_copied_file(tmp_path: Path) -> None:
    """The restored file has another inode than the one whose mode changed."""
    with small_disk(tmp_path / "ws", "size=64m"), opened(tmp_path, "namespaces") as world:
        (world.root / "a").write_text("a")
        (world.root / "a").chmod(0o600)
        before = world.seen()
        await world.run("chmod 644 a", "c1")
        await world.run("cp -p a b; rm a; mv b a", "c2")
        await world.undo("c2")
        await world.undo("c1")
        assert world.seen() == before


@needs("root")
async def test_hard_links_of_another_file_system_are_next_to_the_workspace(elsewhere: CommandWorld) -> None:
    world = elsewhere
    (world.root / "large").write_bytes(b"x" * 20_000_000)  # more than may be copied
    facts = (world.root / "large").stat()
    _, found, _ = await world.run("rm large")
    assert found.unkept == []
    await world.undo()
    assert (world.root / "large").stat().st_ino == facts.st_ino
    before = links_of(world)
    world.history.bounds = Bounds(max_age_s=0)
    History(str(disk_of(world) / ".callgate/undo"), Bounds(max_age_s=0), synced=False).prune()
    assert before
    assert links_of(world) == []


def remove_links(world: CommandWorld) -> None:
    for each in (disk_of(world) / ".callgate/undo").glob("*/*"):
        other_disks.remove(str(each))


def links_of(world: CommandWorld) -> list[Path]:
    """Directories outside of the home with the files of commands of this world."""
    return [Path(os.readlink(each)) for each in (disk_of(world) / ".callgate/undo/files").glob("*/links")]


async def waiting(world: CommandWorld, script: str, call: str = "c1") -> tuple[Running, str, list[bytes]]:
    """Start a script that waits for a line in the pipe `go` before it changes anything."""
    origin = world.origin(call)
    directory = world.history.begin_command(origin)
    written: list[bytes] = []
    started = asyncio.Event()

    def heard(stream: Stream, data: bytes) -> None:
        written.append(data)
        started.set()

    os.mkfifo(world.root / "go")
    running = await world.start(f"echo .; read -t 20 line < go; {script}", directory, heard)
    await asyncio.wait_for(started.wait(), 20)
    return running, directory, written


def go(world: CommandWorld) -> None:
    with (world.root / "go").open("w") as pipe:
        pipe.write("go\n")


@needs("root")
async def test_a_full_disk_refuses_the_change_that_it_cannot_store(elsewhere: CommandWorld) -> None:
    world = elsewhere
    (world.root / "large").write_bytes(b"x" * 200_000)
    (world.root / "other").write_text("other")
    running, directory, written = await waiting(world, "echo more >> large; mv other moved; ls")
    fill(disk_of(world))
    go(world)
    ended = await running.wait()
    said = b"".join(written).decode()
    assert (ended.code, "large: No space left on device" in said) == (0, True), said
    (disk_of(world) / "filler").unlink()
    world.history.settle(directory, world.origin("c1"))
    assert (world.root / "large").stat().st_size == 200_000
    await world.undo()
    assert (world.root / "other").read_text() == "other"


@needs("root")
async def test_a_full_disk_permits_changes_and_names_them_if_the_settings_say_so(elsewhere: CommandWorld) -> None:
    world = elsewhere
    world.history.bounds = Bounds(tolerant=True)
    (world.root / "large").write_bytes(b"x" * 200_000)
    running, directory, _ = await waiting(world, "mkdir d; echo more >> large")
    with (disk_of(world) / "spare").open("wb") as file:
        file.write(b"x" * 8192)
    fill(disk_of(world))
    (disk_of(world) / "spare").unlink()
    go(world)
    await running.wait()
    (disk_of(world) / "filler").unlink()
    found = world.history.settle(directory, world.origin("c1"))
    assert found.unkept == [(str(world.root / "large"), "No space left on device")]
    assert (world.root / "large").stat().st_size == 200_005
    await world.undo(others=True)
    assert not (world.root / "d").exists()


async def test_a_file_that_cannot_be_stored_cannot_be_changed_if_the_settings_say_so(world: CommandWorld) -> None:
    world.history.bounds = Bounds(strict=True, max_file=10)
    (world.root / "large").write_text("more than ten bytes")
    _, found, said = await world.run("echo more >> large")
    assert "quota exceeded" in said
    assert found.changes == []
    assert (world.root / "large").read_text() == "more than ten bytes"


async def test_files_in_excluded_directories_are_named(world: CommandWorld) -> None:
    world.history.bounds = Bounds(excluded=("node_modules",))
    (world.root / "node_modules").mkdir()
    for name in ("node_modules/a", "node_modules/b", "c"):
        (world.root / name).write_text("old")
    _, found, _ = await world.run("echo new > c; echo new > node_modules/a; rm node_modules/b; echo > node_modules/d")
    why = "in a directory that `[undo] exclude` names"
    assert sorted(found.unkept) == [(str(world.root / f"node_modules/{name}"), why) for name in "ab"]
    await world.undo(others=True)
    assert (world.root / "c").read_text() == "old"
    assert sorted(os.listdir(world.root / "node_modules")) == ["a"]


@needs("root")
async def test_a_disk_that_is_full_for_a_while_leaves_a_readable_log(elsewhere: CommandWorld) -> None:
    world = elsewhere
    for number in range(400):
        (world.root / f"file{number:03}").write_text("old")
    rename = "for f in file*; do mv $f new-$f; done"
    running, directory, written = await waiting(world, f"{rename}; echo again; read -t 20 line < go; {rename}")
    before = world.seen()
    spare = disk_of(world) / "spare"
    spare.write_bytes(b"x" * 16384)
    fill(disk_of(world))
    spare.unlink()
    go(world)
    while b"again\n" not in b"".join(written):
        await asyncio.sleep(0.01)
    assert b"No space left" in b"".join(written)
    (disk_of(world) / "filler").unlink()
    go(world)
    await running.wait()
    world.history.settle(directory, world.origin("c1"))
    assert not any(name.startswith(b"file") for name in world.seen())
    await world.undo()
    assert world.seen() == before


@needs("root")
async def test_changes_that_cannot_be_listed_yet_are_listed_later(elsewhere: CommandWorld) -> None:
    world = elsewhere
    (world.root / "a").write_text("a")
    before = world.seen()
    origin = world.origin("c1")
    directory = world.history.begin_command(origin)
    running = await world.start("rm a; mkdir d", directory, lambda stream, data: None)
    await running.wait()
    fill(disk_of(world))
    with pytest.raises(OSError, match="No space left"):
        world.history.settle(directory, origin)
    (disk_of(world) / "filler").unlink()
    world.history.settle_unfinished()
    await world.undo()
    assert world.seen() == before


@needs("root")
async def test_an_undo_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "ws", "size=2m"), opened(tmp_path, "namespaces") as world:
        (world.root / "large").write_bytes(random.Random(1).randbytes(600_000))
        (world.root / "small").write_text("small")
        await world.run("rm large; echo changed > small; mkdir d")
        fill(world.root)
        seen = world.seen()
        with pytest.raises(ToolError, match="No space left"):
            await world.undo()
        assert world.seen() == seen
        (world.root / "filler").unlink()
        await world.undo()
        assert sorted(world.seen()) == [b"large", b"small"]
        assert (world.root / "large").read_bytes() == random.Random(1).randbytes(600_000)


@needs("root")
async def test_a_disk_without_inodes_refuses_the_change(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home", "size=8m,nr_inodes=124"), opened(tmp_path, "namespaces") as world:
        for number in range(80):
            (world.root / f"f{number}").write_text("old")
        running, directory, written = await waiting(world, "for f in f*; do echo new > $f; done")
        reserve = disk_of(world) / "reserve"
        reserve.mkdir()
        for number in range(80):
            (reserve / str(number)).touch()
        go(world)
        await running.wait()
        assert b"No space left" in b"".join(written)
        shutil.rmtree(reserve)
        found = world.history.settle(directory, world.origin("c1"))
        assert 0 < len(found.changes) < 80
        (world.root / "go").unlink()
        await world.undo()
        assert [each.read_text() for each in world.root.iterdir()] == ["old"] * 80
        remove_links(world)


# --- files ------------------------------------------------------------------------------------------


@needs("root")
async def test_an_unreadable_file_of_another_user_is_named(world: CommandWorld) -> None:
    """Without its content it cannot be copied, and the kernel refuses a hard link to it."""
    (world.root / "a").write_text("a")
    os.chmod(world.root / "a", 0)
    os.chown(world.root / "a", 12345, 12345)
    _, found, _ = await world.run("rm -f a; mkdir d")
    assert found.unkept == [(str(world.root / "a"), "Permission denied")]
    with pytest.raises(ToolError, match=r"'a' is not stored \(Permission denied\); nothing was undone"):
        await world.undo()
    await world.undo(others=True)
    assert list(world.root.iterdir()) == []


async def test_an_unreadable_file_of_the_same_user_is_restored(world: CommandWorld) -> None:
    (world.root / "a").write_text("a")
    os.chmod(world.root / "a", 0)
    before = stat.S_IMODE((world.root / "a").stat().st_mode)
    await world.run("rm -f a; echo new > a")
    await world.undo()
    assert stat.S_IMODE((world.root / "a").stat().st_mode) == before
    os.chmod(world.root / "a", 0o600)
    assert (world.root / "a").read_text() == "a"


async def test_a_socket_is_named_and_a_pipe_is_restored(world: CommandWorld) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(world.root / "socket"))
    os.mkfifo(world.root / "pipe", 0o640)
    _, found, _ = await world.run("rm socket pipe; mkdir d")
    assert found.unkept == [(str(world.root / "socket"), "sockets and devices are not stored")]
    with pytest.raises(ToolError, match="'socket' is not stored"):
        await world.undo()
    await world.undo(others=True)
    assert [each.name for each in world.root.iterdir()] == ["pipe"]
    facts = (world.root / "pipe").stat()
    assert stat.S_ISFIFO(facts.st_mode)
    assert stat.S_IMODE(facts.st_mode) == 0o640


@needs("root")
async def test_a_removed_device_is_named(world: CommandWorld) -> None:
    os.mknod(world.root / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    _, found, _ = await world.run("rm -f null; mkdir d")
    assert found.unkept == [(str(world.root / "null"), "sockets and devices are not stored")]


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.write(b"first")
        file.seek(size - 4)
        file.write(b"last")


async def test_a_removed_sparse_file_of_20_gb_is_restored(world: CommandWorld) -> None:
    large = world.root / "large"
    sparse(large, 20_000_000_000)
    began = time.monotonic()
    await world.run("rm large")
    await world.undo()
    assert time.monotonic() - began < 10
    assert large.stat().st_size == 20_000_000_000
    assert large.stat().st_blocks < 1000


async def test_a_changed_sparse_file_of_20_gb_is_restored_with_its_holes(world: CommandWorld) -> None:
    large = world.root / "large"
    sparse(large, 20_000_000_000)
    _, found, _ = await world.run("echo more >> large; truncate -s 5 large; echo new > small")
    assert found.unkept == []
    await world.undo()
    assert large.stat().st_size == 20_000_000_000
    assert large.stat().st_blocks < 1000
    with large.open("rb") as file:
        first = file.read(5)
        file.seek(-4, 2)
        assert (first, file.read()) == (b"first", b"last")


@needs("root")
async def test_a_sparse_file_is_stored_sparse_on_another_file_system(elsewhere: CommandWorld) -> None:
    world = elsewhere
    large = world.root / "large"
    sparse(large, 20_000_000_000)
    _, found, _ = await world.run("rm large")
    assert found.unkept == []
    await world.undo()
    assert (large.stat().st_size, large.stat().st_blocks < 1000) == (20_000_000_000, True)


async def test_names_that_are_not_utf_8_are_named_and_restored(world: CommandWorld) -> None:
    world.history.bounds = Bounds(max_file=10)
    name = os.fsencode(world.root) + b"/\xff\xfe\n\x1b"
    with open(name, "wb") as file:
        file.write(b"x" * 20)
    _, found, _ = await world.run("echo more >> $'\\xff\\xfe\\n\\x1b'; mv $'\\xff\\xfe\\n\\x1b' $'\\xfd'")
    assert [os.fsencode(path) for path, _ in found.unkept] == [name]
    with pytest.raises(ToolError) as refused:
        await world.undo()
    assert "\x1b" not in str(refused.value)


PATHS = """
import os, sys
here = os.open(".", os.O_RDONLY)
read = os.open("a", os.O_RDONLY)
link = os.open("b", os.O_PATH)
for path in (f"/dev/fd/{read}", f"/proc/self/fd/{link}", f"/proc/{os.getpid()}/fd/{here}/c", "/proc/self/cwd/d"):
    with open(path, "w") as file:
        file.write("new")
os.truncate("/proc/self/root" + os.path.realpath("e"), 1)
os.unlink(f"/proc/thread-self/fd/{here}/f")
os.rename(f"/dev/fd/{here}/g", "/proc/self/cwd/h")
os.chmod(f"/proc/self/fd/{read}", 0o600)
"""


async def test_paths_through_descriptors_hide_no_change(world: CommandWorld) -> None:
    for name in "abcdefg":
        (world.root / name).write_text("old")
    before = world.seen()
    ended, found, said = await world.run(f"python3 -c '{PATHS}'")
    assert ended.code == 0, said
    assert {each.real[-1] for each in found.changes} == set("abcdefgh")
    await world.undo()
    assert world.seen() == before


# --- programs beside the command --------------------------------------------------------------------


async def test_an_editor_and_a_database_beside_the_command_lose_nothing(world: CommandWorld) -> None:
    (world.root / "edited").write_text("one\n")
    (world.root / "by-command").write_text("old")
    database = sqlite3.connect(world.root / "data.db", isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("create table t(x)")
    origin = world.origin("c1")
    directory = world.history.begin_command(origin)
    started = asyncio.Event()
    script = "echo new > by-command; echo .; for i in $(seq 200); do echo $i > log; done"
    running = await world.start(script, directory, lambda stream, data: started.set())
    await started.wait()
    for number in range(50):
        database.execute("insert into t values(?)", (number,))
        beside = world.root / ".edited.swp"
        beside.write_text(f"{number}\n")
        beside.replace(world.root / "edited")
    await running.wait()
    world.history.settle(directory, origin)
    database.execute("insert into t values(50)")
    await world.undo()
    assert (world.root / "by-command").read_text() == "old"
    assert not (world.root / "log").exists()
    assert (world.root / "edited").read_text() == "49\n"
    assert database.execute("select count(*) from t").fetchone() == (51,)
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    database.close()


async def test_an_undo_leaves_a_file_that_a_running_command_changes(world: CommandWorld) -> None:
    for name in "abc":
        (world.root / name).write_text("old")
    await world.run("echo 1 > a; echo 1 > b", "c1")
    origin = world.origin("c2")
    directory = world.history.begin_command(origin)
    started = asyncio.Event()
    script = "exec 5>>a; echo 2 > c; echo .; read -t 20 line < go; echo 2 >&5"
    os.mkfifo(world.root / "go")
    running = await world.start(script, directory, lambda stream, data: started.set())
    await started.wait()
    with pytest.raises(ToolError, match="'a' is being changed by the running call c2"):
        await world.undo("c1")
    await world.undo("c1", others=True)
    assert [(world.root / name).read_text() for name in "ab"] == ["1\n", "old"]
    go(world)
    await running.wait()
    world.history.settle(directory, origin)
    assert (world.root / "a").read_text() == "1\n2\n"
    await world.undo("c2")
    assert [(world.root / name).read_text() for name in "abc"] == ["1\n", "old", "old"]


async def test_two_sessions_in_one_workspace_are_undone_apart(world: CommandWorld) -> None:
    for name in ("a", "b", "both"):
        (world.root / name).write_text("old")
    await asyncio.gather(
        world.run("for i in $(seq 50); do echo $i > a; mkdir -p one/$i; done", "c1", session="s1"),
        world.run("for i in $(seq 50); do echo $i > b; mkdir -p two/$i; done", "c2", session="s2"),
    )
    await world.run("echo 1 >> both", "c3", session="s1")
    await world.run("echo 2 >> both", "c4", session="s2")
    with pytest.raises(ToolError) as refused:
        await world.undo(session="s1")
    assert refused.value.reason == "changed_since"
    assert (world.root / "both").read_text() == "old1\n2\n"
    await world.undo(session="s2")
    await world.undo(session="s1")
    assert sorted((each.name, each.read_text()) for each in world.root.iterdir()) == [
        ("a", "old"),
        ("b", "old"),
        ("both", "old"),
    ]


async def test_two_commands_at_once_on_the_same_files_are_undone_together(world: CommandWorld) -> None:
    plant(world.root, random.Random(3))
    before = world.seen()
    script = (
        "for i in $(seq 30); do echo {0} >> a; rm -f b; echo {0} > b; mv -T d e; mv -T e d; rm -rf n; mkdir n; done"
    )
    await asyncio.gather(world.run(script.format(1), "c1"), world.run(script.format(2), "c2"))
    try:
        await world.undo(session="s", to_turn=EARLIER)
    except ToolError as error:
        assert error.reason in ("changed_since", "not_kept")  # noqa: PT017  # and nothing was touched
        return
    assert world.seen() == before


async def test_a_deleted_workspace_is_named(world: CommandWorld) -> None:
    (world.root / "a").write_text("a")
    await world.run("rm a")
    shutil.rmtree(world.root)
    with pytest.raises(ToolError, match="does not exist"):
        await world.undo()
    world.root.mkdir()
    await world.undo()
    assert (world.root / "a").read_text() == "a"


# --- sizes ------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_a_million_files_cost_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, "namespaces") as world:
        for number in range(1_000):
            directory = world.root / f"d{number}"
            directory.mkdir()
            for each in range(1_000):
                os.close(os.open(directory / f"f{each}", os.O_CREAT | os.O_WRONLY, 0o644))
        await world.run("true", "c0")
        began = time.monotonic()
        await world.run("for i in 1 2 3 4 5 6 7 8 9 10; do echo new > d$i/f1; done", "c1")
        await world.undo("c1")
        assert time.monotonic() - began < 5
        assert (world.root / "d1/f1").read_bytes() == b""
        await world.run("rm -rf d1?", "c2")
        assert len(os.listdir(world.root)) == 990
        await world.undo("c2")
        assert sum(len(os.listdir(each)) for each in world.root.iterdir()) == 1_000_000
