"""Every change through the file API is noted with what it replaced, before it is made."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.errors import ToolError, ToolExecutionError
from callgate.core.sessions import Root
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.noting import Changes, Standing, Withdraw
from callgate.workspace.opening import Opener
from callgate.workspace.undo.history import SHOWN, Bounds, History
from callgate.workspace.undo.records import Origin, State
from tests.needs import needs

ORIGIN = Origin(session="sess_1", call="tu_1", tool="write_file", workspace=b"/ws", turn="turn_1")


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(str(tmp_path / "undo"))


@pytest.fixture
def kept(root: Path, opener: Opener, history: History) -> WorkspaceFileAPI:
    """Files whose changes are kept."""
    return WorkspaceFileAPI(str(root), opener=opener, changes=history.of(ORIGIN))


def told(history: History, root: Path, call: str = "tu_1") -> list[tuple[Any, ...]]:
    """Each change: its kind, where, and the contents before and after."""
    return [
        (each.kind, os.path.relpath(each.real, root), content(history, each.before), content(history, each.after))
        for each in history.of_call(call).changes
    ]


def content(history: History, state: State | None) -> bytes | None:
    return None if state is None else history.content(state)


def test_every_operation_is_noted_with_what_it_replaced(kept: WorkspaceFileAPI, root: Path, history: History) -> None:
    kept.write("a.txt", "one")
    kept.write("a.txt", "two")
    kept.append("a.txt", " more")
    kept.append("new.txt", "begun")
    kept.patch("a.txt", "more", "less")
    kept.write_bytes("b.bin", b"\0\xff")
    kept.delete("a.txt")
    assert told(history, root) == [
        ("created", "a.txt", None, b"one"),
        ("changed", "a.txt", b"one", b"two"),
        ("changed", "a.txt", b"two", b"two more"),
        ("created", "new.txt", None, b"begun"),
        ("changed", "a.txt", b"two more", b"two less"),
        ("created", "b.bin", None, b"\0\xff"),
        ("deleted", "a.txt", b"two less", None),
    ]


def test_a_change_says_who_made_it_and_what_stood_there(kept: WorkspaceFileAPI, root: Path, history: History) -> None:
    (root / "run.sh").write_text("old\n")
    (root / "run.sh").chmod(0o755)
    kept.write("run.sh", "new")
    (change,) = history.of_call("tu_1").changes
    assert change.origin == ORIGIN
    assert (change.before, change.after) == (
        State("file", 0o755, 4, sha256(b"old\n"), kept=True),
        State("file", 0o755, 3, sha256(b"new"), kept=True),
    )


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def test_directories_made_on_the_way_are_noted(kept: WorkspaceFileAPI, root: Path, history: History) -> None:
    (root / "a").mkdir()
    kept.write("a/b/c/d.txt", "x")
    assert told(history, root) == [
        ("directory made", "a/b", None, None),
        ("directory made", "a/b/c", None, None),
        ("created", "a/b/c/d.txt", None, b"x"),
    ]


def test_a_change_through_a_link_is_noted_where_it_leads(kept: WorkspaceFileAPI, root: Path, history: History) -> None:
    (root / "real.txt").write_text("old")
    (root / "link").symlink_to("real.txt")
    kept.write("link", "new")
    kept.delete("link")
    assert told(history, root) == [
        ("changed", "real.txt", b"old", b"new"),
        ("deleted", "link", b"real.txt", None),
    ]


def test_a_name_that_is_no_text_is_noted_as_it_is(kept: WorkspaceFileAPI, root: Path, history: History) -> None:
    odd = os.fsencode(root) + b"/\xff.txt"
    Path(os.fsdecode(odd)).write_text("old")
    (root / "link").symlink_to(os.fsdecode(odd))
    kept.write("link", "new")
    assert [each.path for each in history.of_call("tu_1").changes] == [odd]


def test_a_file_in_another_root_is_noted(tmp_path: Path, root: Path, history: History) -> None:
    (tmp_path / "more").mkdir()
    files = WorkspaceFileAPI(
        str(root),
        extra_roots=[Root(str(tmp_path / "more"), writable=True)],
        changes=history.of(ORIGIN),
    )
    files.write(str(tmp_path / "more" / "a.txt"), "x")
    assert told(history, tmp_path) == [("created", "more/a.txt", None, b"x")]


def test_what_is_refused_or_fails_is_not_noted(kept: WorkspaceFileAPI, root: Path, history: History) -> None:
    (root / "a.txt").write_text("a a")
    (root / "dir").mkdir()
    refused: list[Callable[[], None]] = [
        lambda: kept.write("../outside/x", "x"),
        lambda: kept.write(".git/config", "x"),
        lambda: kept.write("dir", "x"),
        lambda: kept.patch("a.txt", "a", "b"),
        lambda: kept.delete("missing"),
        lambda: kept.delete("dir"),
        lambda: kept.write("new/" + "x" * 255 + "/y" * 10 + "/" + "é" * 127 + "xx", "x"),
    ]
    for act in refused:
        with pytest.raises(ToolError):
            act()
    assert history.of_call("tu_1").changes == []


class Meddler:
    """Lets someone else change the file just after it was noted."""

    limit = 1000

    def __init__(self, changes: Changes, meddle: Callable[[], None], times: int = 1) -> None:
        self.changes, self.meddle, self.times = changes, meddle, times

    def note(self, real: str, before: Standing | None, after: Standing | None) -> Withdraw:
        withdraw = self.changes.note(real, before, after)
        if self.times:
            self.times -= 1
            self.meddle()
        return withdraw


def test_what_is_noted_is_what_was_replaced_even_if_someone_was_quicker(
    root: Path, opener: Opener, history: History
) -> None:
    (root / "a.txt").write_text("first")
    swap = lambda: (root / "a.txt").write_text("by someone else")  # noqa: E731
    meddler = Meddler(history.of(ORIGIN), swap)
    WorkspaceFileAPI(str(root), opener=opener, changes=meddler).write("a.txt", "ours")
    assert told(history, root) == [("changed", "a.txt", b"by someone else", b"ours")]


def test_a_file_that_appears_meanwhile_is_noted_before_it_is_replaced(
    root: Path, opener: Opener, history: History
) -> None:
    appear = lambda: (root / "a.txt").write_text("by someone else")  # noqa: E731
    meddler = Meddler(history.of(ORIGIN), appear)
    WorkspaceFileAPI(str(root), opener=opener, changes=meddler).write("a.txt", "ours")
    assert told(history, root) == [("changed", "a.txt", b"by someone else", b"ours")]


def test_a_deleted_file_is_the_one_that_was_noted(root: Path, opener: Opener, history: History) -> None:
    (root / "a.txt").write_text("first")
    swap = lambda: (root / "a.txt").write_text("by someone else")  # noqa: E731
    meddler = Meddler(history.of(ORIGIN), swap)
    WorkspaceFileAPI(str(root), opener=opener, changes=meddler).delete("a.txt")
    assert told(history, root) == [("deleted", "a.txt", b"by someone else", None)]


def test_a_patched_file_that_changes_meanwhile_is_left_alone(root: Path, opener: Opener, history: History) -> None:
    (root / "a.txt").write_text("first")
    swap = lambda: (root / "a.txt").write_text("by someone else")  # noqa: E731
    files = WorkspaceFileAPI(str(root), opener=opener, changes=Meddler(history.of(ORIGIN), swap))
    with pytest.raises(ToolExecutionError) as refused:
        files.patch("a.txt", "first", "ours")
    assert refused.value.reason == "changed"
    assert ((root / "a.txt").read_text(), told(history, root)) == ("by someone else", [])


def test_a_file_that_never_keeps_still_is_left_alone(root: Path, opener: Opener, history: History) -> None:
    count = iter(range(1000))
    swap = lambda: (root / "a.txt").write_text("x" * next(count))  # noqa: E731
    meddler = Meddler(history.of(ORIGIN), swap, times=1000)
    with pytest.raises(ToolExecutionError) as refused:
        WorkspaceFileAPI(str(root), opener=opener, changes=meddler).write("a.txt", "ours")
    assert (refused.value.reason, told(history, root)) == ("changed", [])


def test_equal_contents_are_kept_once(kept: WorkspaceFileAPI, history: History, tmp_path: Path) -> None:
    for number in range(5):
        kept.write(f"{number}.txt", "same")
        kept.write(f"{number}.txt", "other")
    assert sorted(path.read_text() for path in blobs(tmp_path)) == ["other", "same"]


def blobs(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "undo" / "blobs").rglob("*") if path.is_file()]


def test_only_the_owner_can_read_the_history(kept: WorkspaceFileAPI, tmp_path: Path) -> None:
    kept.write("a.txt", "one")
    kept.write("a.txt", "two")
    for path in (tmp_path / "undo").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_a_content_beyond_the_bound_is_noted_but_not_kept(root: Path, tmp_path: Path) -> None:
    history = History(str(tmp_path / "undo"), Bounds(max_file=10))
    files = WorkspaceFileAPI(str(root), changes=history.of(ORIGIN))
    for text in ("x" * 10, "y" * 11, "z"):
        files.write("a.txt", text)
    assert [(each.before and each.before.kept) for each in history.of_call("tu_1").changes] == [
        None,
        True,
        False,
    ]
    assert sorted(path.read_text() for path in blobs(tmp_path)) == ["x" * 10, "z"]


def test_a_large_new_content_is_not_kept_beside_the_file(
    kept: WorkspaceFileAPI, history: History, tmp_path: Path
) -> None:
    kept.write("a.txt", "x" * (SHOWN + 1))
    (change,) = history.of_call("tu_1").changes
    assert change.after == State("file", 0o644, SHOWN + 1, sha256(b"x" * (SHOWN + 1)))
    assert blobs(tmp_path) == []


def test_an_empty_file_is_kept_too(root: Path, history: History, kept: WorkspaceFileAPI) -> None:
    (root / "empty").write_text("")
    kept.write("empty", "x")
    assert told(history, root) == [("changed", "empty", b"", b"x")]


@needs("no root")
def test_a_file_that_cannot_be_read_is_replaced_without_its_content(
    kept: WorkspaceFileAPI, root: Path, history: History
) -> None:
    (root / "a.txt").write_text("secret")
    (root / "a.txt").chmod(0o200)
    kept.write("a.txt", "x")
    (change,) = history.of_call("tu_1").changes
    assert change.before == State("file", 0o200, 6)


@pytest.fixture
def small_files_only() -> Iterator[Callable[[int], None]]:
    """The system refuses to let a file grow beyond a bound, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_change_that_cannot_be_noted_is_not_made(
    kept: WorkspaceFileAPI,
    root: Path,
    history: History,
    tmp_path: Path,
    small_files_only: Callable[[int], None],
) -> None:
    kept.write("a.txt", "one")
    before = told(history, root)
    (lines,) = (tmp_path / "undo" / "calls").iterdir()
    small_files_only(lines.stat().st_size + 50)  # too little for one more line
    acts: list[Callable[[], None]] = [
        lambda: kept.write("a.txt", "two"),
        lambda: kept.write("new/b.txt", "two"),
        lambda: kept.append("a.txt", "two"),
        lambda: kept.patch("a.txt", "one", "two"),
        lambda: kept.delete("a.txt"),
    ]
    for act in acts:
        with pytest.raises(ToolExecutionError) as refused:
            act()
        assert refused.value.reason == "undo_unwritable"
    assert [path.name for path in root.iterdir()] == ["a.txt"]
    assert ((root / "a.txt").read_text(), told(history, root)) == ("one", before)
    assert history.of_call("tu_1").damaged == 0


