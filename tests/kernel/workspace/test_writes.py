"""A write happens whole or not at all, and touches nothing but its file."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.core.errors import ToolExecutionError
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.noting import Changed, replace
from callgate.workspace.opening import Opener
from tests.kernel.workspace.worlds import picture
from tests.needs import needs


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """The system refuses to write more than a few bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_all_as_it_was(files: WorkspaceFileAPI, root: Path, small_files_only: None) -> None:
    files.write("a.txt", "old")
    before = picture(root)
    acts = (
        lambda: files.write("a.txt", "x" * 100),
        lambda: files.write("new.txt", "x" * 100),
        lambda: files.write("new/dir/file.txt", "x" * 100),
        lambda: files.append("a.txt", "x" * 100),
        lambda: files.patch("a.txt", "old", "x" * 100),
    )
    for act in acts:
        with pytest.raises(ToolExecutionError) as refused:
            act()
        assert refused.value.reason == "too_large"
    after = picture(root)
    assert list(after) == list(before)
    assert after[str(root / "a.txt")] == before[str(root / "a.txt")]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o664])
def test_a_replaced_file_keeps_its_mode(files: WorkspaceFileAPI, root: Path, mode: int) -> None:
    (root / "a.sh").write_text("old")
    (root / "a.sh").chmod(mode)
    files.write("a.sh", "one")
    files.append("a.sh", " two")
    files.patch("a.sh", "two", "three")
    assert (root / "a.sh").stat().st_mode & 0o7777 == mode
    assert (root / "a.sh").read_text() == "one three"


def test_the_bits_that_lend_rights_are_not_kept(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "tool").write_text("old")
    (root / "tool").chmod(0o4755)
    files.write("tool", "new")
    assert (root / "tool").stat().st_mode & 0o7777 == 0o755


def test_a_new_file_gets_the_mode_that_the_umask_leaves(files: WorkspaceFileAPI, root: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write("dir/a.txt", "x")
    finally:
        os.umask(before)
    assert (root / "dir" / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (root / "dir").stat().st_mode & 0o777 == 0o750


@needs("root")
def test_a_replaced_file_keeps_its_owner(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "a.txt").write_text("old")
    os.chown(root / "a.txt", 1234, 4321)
    files.write("a.txt", "new")
    status = (root / "a.txt").stat()
    assert (status.st_uid, status.st_gid) == (1234, 4321)


def test_a_hard_link_to_a_file_outside_is_not_written_through(files: WorkspaceFileAPI, root: Path) -> None:
    secret = root.parent / "outside" / "secret.txt"
    for name in ("w", "a", "p"):
        (root / name).hardlink_to(secret)
    before = secret.stat().st_mtime_ns
    files.write("w", "x")
    files.append("a", "x")
    files.patch("p", "SECRET", "x")
    assert [files.read(name) for name in ("w", "a", "p")] == ["x", "SECRETx", "x"]
    assert (secret.read_text(), secret.stat().st_mtime_ns) == ("SECRET", before)


def test_a_reader_sees_the_old_file_or_the_new_one_whole(files: WorkspaceFileAPI, root: Path) -> None:
    versions = ["a" * 100_000, "b" * 150_000]
    files.write("a.txt", versions[0])
    seen: set[str] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(files.read("a.txt"))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(100):
        files.write("a.txt", versions[turn % 2])
    done.set()
    reader.join()
    assert seen <= set(versions)
    assert files.list(".") == ["a.txt"]


def test_changes_side_by_side_are_all_kept(files: WorkspaceFileAPI) -> None:
    files.write("log", "")

    def append(name: str) -> None:
        for turn in range(20):
            files.append("log", f"{name}{turn}\n")

    threads = [threading.Thread(target=append, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(files.read("log").split()) == sorted(f"{n}{i}" for n in "abcd" for i in range(20))


def test_a_file_that_changed_since_it_was_read_is_not_overwritten(opener: Opener, root: Path) -> None:
    path = root / "a.txt"
    path.write_text("read")
    read = path.stat()
    path.write_text("changed by someone else")
    fd = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(Changed):
            replace(opener, fd, b"a.txt", b"ours", like=read, read=read)
    finally:
        os.close(fd)
    assert [path.name for path in root.iterdir()] == ["a.txt"]
    assert path.read_text() == "changed by someone else"
