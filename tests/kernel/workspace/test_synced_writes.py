"""While a write waits for the disk, nobody else's change is lost or missed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from callgate.core.errors import ToolExecutionError
from callgate.core.local.disk import BackgroundSync, sync_file
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.noting import PathLocks
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Origin
from tests.needs import needs

LIMIT_S = 60


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(str(tmp_path / "undo"))


@pytest.fixture
def files(tmp_path: Path, history: History) -> WorkspaceFileAPI:
    (tmp_path / "ws").mkdir()
    origin = Origin(session="s", call="c", tool="t", workspace=b"/")
    return WorkspaceFileAPI(str(tmp_path / "ws"), changes=history.of(origin))


@pytest.fixture
def meddling(tmp_path: Path, files: WorkspaceFileAPI, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that somebody else changes at the last moment: the change is noted, and all that a write still
    waits for is the sync of its content."""
    path = tmp_path / "ws" / "a.txt"
    path.write_text("old")
    waiting, fsync, wait, changes = threading.Event(), os.fsync, BackgroundSync.wait, ["theirs"]

    def meddle(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".tmp") and changes:
            assert waiting.wait(LIMIT_S)
            path.write_text(changes.pop())
        fsync(fd)

    def announce(sync: BackgroundSync) -> None:
        if getattr(sync._work, "func", None) is sync_file:
            waiting.set()
        wait(sync)

    monkeypatch.setattr(BackgroundSync, "wait", announce)
    monkeypatch.setattr(os, "fsync", meddle)
    return path


@needs("linux")
def test_a_file_that_changes_while_its_new_content_is_synced_is_noted_as_it_became(
    files: WorkspaceFileAPI, history: History, meddling: Path
) -> None:
    files.write("a.txt", "ours")
    assert meddling.read_text() == "ours"
    (change,) = history.of_call("c").changes
    assert change.before is not None and history.content(change.before) == b"theirs"


@needs("linux")
def test_a_patch_of_a_file_that_changes_while_it_is_synced_is_refused(files: WorkspaceFileAPI, meddling: Path) -> None:
    with pytest.raises(ToolExecutionError) as refused:
        files.patch("a.txt", "old", "ours")
    assert refused.value.reason == "changed"
    assert meddling.read_text() == "theirs"
    assert os.listdir(meddling.parent) == ["a.txt"]


def test_a_content_that_cannot_be_synced_takes_no_name(
    files: WorkspaceFileAPI, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ws" / "a.txt").write_text("old")

    def fail(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".tmp"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ToolExecutionError):
        files.write("a.txt", "new")
    assert os.listdir(tmp_path / "ws") == ["a.txt"]
    assert (tmp_path / "ws" / "a.txt").read_text() == "old"
    assert history.of_call("c").changes == []


def test_a_lock_is_for_one_path_and_forgotten_when_nobody_wants_it() -> None:
    locks = PathLocks()
    entered = threading.Event()

    def enter() -> None:
        with locks.holding("/a"):
            entered.set()

    thread = threading.Thread(target=enter)
    with locks.holding("/a"):
        thread.start()
        with locks.holding("/b"):
            assert not entered.is_set()
    thread.join(LIMIT_S)
    assert entered.is_set()
    assert locks._locks == {}
