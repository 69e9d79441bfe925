"""A path that leaves the workspace and comes straight back resolves inside it (seed 004, 5.1)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from callgate.core.errors import ToolError, WorkspaceEscapeError
from callgate.core.sessions import Root
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import ComponentWalk, Openat2, Opener
from callgate.workspace.wall import Wall


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = Path(os.path.realpath(tmp_path)) / "base"
    for directory in ("ws/sub/deep", "ws/ws/sub", "ws-evil", "other/ws", "ws.git"):
        (base / directory).mkdir(parents=True)
    for name in ("ws/a", "ws/sub/a", "ws/ws/a", "ws-evil/a", "other/ws/a", "other/a", "a"):
        (base / name).write_text(name)
    (base / "ws/up").symlink_to("..")
    (base / "ws/out").symlink_to("../other")
    (base / "ws/back").symlink_to("../ws/sub")
    (base / "ws/deeper").symlink_to("sub/deep")
    return base


INSIDE = {
    "../ws/a": "a",
    "../ws": ".",
    "../ws/": ".",
    ".././ws//a": "a",
    "sub/../../ws/a": "a",
    "../ws/sub/../../ws/a": "a",
    "../ws/../ws/a": "a",
    "../../base/ws/a": "a",
    "sub/deep/../../../ws/sub/a": "sub/a",
    "deeper/../../../ws/a": "a",
    "back/a": "sub/a",
    "back/../../ws/a": "a",
    "up/ws/a": "a",
    "../ws/ws/a": "ws/a",
    "../ws/new": "new",
    "../ws/sub/new": "sub/new",
    "{base}/ws/../ws/a": "a",
    "{base}/../base/ws/a": "a",
    "{base}/ws/../../base/ws/sub/a": "sub/a",
    "/../{base}/ws/a": "a",
}
OUTSIDE = [
    "..",
    "../",
    "../a",
    "../ws-evil/a",
    "../ws.git",
    "../other/ws/a",
    "../other/../ws/a",
    "../WS/a",
    "../../ws/a",
    "../../base/other/a",
    "../../base/ws/../a",
    "sub/../../a",
    "../ws/../a",
    "../ws/../../base/a",
    "out/ws/a",
    "out/../ws/../a",
    "up/a",
    "up/other/a",
    "../..",
    "/".join([".."] * 200) + "/ws/a",
    "{base}/ws/../a",
    "{base}/../base/other/a",
    "{base}/other/../ws/a",
    "{base}/../base/ws-evil/a",
]


@pytest.fixture(params=[Openat2, ComponentWalk])
def wall(request: pytest.FixtureRequest, base: Path) -> Wall:
    opener: Callable[[], Opener] = request.param
    return Wall([Root(str(base / "ws"))], opener())


@pytest.mark.spec("S4-36")
@pytest.mark.parametrize("path", INSIDE)
def test_a_path_that_comes_straight_back_is_inside(base: Path, wall: Wall, path: str) -> None:
    given = path.format(base=base)
    found = wall.locate(given)
    assert (found.relative, found.root) == (INSIDE[path], str(base / "ws"))
    if found.exists and not os.path.isdir(found.real):
        opened = wall.open(given, os.O_RDONLY)
        try:
            assert os.read(opened.fd, 100).decode() == os.path.relpath(base / "ws" / INSIDE[path], base)
        finally:
            os.close(opened.fd)


@pytest.mark.spec("S4-36")
@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_leads_elsewhere_is_an_escape(base: Path, wall: Wall, path: str) -> None:
    given = path.format(base=base)
    with pytest.raises(WorkspaceEscapeError):
        wall.locate(given)
    with pytest.raises(ToolError):
        os.close(wall.open(given, os.O_RDONLY).fd)


@pytest.mark.spec("S4-36")
def test_every_operation_on_files_takes_such_a_path(base: Path) -> None:
    files = WorkspaceFileAPI(str(base / "ws"))
    files.write("../ws/new", "one")
    files.append("../ws/new", " two")
    files.patch("sub/../../ws/new", "two", "2")
    assert files.read("../ws/new") == (base / "ws/new").read_text() == "one 2"
    assert files.exists("../ws/new") and not files.exists("../a")
    assert "new" in files.list("../ws")
    files.delete("../ws/new")
    assert not (base / "ws/new").exists()
    for change in (lambda: files.write("../a", "x"), lambda: files.delete("../ws-evil/a")):
        with pytest.raises(WorkspaceEscapeError):
            change()
    assert ((base / "a").read_text(), (base / "ws-evil/a").read_text()) == ("a", "ws-evil/a")


def test_a_workspace_that_is_spelled_through_a_link_is_not_entered_from_above(base: Path, tmp_path: Path) -> None:
    """A program that resolves `..` by its text alone would be led beside the link."""
    (tmp_path / "link").symlink_to(base / "ws")
    wall = Wall([Root(str(tmp_path / "link"))], ComponentWalk())
    for path in ("../ws/a", "../link/a"):
        with pytest.raises(WorkspaceEscapeError):
            wall.locate(path)


def test_protected_files_stay_protected_through_such_a_path(base: Path, wall: Wall) -> None:
    (base / "ws/.git").mkdir()
    (base / "ws/.git/config").write_text("")
    assert wall.locate("../ws/.git/config").protected
    assert wall.locate("sub/../../ws/.git/hooks/pre-commit").protected
