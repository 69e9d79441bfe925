"""Every test of the wall runs on both ways of opening files."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.opening import ComponentWalk, Openat2, Opener, best_opener


@pytest.fixture(params=["openat2", "component walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    if request.param == "component walk":
        return ComponentWalk()
    kernel = best_opener()
    if not isinstance(kernel, Openat2):
        pytest.skip("needs openat2: this kernel has none")
    return kernel


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty workspace with a place outside beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("SECRET")
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def files(root: Path, opener: Opener) -> WorkspaceFileAPI:
    return WorkspaceFileAPI(str(root), opener=opener)
