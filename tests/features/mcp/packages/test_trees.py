"""How much a directory takes while others write to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callgate.core.errors import ToolError
from callgate.features.mcp.client import directories

MEGABYTE = 1_000_000


def test_the_disk_is_counted_and_not_what_names_promise(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/full").write_bytes(os.urandom(2 * MEGABYTE))
    os.link(tmp_path / "deep/full", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1000 * MEGABYTE)
    assert 2 * MEGABYTE <= directories.disk_usage(str(tmp_path)) < 3 * MEGABYTE


def test_what_is_gone_counts_nothing(tmp_path: Path) -> None:
    assert directories.disk_usage(str(tmp_path / "nothing")) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root looks into everything")
def test_a_directory_that_was_closed_cannot_be_measured(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(ToolError):
        directories.disk_usage(str(tmp_path))
