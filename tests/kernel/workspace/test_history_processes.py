"""The history outlives kills, several processes at once, and its own pruning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo import planning
from callgate.workspace.undo.history import Bounds, History
from callgate.workspace.undo.records import Origin

WRITES = """
import itertools, sys
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Origin

root, undo, name, most = sys.argv[1:]
origin = Origin(session="s", call=name, tool="t", workspace=root.encode())
files = WorkspaceFileAPI(root, changes=History(undo).of(origin))
print("ready", flush=True)
for turn in range(int(most)) if int(most) else itertools.count():
    files.write(f"{name}.txt", f"{name} {turn} " * (turn % 50))
    files.write(f"{name}/{turn % 3}/new.txt", "x")
    files.delete(f"{name}/{turn % 3}/new.txt")
"""


def writer(root: Path, undo: Path, name: str, most: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", WRITES, str(root), str(undo), name, str(most)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def by(history: History, root: Path, call: str, **more: str) -> WorkspaceFileAPI:
    origin = Origin(session="s", call=call, tool="t", workspace=b"/", **more)
    return WorkspaceFileAPI(str(root), changes=history.of(origin))


def undo(history: History, root: Path, *calls: str) -> None:
    files = by(history, root, "undo")
    changes = [change for call in calls for change in history.of_call(call).changes]
    plan = planning.plan(files, history, changes)
    assert (plan.conflicts, plan.lost, plan.outside, plan.swapped) == ([], {}, [], [])
    for step in plan.steps:
        planning.take(files, history, step)


@pytest.mark.spec("T46")
def test_a_process_killed_at_any_moment_leaves_a_history_that_leads_back(tmp_path: Path) -> None:
    root, undo_home = tmp_path / "ws", tmp_path / "undo"
    root.mkdir()
    history = History(str(undo_home))
    (root / "w.txt").write_text("as it was")
    for turn in range(24):
        process = writer(root, undo_home, "w", 0)
        seen = len(history.of_call("w").changes)
        while len(history.of_call("w").changes) <= seen + turn % 5:
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    found = history.of_call("w")
    assert found.damaged <= 24
    undo(history, root, "w")
    # A kill may leave a file that had not taken its name yet; a directory with one in it stays.
    unnamed = list(root.rglob(".callgate-*.tmp"))
    around = {parent for path in unnamed for parent in path.parents}
    left = [path for path in root.rglob("*") if path not in unnamed and path not in around]
    assert left == [root / "w.txt"]
    assert (root / "w.txt").read_text() == "as it was"


def test_processes_side_by_side_lose_nothing(tmp_path: Path) -> None:
    root, undo_home = tmp_path / "ws", tmp_path / "undo"
    root.mkdir()
    history = History(str(undo_home), Bounds(max_total=0))
    processes = [writer(root, undo_home, name, 20) for name in ("a", "b", "c")]
    while any(process.poll() is None for process in processes):
        history.prune()  # wants everything gone, but nothing that is fresh
    assert [process.communicate()[0] for process in processes] == [b""] * 3
    undo(History(str(undo_home)), root, "a", "b", "c")
    assert list(root.iterdir()) == []


def aged(undo_home: Path, call: str, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(undo_home / "calls" / f"{call}.s.jsonl", (at, at))


def blobs(undo_home: Path) -> list[str]:
    found = (path for path in (undo_home / "blobs").rglob("*") if path.is_file())
    return sorted(path.read_text() for path in found)


def all_old(undo_home: Path) -> None:
    """As if long ago; and nobody prunes in the background any more."""
    for thread in threading.enumerate():
        if thread.name == "callgate-prune":
            thread.join()
    for path in (undo_home / "blobs").rglob("*"):
        os.utime(path, (1, 1))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def undo_home(tmp_path: Path) -> Path:
    return tmp_path / "undo"


def test_what_is_too_old_is_dropped_with_its_contents(root: Path, undo_home: Path) -> None:
    history = History(str(undo_home), Bounds(max_age_s=1000))
    for number, call in enumerate(("c1", "c2", "c3")):
        by(history, root, call).write("a.txt", f"content {number}")
        aged(undo_home, call, 3000 - 1200 * number)
    all_old(undo_home)
    history.prune()
    assert [len(history.of_call(call).changes) for call in ("c1", "c2", "c3")] == [0, 0, 1]
    assert blobs(undo_home) == ["content 1", "content 2"]  # before and after of the last


def test_the_oldest_go_first_where_it_is_too_much(root: Path, undo_home: Path) -> None:
    history = History(str(undo_home), Bounds(max_total=7_900))
    for number, call in enumerate(("c1", "c2", "c3", "c4")):
        by(history, root, call).write("a.txt", f"{number}" * 2000)
        aged(undo_home, call, 4000 - 500 * number)
    all_old(undo_home)
    history.prune()
    assert [len(history.of_call(call).changes) for call in ("c1", "c2", "c3", "c4")] == [0, 0, 1, 1]
    assert blobs(undo_home) == ["1" * 2000, "2" * 2000, "3" * 2000]
    assert sum(path.stat().st_size for path in undo_home.rglob("*") if path.is_file()) <= 7_900


def test_what_is_fresh_stays_however_much_it_is(root: Path, undo_home: Path) -> None:
    history = History(str(undo_home), Bounds(max_total=5000))
    for text in ("x" * 4000, "y" * 4000, "z"):
        by(history, root, "c1").write("a.txt", text)
    history.prune()
    assert len(history.of_call("c1").changes) == 3
    assert blobs(undo_home) == ["x" * 4000, "y" * 4000, "z"]


def test_the_remains_of_a_crash_are_dropped_once_they_are_old(root: Path, undo_home: Path) -> None:
    undo_home.mkdir()
    (undo_home / "pruned").touch()  # lately: the write does not begin to prune beside us
    history = History(str(undo_home))
    by(history, root, "c1").write("a.txt", "x")
    (undo_home / "blobs" / "tmp-old").write_text("torn")
    (undo_home / "blobs" / "tmp-new").write_text("being written")
    os.utime(undo_home / "blobs" / "tmp-old", (1, 1))
    history.prune()
    assert blobs(undo_home) == ["being written", "x"]


def test_a_content_that_is_wanted_again_while_it_is_dropped_stays(
    root: Path, undo_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(str(undo_home))
    by(history, root, "c1").write("a.txt", "wanted again")
    (undo_home / "calls" / "c1.s.jsonl").unlink()
    all_old(undo_home)
    rename = os.rename

    def want_first(source: str, target: str) -> None:
        """Someone else is quicker, and keeps the same content just now."""
        monkeypatch.setattr(os, "rename", rename)
        by(History(str(undo_home)), root, "c2").write("b.txt", "wanted again")
        rename(source, target)

    monkeypatch.setattr(os, "rename", want_first)
    history.prune()
    assert blobs(undo_home) == ["wanted again"]


def test_pruning_happens_by_itself_and_once_an_hour(root: Path, undo_home: Path) -> None:
    stamp = undo_home / "pruned"
    by(History(str(undo_home)), root, "c1").write("a.txt", "x")
    wait_for_pruning()
    pruned = stamp.stat().st_mtime_ns
    by(History(str(undo_home)), root, "c2").write("a.txt", "y")
    wait_for_pruning()
    assert stamp.stat().st_mtime_ns == pruned
    os.utime(stamp, (1, 1))
    by(History(str(undo_home)), root, "c3").write("a.txt", "z")
    wait_for_pruning()
    assert stamp.stat().st_mtime_ns > pruned


def test_pruning_comes_sooner_where_much_is_kept(root: Path, undo_home: Path) -> None:
    history = History(str(undo_home), Bounds(max_total=80_000))
    by(history, root, "c1").write("a.txt", "x")
    wait_for_pruning()
    os.utime(undo_home / "pruned")
    before = (undo_home / "pruned").stat().st_mtime_ns
    for number in range(20):
        by(history, root, "c2").write("a.txt", f"{number}" * 1000)
    wait_for_pruning()
    assert (undo_home / "pruned").stat().st_mtime_ns > before


def wait_for_pruning() -> None:
    for thread in threading.enumerate():
        if thread.name == "callgate-prune":
            thread.join(60)
