"""Paths nobody thought of: whatever the text, nothing outside is read or changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.errors import ToolError
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import ComponentWalk, Opener, best_opener
from tests.kernel.workspace.worlds import build, filled, picture

NAMES = [
    "..",
    ".",
    "",
    "sub",
    "deep",
    "a.txt",
    "README.md",
    "link_out",
    "link_root",
    "parent",
    "dot",
    "link_abs_dir_in",
    "link_in_dir",
    "link_proc_root",
    "chain1",
    "up_in",
    "esc2",
    "loop_a",
    "new",
    "outside",
    "secret.txt",
    "ws",
    "ws-evil",
    "dangling_out",
    "dangling_in",
    "hard_out",
    "fifo",
    "sock",
    "etc",
    "passwd",
    "proc",
    "self",
    "root",
    "cwd",
    ".git",
    "{BASE}",
    "{ROOT}",
    "~",
    "\0",
]

names = st.sampled_from(NAMES) | st.text(max_size=4)
paths = st.builds(
    lambda parts, absolute, slash: "/" * absolute + "/".join(parts) + "/" * slash,
    st.lists(names, min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
)


class World:
    def __init__(self, base: Path, opener: Opener) -> None:
        self.base = base
        build(base)
        self.files = WorkspaceFileAPI(str(base / "ws"), opener=opener)
        self.outside = [path for path in base.iterdir() if path.name not in ("ws", "ws_alias")]
        self.before = picture(*self.outside)

    def try_all(self, path: str) -> None:
        """Do everything with a path that can be done. Only a `ToolError` may come of it."""
        files = self.files
        acts = (
            files.read_bytes,
            files.list,
            files.exists,
            files.locate,
            lambda path: files.patch(path, "a", "a"),
            lambda path: files.append(path, ""),
            lambda path: files.write(path, "a"),
            files.delete,
        )
        for act in acts:
            try:
                seen = act(path)
            except ToolError as error:
                seen = str(error)
            if "hard_out" not in path:  # a second name for a file outside is inside, too
                assert "SECRET" not in str(seen)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[World]:
    openers: list[Opener] = [best_opener(), ComponentWalk()]
    return [World(tmp_path_factory.mktemp("world"), opener) for opener in openers]


@pytest.mark.spec("S4-35", "S4-36", "S4-37", "S4-39", "S4-43")
@given(path=paths)
def test_no_generated_path_leads_out(worlds: list[World], path: str) -> None:
    for world in worlds:
        world.try_all(filled(path, world.base))
        assert picture(*world.outside) == world.before


@given(path=paths)
def test_both_ways_of_opening_agree(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    base = _shared(tmp_path_factory)
    said = []
    for opener in (best_opener(), ComponentWalk()):
        files = WorkspaceFileAPI(str(base / "ws"), opener=opener)
        said.append([_outcome(act, filled(path, base)) for act in (files.read_bytes, files.locate)])
    assert said[0] == said[1]


_bases: list[Path] = []


def _shared(factory: pytest.TempPathFactory) -> Path:
    if not _bases:
        _bases.append(factory.mktemp("agree"))
        build(_bases[0])
    return _bases[0]


def _outcome(act: object, path: str) -> object:
    try:
        return act(path)  # type: ignore[operator]
    except ToolError as error:
        return type(error), error.reason, str(error)