def test_a_write_that_fails_after_directories_were_made_leaves_no_note(
    kept: WorkspaceFileAPI,
    root: Path,
    history: History,
    small_files_only: Callable[[int], None],
) -> None:
    small_files_only(4000)
    with pytest.raises(ToolExecutionError) as refused:
        kept.write("new/deep/a.txt", "x" * 5000)
    assert (refused.value.reason, list(root.iterdir())) == ("too_large", [])
    assert history.of_call("tu_1") == ([], 0)


def test_a_directory_that_someone_else_made_is_not_noted_as_ours(root: Path, opener: Opener, history: History) -> None:
    meddler = Meddler(history.of(ORIGIN), (root / "d").mkdir)
    WorkspaceFileAPI(str(root), opener=opener, changes=meddler).write("d/a.txt", "x")
    assert told(history, root) == [("created", "d/a.txt", None, b"x")]


def test_a_change_that_fails_at_the_last_moment_is_not_noted(root: Path, opener: Opener, history: History) -> None:
    (root / "d").mkdir()
    meddler = Meddler(history.of(ORIGIN), lambda: shutil.rmtree(root / "d"))
    with pytest.raises(ToolExecutionError):
        WorkspaceFileAPI(str(root), opener=opener, changes=meddler).write("d/a.txt", "x")
    assert told(history, root) == []


