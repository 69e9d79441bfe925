"""What was answered is on the disk: the file, its name and the audit line, synced off the event loop."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, ToolContext, ToolExecutionError, tool
from callgate.audit.reading import newest_first
from callgate.config import policies
from callgate.core.calls import CallerKind, ToolCall, ToolResult
from callgate.core.sessions import Session
from tests.needs import needs

pytestmark = needs("linux")
WRITERS = 16


class DiskRecorder:
    """What this process does to the disk, in order: (operation, path), in `home` and `ws`."""

    def __init__(self, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = places
        self.done: list[tuple[str, str]] = []
        for name in ("write", "fsync", "rename", "mkdir", "unlink"):
            monkeypatch.setattr(os, name, self._recorded(name, getattr(os, name)))

    def _recorded(self, name: str, real: Any) -> Any:
        def act(what: Any, *more: Any, **named: Any) -> Any:
            result = real(what, *more, **named)
            target = more[0] if name == "rename" else what
            where = named.get("dst_dir_fd", named.get("dir_fd"))
            if (path := self._path(target, where)) is not None:
                self.done.append((name, path))
            return result

        return act

    def _path(self, what: Any, dir_fd: int | None) -> str | None:
        if isinstance(what, int):
            path = os.readlink(f"/proc/self/fd/{what}")
        else:
            directory = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            path = os.path.join(directory, os.fsdecode(what))
        for name, place in self.places.items():
            if path == str(place) or path.startswith(f"{place}/"):
                return re.sub(r"\.callgate-\w+\.tmp", "beside", name + path.removeprefix(str(place)))
        return None

    def within(self, *places: str) -> list[tuple[str, str]]:
        return [each for each in self.done if each[1].startswith(places)]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    path.mkdir()
    return path


@pytest.fixture
def disk(home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> DiskRecorder:
    return DiskRecorder({"home": home, "ws": workspace}, monkeypatch)


async def ok(gate: Gate, tool: str, **arguments: Any) -> ToolResult:
    async with asyncio.timeout(60):
        result = await gate.call(tool, arguments)
    assert result.ok, result.error
    return result


async def test_a_written_file_is_synced_before_it_has_its_name_and_its_name_before_the_answer(
    disk: DiskRecorder, workspace: Path
) -> None:
    async with Gate(workspace, mode="write") as gate:
        await ok(gate, "write_file", path="new/deep/a.txt", content="x")
        assert disk.within("ws") == [
            ("mkdir", "ws/new"),
            ("mkdir", "ws/new/deep"),
            ("write", "ws/new/deep/beside"),
            ("fsync", "ws/new/deep/beside"),
            ("rename", "ws/new/deep/a.txt"),
            ("fsync", "ws/new/deep"),
            ("fsync", "ws"),
            ("fsync", "ws/new"),
        ]
        disk.done.clear()
        await ok(gate, "patch_file", path="new/deep/a.txt", old="x", new="y")
        assert disk.within("ws") == [
            ("write", "ws/new/deep/beside"),
            ("fsync", "ws/new/deep/beside"),
            ("rename", "ws/new/deep/a.txt"),
            ("fsync", "ws/new/deep"),
        ]
        disk.done.clear()
        await ok(gate, "delete_file", path="new/deep/a.txt")
        assert disk.within("ws") == [("unlink", "ws/new/deep/a.txt"), ("fsync", "ws/new/deep")]


async def test_the_way_back_is_on_the_disk_before_the_file_is_touched(disk: DiskRecorder, workspace: Path) -> None:
    (workspace / "a.txt").write_text("old")
    async with Gate(workspace, mode="write") as gate:
        await ok(gate, "write_file", path="a.txt", content="new")
    done = disk.within("home/undo", "ws")
    touched = done.index(("rename", "ws/a.txt"))
    (blob,) = [path for name, path in done[:touched] if name == "fsync" and re.search(r"blobs/\w\w$", path)]
    (line,) = [path for name, path in done if name == "fsync" and path.endswith(".jsonl")]
    for synced in ("home/undo", "home/undo/blobs", blob, line, "home/undo/calls"):
        assert ("fsync", synced) in done[:touched], synced
    kept = next(i for i, (name, path) in enumerate(done) if name == "rename" and path.startswith(f"{blob}/"))
    assert any(name == "fsync" and "blobs/tmp-" in path for name, path in done[:kept])
    assert done.index(("fsync", blob)) > kept


async def test_the_audit_line_of_a_call_with_effects_is_synced_before_the_answer_and_others_after_it(
    disk: DiskRecorder, workspace: Path
) -> None:
    log = "home/audit.jsonl"
    async with Gate(workspace, mode="write") as gate:
        await ok(gate, "list_dir")
        assert [name for name, _ in disk.within(log)] == ["write"]
        await ok(gate, "write_file", path="a.txt", content="new")
        # The line of the read is synced before the store, which follows it, commits anything.
        assert [name for name, _ in disk.within(log)] == ["write", "fsync", "write", "fsync"]
        assert ("fsync", "home") in disk.done  # the file is new
        disk.done.clear()
        await ok(gate, "write_file", path="a.txt", content="newer")
        assert disk.within(log) == [("write", log), ("fsync", log)]
        assert ("fsync", "home") not in disk.done


async def test_files_are_not_synced_where_the_settings_want_them_fast_but_the_line_is(
    disk: DiskRecorder, home: Path, workspace: Path
) -> None:
    (home / "settings.toml").write_text('[durability]\nfiles = "fast"\n')
    async with Gate(workspace, mode="write") as gate:
        await ok(gate, "write_file", path="new/a.txt", content="x")
        await ok(gate, "patch_file", path="new/a.txt", old="x", new="y")
        await ok(gate, "delete_file", path="new/a.txt")
    assert [each for each in disk.within("ws", "home/undo") if each[0] == "fsync"] == []
    assert disk.done.count(("fsync", "home/audit.jsonl")) == 3


@tool(side_effects="write")
async def put_aside(context: ToolContext, fail: bool = False) -> str:
    """Put output aside that is too large to show."""
    path = context.artifact("all.txt")
    assert path is not None
    Path(path).write_text("much")
    if fail:
        raise ToolExecutionError("not done")
    return path


@tool(side_effects="none")
async def look_aside(context: ToolContext) -> str:
    """The same without effects."""
    path = context.artifact("all.txt")
    assert path is not None
    Path(path).write_text("much")
    return path


@pytest.mark.parametrize("fail", [False, True])
async def test_output_that_a_call_with_effects_put_aside_is_synced_with_its_name_before_the_answer(
    disk: DiskRecorder, home: Path, workspace: Path, fail: bool
) -> None:
    async with Gate(workspace, [put_aside], mode="write") as gate:
        async with asyncio.timeout(60):
            result = await gate.call("put_aside", {"fail": fail})
        assert result.ok is not fail
        (path,) = (home / "artifacts").glob("*/*")
        aside = f"home/artifacts/{path.parent.name}"
        synced = [path for name, path in disk.within("home/artifacts", "home") if name == "fsync"]
        assert synced.index(f"{aside}/{path.name}") < synced.index(aside)
        assert {"home/artifacts", "home"} <= set(synced)  # both are new


async def test_output_put_aside_is_not_synced_without_effects_or_where_files_are_fast(
    disk: DiskRecorder, home: Path, workspace: Path
) -> None:
    async with Gate(workspace, [look_aside], mode="write") as gate:
        await ok(gate, "look_aside")
    (home / "settings.toml").write_text('[durability]\nfiles = "fast"\n')
    async with Gate(workspace, [put_aside], mode="write") as gate:
        await ok(gate, "put_aside")
    assert len(list((home / "artifacts").glob("*/*"))) == 2
    assert [path for name, path in disk.within("home/artifacts") if name == "fsync"] == []


class SlowDisk:
    """Every sync waits until it is let go, as on a disk that takes its time."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.free = threading.Event()
        self.waiting = threading.Semaphore(0)
        """Released for each sync that waits."""
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._slow)

    def _slow(self, fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{self.base}/"):
            self.waiting.release()
            assert self.free.wait(60)
        self._fsync(fd)

    async def until_waiting(self, count: int) -> None:
        def wait() -> None:
            for _ in range(count):
                assert self.waiting.acquire(timeout=60)

        await asyncio.to_thread(wait)


@pytest.fixture
def slow(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(workspace, monkeypatch)
    yield disk
    disk.free.set()


def call_in(session: Session, tool: str, **arguments: Any) -> ToolCall:
    return ToolCall(tool=tool, arguments=arguments, session=session, caller=CallerKind.LIBRARY)


async def test_a_read_does_not_wait_for_the_syncs_of_sixteen_writers(
    home: Path, workspace: Path, slow: SlowDisk
) -> None:
    (workspace / "read.txt").write_text("here")
    async with Gate(workspace, mode="write") as gate, asyncio.TaskGroup() as group:
        sessions = [Session(workspace=str(workspace), mode=gate.session.mode) for _ in range(WRITERS)]
        calls = [call_in(each, "write_file", path=f"{n}.txt", content="x") for n, each in enumerate(sessions)]
        writers = [group.create_task(gate.runtime.calls.run_promptly(call)) for call in calls]
        await slow.until_waiting(WRITERS)  # all at once: none waits for the sync of another
        result = await ok(gate, "read_file", path="read.txt")
        assert result.text == "here"
        assert not any(task.done() for task in writers)
        slow.free.set()
        assert [(await task).ok for task in writers] == [True] * WRITERS


async def test_a_stopped_write_is_answered_at_once_and_its_record_tells_what_was_written(
    home: Path, workspace: Path, slow: SlowDisk
) -> None:
    async with Gate(workspace, mode="write") as gate:
        call = asyncio.create_task(gate.call("write_file", {"path": "a.txt", "content": "x" * 10_000}))
        await slow.until_waiting(1)
        stopping = asyncio.create_task(gate.cancel())
        async with asyncio.timeout(60):
            result = await call
        assert result.error is not None and result.error.details == {"stopped": False}
        assert gate.runtime.calls.in_flight() and not (workspace / "a.txt").exists()
        slow.free.set()
        async with asyncio.timeout(60):
            await stopping
        assert (workspace / "a.txt").read_text() == "x" * 10_000
    ((record, _),) = newest_first(str(home / "audit.jsonl"))
    assert (record.call_id, record.error_class) == (result.call_id, "cancelled")
    assert "Created 'a.txt'" in record.result


async def test_writers_of_one_file_follow_each_other_and_lose_nothing(home: Path, workspace: Path) -> None:
    async with Gate(workspace, mode="write") as gate:
        sessions = [Session(workspace=str(workspace), mode=gate.session.mode) for _ in range(WRITERS)]
        (workspace / "a.txt").write_text("".join(f"<{n}>" for n in range(WRITERS)))

        async def patch(n: int) -> None:
            while True:  # refused where another changed the file since it was read
                call = call_in(sessions[n], "patch_file", path="a.txt", old=f"<{n}>", new=f"[{n}]")
                result = await gate.runtime.calls.run_promptly(call)
                if result.ok:
                    return
                assert result.error is not None and result.error.reason in {"changed", "no_match"}, result.error

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for n in range(WRITERS):
                group.create_task(patch(n))
    assert (workspace / "a.txt").read_text() == "".join(f"[{n}]" for n in range(WRITERS))


async def test_settings_that_are_read_anew_for_a_tool_are_not_opened_by_it(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "settings.toml").write_text("")
    monkeypatch.setattr(policies, "LOOK_EVERY_S", -1.0)
    async with Gate(workspace, mode="write") as gate:
        await ok(gate, "write_file", path="a.txt", content="x")
        (home / "settings.toml").write_text('[durability]\nfiles = "fast"\n')
        await ok(gate, "write_file", path="a.txt", content="y")
    assert [each.message for each in caplog.records if each.name == "callgate.raw_open"] == []
