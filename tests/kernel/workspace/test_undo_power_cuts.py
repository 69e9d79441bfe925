"""The power goes during a command, or after it: an undo works, or names what it cannot restore."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from callgate.core.errors import ToolError
from callgate.workspace.undo import open_commands
from tests.kernel.gate.power import PowerDisk
from tests.kernel.workspace.command_worlds import CommandWorld, plant
from tests.needs import needs

pytestmark = [needs("linux", "root", "loop devices", "mkfs.ext4"), pytest.mark.soak]

SCRIPT = """
    for i in $(seq 40); do
        echo $i >> a; rm -f b; echo $i > b; mv -T d e; sed -i s/x/y$i/ e/x; mv -T e d; ln -f a f$i
        mkdir g$i; mv big g$i/big; cp g$i/big big; chmod 6$((i % 8))0 a; rm -r g$i; echo $i
    done
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    disk = PowerDisk(tmp_path)
    try:
        disk.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device can be mounted here: {error.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        while _worlds:
            stop(_worlds.pop())
        for _ in range(50):  # until the processes of the last command have ended
            with suppress(subprocess.CalledProcessError):
                disk.unmount()
                break
            time.sleep(0.1)


_worlds: list[CommandWorld] = []


def stop(world: CommandWorld) -> None:
    world.close()
    world.history.forget()


def world_on(disk: PowerDisk, backend: str = "namespaces") -> CommandWorld:
    world = CommandWorld(disk.path, backend, synced=True)
    _worlds.append(world)
    if world.problems:
        pytest.skip("; ".join(world.problems))
    return world


def restart(disk: PowerDisk, world: CommandWorld, monkeypatch: pytest.MonkeyPatch) -> CommandWorld:
    """Cut the power, and start again."""
    disk.cut()
    stop(world)
    disk.mount_again()
    monkeypatch.setattr(open_commands, "boot_id", lambda: "another start")
    return world_on(disk)


@pytest.mark.timeout(600)
async def test_a_command_whose_result_was_returned_is_undone_after_a_power_cut(
    disk: PowerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        world = world_on(disk)
        for each in world.root.iterdir():
            subprocess.run(["rm", "-rf", str(each)], check=True)
        plant(world.root, random.Random(number))
        before = world.seen()
        os.sync()
        await world.run(SCRIPT, f"c{number}")
        subprocess.run(["sync", "-f", str(world.root)], check=True)  # the changes themselves are the command's
        world = restart(disk, world, monkeypatch)
        await world.undo(f"c{number}")
        assert world.seen() == before
        stop(world)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(12))
async def test_a_power_cut_during_a_command_hides_no_change(
    disk: PowerDisk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Any step, and with the data of the workspace on the disk, but not that of the home."""
    dice = random.Random(number)
    world = world_on(disk)
    plant(world.root, random.Random(number))
    before = world.seen()
    os.sync()
    origin = world.origin("c1")
    directory = world.history.begin_command(origin)
    lines = asyncio.Queue[None]()
    running = await world.start(SCRIPT, directory, lambda stream, data: lines.put_nowait(None))
    for _ in range(dice.randrange(1, 30)):
        await asyncio.wait_for(lines.get(), 20)
    if number % 2:
        for path in [*world.root.glob("*"), *world.root.glob("sub/*")]:
            with suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink():
                    fd = os.open(path, os.O_RDONLY)
                    os.fsync(fd)
                    os.close(fd)
    disk.cut()
    running.stop(0)
    await running.wait()
    world = restart(disk, world, monkeypatch)
    found = world.seen()
    world.history.settle_unfinished()
    if found == before:
        return
    try:
        await world.undo("c1")
    except ToolError as error:
        assert error.reason in ("not_kept", "changed_since")  # noqa: PT017
        named = {os.fsencode(each) for each in (error.detail_fields or {}).get("files", ())}
        await world.undo("c1", others=True)
        after = world.seen()
        different = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        for name in different:
            above = {name, b".", *(name[:at] for at, each in enumerate(name) if each == ord("/"))}
            assert not named.isdisjoint(above) or name in before_links(before, named), name
    else:
        assert world.seen() == before


def before_links(before: dict[bytes, tuple[object, ...]], named: set[bytes]) -> set[bytes]:
    """Other names of the named files."""
    return {name for name, facts in before.items() if isinstance(facts[-1], tuple) and not named.isdisjoint(facts[-1])}