def test_a_history_that_cannot_be_made_refuses_changes(root: Path, tmp_path: Path) -> None:
    (tmp_path / "undo").write_text("in the way")
    files = WorkspaceFileAPI(str(root), changes=History(str(tmp_path / "undo")).of(ORIGIN))
    with pytest.raises(ToolExecutionError) as refused:
        files.write("a.txt", "x")
    assert (refused.value.reason, list(root.iterdir())) == ("undo_unwritable", [])


@pytest.mark.spec("T46")
def test_a_torn_line_is_skipped_and_counted_and_swallows_nothing(
    kept: WorkspaceFileAPI, root: Path, history: History, tmp_path: Path
) -> None:
    kept.write("a.txt", "one")
    (file,) = (tmp_path / "undo" / "calls").iterdir()
    whole = file.read_bytes()
    for cut in range(1, len(whole)):
        file.write_bytes(whole + whole[:cut])
        assert len(history.of_call("tu_1").changes) == 1
        assert history.of_call("tu_1").damaged == (cut < len(whole) - 1)
    file.write_bytes(whole + whole[:40])
    kept.write("a.txt", "two")
    assert told(history, root) == [
        ("created", "a.txt", None, b"one"),
        ("changed", "a.txt", b"one", b"two"),
    ]
    assert history.of_call("tu_1").damaged == 1


