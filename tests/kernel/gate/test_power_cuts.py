"""The power goes while calls write files: whatever was acknowledged is there, whole."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.audit.reading import newest_first
from callgate.core.events import COMPLETED
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.gate.power import Acknowledged, PowerDisk, text, write_until_cut
from tests.kernel.storage.processes import all_events
from tests.needs import needs

pytestmark = [needs("linux", "root", "loop devices", "mkfs.ext4"), pytest.mark.soak]
CUTS = 12


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
        disk.unmount()


def lost_files(disk: PowerDisk, acknowledged: list[Acknowledged]) -> list[str]:
    """Paths that do not hold what was acknowledged last, or the write that came after it."""
    lost = []
    latest = {each.path: each for each in acknowledged}
    for path, (_, _, writer, turn) in latest.items():
        later = {turn} if "/new/" in path else {turn, turn + 1}
        patched = path.endswith("patched.txt")
        expected = [f"<{each}>" if patched else text(writer, each) for each in later]
        try:
            if (disk.path / "ws" / path).read_text() not in expected:
                lost.append(path)
        except FileNotFoundError:
            lost.append(path)
    return lost


def lost_lines(home: Path, acknowledged: list[Acknowledged]) -> set[str]:
    """Acknowledged calls without an audit line."""
    return {each.call for each in acknowledged} - {line.call_id for line, _ in newest_first(str(home / "audit.jsonl"))}


def callgate(home: Path, *words: str) -> str:
    """What a command prints, in this home."""
    environment = {**os.environ, "CALLGATE_HOME": str(home)}
    ran = subprocess.run(
        [sys.executable, "-m", "callgate", *words],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
    return ran.stdout


async def ended_calls(home: Path) -> set[str]:
    async with await SqliteStore.open(str(home)) as store:
        events = await all_events(store)
    return {event.payload["call_id"] for each in events.values() for event in each if event.type == COMPLETED}


@pytest.mark.timeout(600)
async def test_whatever_was_acknowledged_outlives_the_power(disk: PowerDisk) -> None:
    home, dice = disk.path / "home", random.Random()
    everything: list[Acknowledged] = []
    for cut in range(CUTS):
        everything += write_until_cut(disk, cut, dice)
        disk.mount_again()
        assert lost_files(disk, everything) == []
        callgate(home, "sessions", "list")  # closes what the cut left open
        verified = callgate(home, "audit", "verify")  # which also names the remains of a cut line
        assert re.search("^intact: ", verified, re.MULTILINE)
        assert lost_lines(home, everything) == set()
        assert {each.call for each in everything} <= await ended_calls(home)
        assert "damaged" not in callgate(home, "undo")


@pytest.mark.timeout(600)
def test_this_test_sees_files_and_lines_that_were_not_synced(disk: PowerDisk) -> None:
    dice = random.Random()
    files: list[str] = []
    lines: set[str] = set()
    for cut in range(CUTS):
        acknowledged = write_until_cut(disk, cut, dice, unsynced=True)
        disk.mount_again()
        files += lost_files(disk, acknowledged)
        lines |= lost_lines(disk.path / "home", acknowledged)
        if files and lines:
            return
    pytest.fail(f"after {CUTS} cuts: {len(files)} files, {len(lines)} lines lost")
