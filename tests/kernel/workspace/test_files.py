"""What the nine operations of the file API do, on both ways of opening."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from callgate.core.errors import (
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
    WorkspaceEscapeError,
)
from callgate.core.local.environment import WorkspaceFiles
from callgate.core.sessions import Root
from callgate.workspace.files import Access, Entry, WorkspaceFileAPI
from callgate.workspace.opening import Opener
from tests.kernel.workspace.worlds import picture
from tests.needs import needs


def refusal(error: ToolError) -> tuple[str, str | None]:
    return str(error.error_class), error.reason


MISSING = ("execution_error", "file_not_found")
WRONG_TYPE = ("execution_error", "wrong_type")
ESCAPE = ("permission_denied", "workspace_escape")


def test_the_api_is_the_port_that_tools_are_given(files: WorkspaceFileAPI, root: Path) -> None:
    port: WorkspaceFiles = files
    assert port.workspace_root == str(root)


@pytest.mark.spec("S4-34")
def test_what_was_written_is_read(files: WorkspaceFileAPI, root: Path) -> None:
    files.write("a.txt", "one\r\nzwei é\n")
    files.append("a.txt", "three")
    files.append("new.txt", "made by append")
    files.write_bytes("b.bin", b"\xff\x00")
    assert files.read("a.txt") == "one\r\nzwei é\nthree"
    assert files.read_bytes("a.txt") == "one\r\nzwei é\nthree".encode()
    assert files.read("new.txt") == "made by append"
    assert files.read_bytes("b.bin") == b"\xff\x00"
    assert files.list(".") == ["a.txt", "b.bin", "new.txt"]
    files.patch("a.txt", "one", "1")
    files.delete("b.bin")
    assert (root / "a.txt").read_bytes() == "1\r\nzwei é\nthree".encode()
    assert [files.exists(name) for name in ("a.txt", "b.bin", ".")] == [True, False, True]


@pytest.mark.spec("S4-41")
def test_a_write_makes_the_directories_on_its_way(files: WorkspaceFileAPI, root: Path) -> None:
    files.write("a/b/c.txt", "x")
    files.write("a/b/../d.txt", "y")
    assert (root / "a" / "b" / "c.txt").read_text() == "x"
    assert (root / "a" / "d.txt").read_text() == "y"


@pytest.mark.spec("S4-41")
@pytest.mark.parametrize(("old", "reason"), [("zero", "no_match"), ("one", "many_matches"), ("aa", "many_matches")])
def test_a_patch_without_exactly_one_place_changes_nothing(
    files: WorkspaceFileAPI, root: Path, old: str, reason: str
) -> None:
    files.write("a.txt", "one one aaa")
    before = picture(root)
    with pytest.raises(ToolExecutionError) as refused:
        files.patch("a.txt", old, "x")
    assert refused.value.reason == reason
    assert picture(root) == before


@pytest.mark.spec("S4-41")
def test_deleting_a_directory_is_refused(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "empty").mkdir()
    with pytest.raises(ToolExecutionError) as refused:
        files.delete("empty")
    assert refusal(refused.value) == WRONG_TYPE
    with pytest.raises(ToolPermissionDenied):
        files.delete(".")
    assert (root / "empty").is_dir()


@pytest.mark.spec("S4-41")
def test_names_are_listed_sorted_with_their_kinds(files: WorkspaceFileAPI, root: Path) -> None:
    for name in ("b", "a", "C"):
        (root / name).write_text("")
    (root / "d").mkdir()
    (root / "link").symlink_to("d")
    os.mkfifo(root / "pipe")
    assert files.list(".") == ["C", "a", "b", "d", "link", "pipe"]
    assert files.entries(".") == [
        Entry("C", "file"),
        Entry("a", "file"),
        Entry("b", "file"),
        Entry("d", "directory"),
        Entry("link", "link"),
        Entry("pipe", "other"),
    ]


@needs("linux")
def test_a_name_that_is_no_text_is_listed_in_a_form_that_can_be_sent(files: WorkspaceFileAPI, root: Path) -> None:
    (root / os.fsdecode(b"bad\xff")).write_text("")
    assert files.list(".") == ["bad\\xff"]


@pytest.mark.spec("S4-74", "T-4")
def test_a_missing_file_is_named_to_whoever_asked(files: WorkspaceFileAPI) -> None:
    for act in (files.read, files.list, files.delete, lambda path: files.patch(path, "a", "b")):
        with pytest.raises(ToolExecutionError) as refused:
            act("sub/nope.txt")
        assert refusal(refused.value) == MISSING
        assert refused.value.is_user_visible
        assert "sub/nope.txt" in refused.value.message


@pytest.mark.spec("S4-43")
@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_what_is_no_regular_file_is_refused_without_waiting(files: WorkspaceFileAPI, root: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(root / "thing")
    elif kind == "socket":
        os.mknod(root / "thing", stat.S_IFSOCK | 0o600)
    else:
        (root / "thing").mkdir()
    acts = (
        files.read,
        lambda path: files.write(path, "x"),
        lambda path: files.append(path, "x"),
        lambda path: files.patch(path, "a", "b"),
    )
    for act in acts:
        with pytest.raises(ToolExecutionError) as refused:
            act("thing")
        assert refusal(refused.value) == WRONG_TYPE


@needs("root", "linux")
@pytest.mark.spec("S4-43")
def test_a_device_is_refused(files: WorkspaceFileAPI, root: Path) -> None:
    os.mknod(root / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    for act in (files.read, lambda path: files.write(path, "x")):
        with pytest.raises(ToolExecutionError) as refused:
            act("zero")
        assert refusal(refused.value) == WRONG_TYPE


@pytest.mark.spec("S4-43", "T10")
@pytest.mark.parametrize("path", ["", "a\0b", "x" * 256, "é" * 128, "a\ud800", "x/" * 3000 + "x"])
def test_what_cannot_be_a_path_is_invalid(files: WorkspaceFileAPI, path: str) -> None:
    acts = (files.read, files.list, files.delete, files.exists, files.locate)
    for act in (*acts, lambda path: files.write(path, "x")):
        with pytest.raises(ToolValidationError) as refused:
            act(path)
        assert refused.value.reason == "invalid_path"


def test_a_long_spelling_of_a_short_path_is_fine(files: WorkspaceFileAPI) -> None:
    files.write("a.txt", "x")
    assert files.read("./" * 5000 + "a.txt") == "x"


def test_content_that_is_no_text_is_refused(files: WorkspaceFileAPI, root: Path) -> None:
    files.write_bytes("latin", b"caf\xe9")
    for act in (files.read, lambda path: files.patch(path, "c", "k")):
        with pytest.raises(ToolExecutionError) as refused:
            act("latin")
        assert refused.value.reason == "not_text"
    with pytest.raises(ToolValidationError):
        files.write("new.txt", "\ud800")
    assert files.list(".") == ["latin"]


@pytest.mark.spec("S4-36")
@pytest.mark.parametrize("there", [True, False])
def test_climbing_out_is_refused_whether_or_not_the_way_exists(
    files: WorkspaceFileAPI, root: Path, there: bool
) -> None:
    if there:
        (root / "subdir").mkdir()
    path = "subdir/../../../etc/passwd"
    acts = (files.read, files.list, files.delete, files.locate)
    for act in (*acts, lambda path: files.write(path, "x"), lambda p: files.patch(p, "a", "b")):
        with pytest.raises(WorkspaceEscapeError) as refused:
            act(path)
        assert refusal(refused.value) == ESCAPE
    assert not files.exists(path)


@pytest.mark.spec("S4-37", "T02", "T05")
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("path", ["leaf", "dir/secret.txt", "dir/new.txt", "new", "chain"])
def test_a_link_that_leads_out_is_refused_by_every_operation(
    files: WorkspaceFileAPI, root: Path, path: str, absolute: bool
) -> None:
    outside = str(root.parent / "outside") if absolute else "../outside"
    (root / "leaf").symlink_to(f"{outside}/secret.txt")
    (root / "dir").symlink_to(outside)
    (root / "new").symlink_to(f"{outside}/new.txt")
    (root / "chain").symlink_to("leaf")
    before = picture(root, root.parent / "outside")
    acts = (
        files.read,
        files.list,
        files.delete,
        files.locate,
        lambda path: files.write(path, "x"),
        lambda path: files.append(path, "x"),
        lambda path: files.patch(path, "SECRET", "x"),
    )
    for act in acts:
        with pytest.raises(WorkspaceEscapeError) as refused:
            act(path)
        assert refusal(refused.value) == ESCAPE
        assert "outside" not in refused.value.message
    assert not files.exists(path)
    assert picture(root, root.parent / "outside") == before


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_inside_is_written_through_and_kept(files: WorkspaceFileAPI, root: Path, absolute: bool) -> None:
    (root / "sub").mkdir()
    (root / "real.txt").write_text("old")
    target = str(root / "real.txt") if absolute else "../real.txt"
    (root / "sub" / "link").symlink_to(target)
    files.write("sub/link", "new")
    files.append("sub/link", "er")
    files.patch("sub/link", "newer", "newest")
    assert (root / "sub" / "link").readlink() == Path(target)
    assert (root / "real.txt").read_text() == "newest"
    files.delete("sub/link")
    assert files.list("sub") == []
    assert files.read("real.txt") == "newest"


def test_a_link_to_a_missing_file_inside_makes_it(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "link").symlink_to("later/file.txt")
    assert not files.exists("link")
    files.write("link", "x")
    assert (root / "later" / "file.txt").read_text() == "x"
    assert (root / "link").is_symlink()


def test_links_that_turn_in_a_circle_are_refused(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    for act in (files.read, files.list, files.delete, lambda path: files.write(path, "x")):
        with pytest.raises(WorkspaceEscapeError) as refused:
            act("a")
        assert refused.value.reason == "link_loop"
    assert not files.exists("a")


@pytest.mark.spec("S4-35", "S4-38", "S4-39")
def test_every_spelling_of_the_root_leads_in_and_its_neighbours_do_not(
    tmp_path: Path, root: Path, opener: Opener
) -> None:
    (tmp_path / "ws-evil").mkdir()
    (tmp_path / "alias").symlink_to("ws")
    (tmp_path / "other").symlink_to(tmp_path / "alias")
    (root / "a.txt").write_text("a")
    for given in ("ws", "alias", "other"):
        files = WorkspaceFileAPI(str(tmp_path / given), opener=opener)
        assert files.workspace_root == str(tmp_path / given)
        for spelled in ("ws", "alias", "other", "ws/", "/ws/.", "./ws"):
            assert files.read(f"{tmp_path}/{spelled}/a.txt") == "a"
        for outside in (tmp_path, tmp_path / "ws-evil", tmp_path / "ws-evil" / "a.txt", Path("/")):
            assert not files.exists(str(outside))
            with pytest.raises(WorkspaceEscapeError):
                files.locate(str(outside))


def test_the_root_of_the_file_system_can_be_a_workspace(tmp_path: Path, opener: Opener) -> None:
    files = WorkspaceFileAPI("/", opener=opener)
    (tmp_path / "a.txt").write_text("a")
    assert files.read(str(tmp_path / "a.txt")) == "a"
    assert files.read(str(tmp_path / "a.txt")[1:]) == "a"
    place = files.locate(str(tmp_path / "a.txt"))
    assert (place.real, place.relative) == (f"{tmp_path}/a.txt", f"{tmp_path}/a.txt"[1:])
    with pytest.raises(WorkspaceEscapeError):
        files.read("../etc/passwd")


def test_an_extra_root_has_the_same_wall_and_may_be_read_only(tmp_path: Path, root: Path, opener: Opener) -> None:
    lib, scratch = tmp_path / "lib", tmp_path / "scratch"
    for place in (lib, scratch):
        place.mkdir()
        (place / "a.txt").write_text("a")
        (place / "out").symlink_to("../outside/secret.txt")
    (root / "to_lib").symlink_to(lib)
    roots = (Root(str(lib)), Root(str(scratch), writable=True), Root(str(tmp_path / "none")))
    files = WorkspaceFileAPI(str(root), extra_roots=roots, opener=opener)

    assert files.read(f"{lib}/a.txt") == "a"
    assert files.read("to_lib/a.txt") == "a"
    files.write(f"{scratch}/b.txt", "b")
    assert files.list(str(scratch)) == ["a.txt", "b.txt", "out"]
    before = picture(lib)
    for path in (f"{lib}/a.txt", f"{lib}/new.txt", "to_lib/a.txt"):
        for act in (lambda path: files.write(path, "x"), lambda path: files.append(path, "x")):
            with pytest.raises(ToolPermissionDenied) as refused:
                act(path)
            assert refused.value.reason == "read_only_root"
    with pytest.raises(ToolPermissionDenied):
        files.delete(f"{lib}/a.txt")
    assert picture(lib) == before
    for path in (f"{lib}/out", f"{scratch}/out", f"{scratch}/../ws", f"{tmp_path}/none/x"):
        with pytest.raises(WorkspaceEscapeError):
            files.read(path)


@pytest.mark.spec("S4-37", "T02")
@pytest.mark.parametrize("outer", ["ws", "rw"])
def test_a_root_inside_a_writable_one_cannot_be_swapped_for_a_link(
    tmp_path: Path, root: Path, opener: Opener, outer: str
) -> None:
    inner = tmp_path / outer / "inner"
    inner.mkdir(parents=True)
    (inner / "a.txt").write_text("a")
    roots = (Root(str(inner)), Root(str(tmp_path / "rw"), writable=True))
    assert WorkspaceFileAPI(str(root), extra_roots=roots, opener=opener).read(f"{inner}/a.txt") == "a"
    inner.rename(tmp_path / "gone")
    inner.symlink_to("../outside")
    files = WorkspaceFileAPI(str(root), extra_roots=roots, opener=opener)
    for path in (f"{inner}/secret.txt", "inner/secret.txt"):
        assert not files.exists(path)
    with pytest.raises(WorkspaceEscapeError):
        files.read(f"{inner}/secret.txt")


def test_a_guard_judges_the_real_path_before_anything_happens(root: Path, opener: Opener) -> None:
    (root / "secret").mkdir()
    (root / "secret" / "key").write_text("key")
    (root / "way").symlink_to("secret")
    asked: list[tuple[str, str]] = []

    def guard(real: str, access: Access) -> None:
        asked.append((real, access))
        if "/secret" in real:
            raise ToolPermissionDenied("no", reason="rule")

    files = WorkspaceFileAPI(str(root), guard=guard, opener=opener)
    before = picture(root)
    acts = (
        files.read,
        lambda path: files.write(path, "x"),
        lambda path: files.append(path, "x"),
        lambda path: files.patch(path, "key", "x"),
        files.delete,
    )
    for act in acts:
        with pytest.raises(ToolPermissionDenied) as refused:
            act("way/key")
        assert refused.value.reason == "rule"
    with pytest.raises(ToolPermissionDenied):
        files.list("way")
    with pytest.raises(ToolPermissionDenied):
        files.write("way/new/deep/file", "x")
    assert not files.exists("way/key")
    key, new = f"{root}/secret/key", f"{root}/secret/new/deep/file"
    assert asked == [
        (key, "read"),
        (key, "write"),
        (key, "write"),
        (key, "read"),
        (key, "write"),
        (f"{root}/secret", "read"),
        (new, "write"),
        (key, "read"),
    ]
    assert picture(root) == before


def test_the_same_files_under_another_guard(files: WorkspaceFileAPI) -> None:
    def refuse(real: str, access: Access) -> None:
        raise ToolPermissionDenied("no")

    files.write("a.txt", "a")
    with pytest.raises(ToolPermissionDenied):
        files.guarded(refuse).read("a.txt")
    assert files.guarded(None).read("a.txt") == "a"


def test_a_workspace_that_was_replaced_is_found_again(files: WorkspaceFileAPI, root: Path) -> None:
    files.write("a.txt", "old")
    root.rename(root.with_name("moved"))
    with pytest.raises(ToolExecutionError) as refused:
        files.read("a.txt")
    assert refused.value.reason == "workspace_missing"
    root.mkdir()
    (root / "a.txt").write_text("new")
    assert files.read("a.txt") == "new"
    files.write("b.txt", "b")
    assert (root / "b.txt").read_text() == "b"
    assert [path.name for path in root.with_name("moved").iterdir()] == ["a.txt"]


@needs("no root")
def test_what_the_system_forbids_is_an_error_of_the_work(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "locked").write_text("x")
    (root / "locked").chmod(0o000)
    (root / "fixed").write_text("x")
    (root / "fixed").chmod(0o444)
    for act in (lambda: files.read("locked"), lambda: files.write("fixed", "y")):
        with pytest.raises(ToolExecutionError) as refused:
            act()
        assert refused.value.reason == "access_denied"
    assert files.list(".") == ["fixed", "locked"]
    (root / "shut").mkdir(mode=0o000)
    assert not files.exists("shut/x")
