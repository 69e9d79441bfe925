"""Changes of commands that are discarded: always, or after a failure."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from tests.kernel.workspace.command_worlds import plant
from tests.needs import needs

pytestmark = needs("linux")


def tree(root: Path) -> dict[str, tuple[int, bytes | None]]:
    found = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        found[os.fsencode(path).hex()] = (facts.st_mode, path.read_bytes() if is_file else None)
    return found


CHANGES = "echo more >> a; rm b; mv d e; chmod 600 big; mkdir new; echo 1 > new/file; ln a c"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    plant(root, random.Random(1))
    return root


def text(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


async def test_changes_are_discarded_after_the_command(home: Path, workspace: Path) -> None:
    before = tree(workspace)
    async with Gate(workspace, mode="write", home=home) as gate:
        result = await gate.call("shell", {"command": f"{CHANGES}; ls", "discard_changes": True})
        assert result.ok, result.error
        assert "new" in text(result)
        assert "[changes discarded: " in text(result)
    assert tree(workspace) == before


async def test_files_of_callgate_are_not_reported_as_opened_by_the_tool(
    home: Path, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Gate(workspace, mode="write", home=home) as gate:
        assert (await gate.call("shell", {"command": CHANGES})).ok
    assert [each.getMessage() for each in caplog.records if "workspace_files" in each.getMessage()] == []


async def test_without_the_option_changes_stay(home: Path, workspace: Path) -> None:
    before = tree(workspace)
    async with Gate(workspace, mode="write", home=home) as gate:
        result = await gate.call("shell", {"command": f"{CHANGES}; exit 3"})
    assert "discarded" not in text(result)
    assert tree(workspace) != before


@pytest.mark.parametrize(("code", "stays"), [(0, True), (3, False)])
async def test_changes_of_failed_commands_are_discarded_by_a_setting(
    home: Path, workspace: Path, code: int, stays: bool
) -> None:
    (home / "settings.toml").write_text('[sandbox]\non_failure = "discard"\n')
    before = tree(workspace)
    async with Gate(workspace, mode="write", home=home) as gate:
        result = await gate.call("shell", {"command": f"{CHANGES}; exit {code}"})
    assert ("discarded" in text(result)) != stays
    assert (tree(workspace) == before) != stays


async def test_a_path_that_cannot_be_reverted_is_named(home: Path, workspace: Path) -> None:
    (home / "settings.toml").write_text("[undo]\nfile_bytes = 1000\n")
    (workspace / "large").write_bytes(b"x" * 2000)
    async with Gate(workspace, mode="write", home=home) as gate:
        script = "echo more >> large; echo > small"
        result = await gate.call("shell", {"command": script, "discard_changes": True})
    assert "[changed, cannot be undone: large (larger than 1000 bytes)]" in text(result)
    assert not (workspace / "small").exists()


async def test_without_a_sandbox_nothing_runs(home: Path, workspace: Path) -> None:
    (home / "settings.toml").write_text('sandbox = "off"\n')
    async with Gate(workspace, mode="write", home=home) as gate:
        result = await gate.call("shell", {"command": "echo > new", "discard_changes": True})
    assert result.error is not None
    assert result.error.reason == "not_recorded"
    assert not (workspace / "new").exists()