def test_a_damaged_content_is_not_given_out(
    kept: WorkspaceFileAPI, root: Path, history: History, tmp_path: Path
) -> None:
    kept.write("a.txt", "one")
    kept.write("a.txt", "two")
    for path in blobs(tmp_path):
        path.write_text("someone else's")
    assert told(history, root)[1] == ("changed", "a.txt", None, None)


def test_calls_of_a_session_are_found_in_the_order_of_their_changes(root: Path, history: History) -> None:
    for session, call in (("s1", "c2"), ("s2", "c9"), ("s1", "c1"), ("s1", "c2")):
        origin = Origin(session=session, call=call, tool="t", workspace=b"/")
        WorkspaceFileAPI(str(root), changes=history.of(origin)).write("a.txt", call)
    assert [each.origin.call for each in history.of_session("s1").changes] == ["c2", "c1", "c2"]
    assert [each.origin.session for each in history.of_call("c9").changes] == ["s2"]


@pytest.mark.parametrize("odd", ["../../escape", "a/b", "", "x" * 300, "a.b.jsonl", "ü", "\n"])
def test_an_id_of_any_shape_is_no_path(root: Path, tmp_path: Path, odd: str) -> None:
    history = History(str(tmp_path / "undo"))
    origin = Origin(session=odd, call=odd, tool="t", workspace=b"/")
    WorkspaceFileAPI(str(root), changes=history.of(origin)).write("a.txt", "x")
    for found in (history.of_call(odd), history.of_session(odd)):
        assert [each.origin for each in found.changes] == [origin]
    assert {path.parent for path in tmp_path.rglob("*.jsonl")} == {tmp_path / "undo" / "calls"}


def test_the_latest_calls_come_first(root: Path, history: History, tmp_path: Path) -> None:
    for number in range(5):
        origin = Origin(session="s", call=f"c{number}", tool="t", workspace=b"/")
        WorkspaceFileAPI(str(root), changes=history.of(origin)).write("a.txt", str(number))
        os.utime(tmp_path / "undo" / "calls" / f"c{number}.s.jsonl", (number, number))
    assert [each.changes[-1].origin.call for each in history.latest(3)] == ["c4", "c3", "c2"]


def test_no_history_yet_is_an_empty_one(history: History) -> None:
    assert (history.of_call("x"), history.of_session("x"), history.latest(5)) == (([], 0), ([], 0), [])


def test_threads_that_write_the_same_file_leave_one_chain(kept: WorkspaceFileAPI, root: Path, history: History) -> None:
    def write(name: str) -> None:
        for turn in range(10):
            kept.write("a.txt", f"{name}{turn}" * (turn + 1))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changes = history.of_call("tu_1").changes
    left = [content(history, each.after) for each in changes]
    assert len(changes) == 40
    assert [content(history, each.before) for each in changes] == [None, *left[:-1]]
    assert (root / "a.txt").read_bytes() == left[-1]
