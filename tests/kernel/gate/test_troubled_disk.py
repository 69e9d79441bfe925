"""A home on a disk in trouble: effects are refused with the reason, and reading goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, tool
from callgate.audit.log import AuditLog
from callgate.audit.reading import newest_first
from callgate.core.errors import ToolErrorClass
from callgate.sessions.recovery import recover
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.storage.disks import Disk
from tests.needs import needs

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EMFILE": errno.EMFILE}
REFUSALS = {"store_unwritable", "audit_unwritable"}
_QUICK = [*range(1, 60), *range(60, 201, 5)]


class Shared:
    """One count for what SQLite and what Python do to the disk."""

    def __init__(self, disk: Disk, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = disk
        self.home = home
        for name in ("open", "write", "fsync", "fdatasync", "rename", "replace"):
            monkeypatch.setattr(os, name, self._faulty(getattr(os, name), name))

    def _faulty(self, real: Any, name: str) -> Any:
        operation = "open" if name == "open" else "write"

        def call(what: Any, *more: Any, **named: Any) -> Any:
            if self._ours(what):
                try:
                    self.disk.meet(operation)
                except Exception as error:
                    assert self.disk.fault is not None
                    raise OSError(ERRORS[self.disk.fault], "injected", str(what)) from error
            return real(what, *more, **named)

        return call

    def _ours(self, what: Any) -> bool:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        return str(path).startswith(self.home)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk(for_all=True)
    yield disk
    disk.unregister()


@pytest.mark.spec("T48")
@pytest.mark.parametrize("fault", list(ERRORS))
@pytest.mark.parametrize(
    "numbers", [_QUICK, pytest.param(range(1, 2_001, 4), marks=pytest.mark.soak)], ids=["few", "many"]
)
@pytest.mark.timeout(1700)
async def test_when_the_nth_operation_fails_no_call_is_half_done(
    tmp_path: Path, disk: Disk, fault: str, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Shared(disk, "", monkeypatch)
    hit = 0
    for nth in numbers:
        shared.home = str(tmp_path / f"home{nth}")
        disk.done = disk.failed = 0
        disk.fail(fault, nth)
        async with asyncio.timeout(60):
            await _live(tmp_path, shared.home, disk)
        hit += disk.failed
        disk.heal()
        await _all_is_closed(shared.home)
    assert hit, "no operation was met: the test proves nothing"


async def _live(ws: Path, home: str, disk: Disk) -> None:
    ran: list[str] = []

    @tool(side_effects="write")
    async def put(n: int) -> str:
        """Have an effect."""
        ran.append(str(n))
        return "done"

    @tool(side_effects="none")
    async def think(n: int) -> int:
        """Have none."""
        return n

    async def yes(question: Any) -> bool:
        return True

    try:
        gate = Gate(workspace=ws, tools=[put, think], home=home, confirm=yes)
    except OSError:  # a home that cannot be made is said at once
        return
    async with gate:
        for n in range(3):
            result = await gate.call("put", {"n": n})
            if result.ok:
                assert ran[-1:] == [str(n)]
            else:
                assert result.error is not None
                assert result.error.error_class is ToolErrorClass.PERMISSION_DENIED
                assert result.error.reason in REFUSALS
                assert str(n) not in ran
            assert (await gate.call("think", {"n": n})).value == n
    assert len(ran) == len(set(ran))


async def _all_is_closed(home: str) -> None:
    """The next process finds nothing open that it cannot close."""
    log = os.path.join(home, "audit.jsonl")
    audit = AuditLog(log)
    async with await SqliteStore.open(home) as store:
        await recover(store, audit, os.path.join(home, "run"))
        assert [call.id for call in await store.open_calls()] == []
        assert [*await store.outbox(), *await store.cut_sessions()] == []
    audit.close()
    lines = Counter(line.call_id for line, _ in newest_first(log))
    assert set(lines.values()) <= {1}, "a call has two lines"


@pytest.fixture
def disk_of_its_own(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("needs mount: it is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@needs("root", "mount")
@pytest.mark.parametrize("how", ["read-only", "full"])
async def test_calls_without_effects_run_on_a_home_that_takes_nothing(
    tmp_path: Path, how: str, disk_of_its_own: Path
) -> None:
    home = disk_of_its_own / "home"
    home.mkdir(mode=0o700)
    if how == "full":
        (disk_of_its_own / "filler").write_bytes(bytes(64 * 1024 - 4096))
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(disk_of_its_own)], check=True)

    @tool(side_effects="write")
    async def put() -> str:
        """Have an effect."""
        raise AssertionError("it ran")

    @tool(side_effects="none")
    async def think() -> int:
        """Have none."""
        return 7

    async with Gate(workspace=tmp_path, tools=[put, think], home=home, mode="write") as gate:
        assert (await gate.call("think")).value == 7
        refused = await gate.call("put")
        assert refused.error is not None
        assert refused.error.error_class is ToolErrorClass.PERMISSION_DENIED
        assert refused.error.reason in REFUSALS
        assert (await gate.call("think")).value == 7
