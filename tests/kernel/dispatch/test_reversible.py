"""Calls that undo can revert: which they are, and what the setting makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, tool
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.tools import ToolContext
from tests.needs import needs

FILES, COMMANDS = "the history of file tools", "the change sets of sandboxed commands"
SETTINGS = '[policy]\nreversible = "allow"\n'


@tool(side_effects="write", path_params=["path"])
def foreign(path: str, context: ToolContext) -> str:
    """Write with the standard library, which leaves no history."""
    (Path(context.workspace_path) / path).write_text("x")
    return "written"


def undone_by(gate: Gate, name: str, arguments: dict[str, Any]) -> str:
    call = ToolCall(tool=name, arguments=arguments, session=gate.session, caller=CallerKind.LIBRARY)
    return gate.runtime.permission.explain(call)[0].undone_by


@needs("linux")
async def test_file_tools_and_commands_without_network_are_reversible(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "big").write_bytes(b"")
    with (workspace / "big").open("r+b") as file:
        file.truncate(17 * 1024 * 1024)
    (workspace / "d").mkdir()
    async with Gate(workspace=workspace) as gate:
        await gate.call("shell", {"command": "true"})  # probes the machine
        for name, arguments, expected in (
            ("write_file", {"path": "a.txt", "content": "x"}, FILES),
            ("delete_file", {"path": "big"}, ""),
            ("delete_file", {"path": "d"}, ""),
            ("read_file", {"path": "big"}, ""),
            ("file_upload", {"path": "big"}, ""),
            ("memory_add", {"content": "x"}, ""),
            ("shell", {"command": "rm -rf d"}, COMMANDS),
            ("shell", {"command": "rm -rf d", "network": True}, ""),
        ):
            assert undone_by(gate, name, arguments) == expected, (name, arguments)


async def test_without_the_setting_mode_ask_asks(tmp_path: Path, home: Path) -> None:
    async with Gate(workspace=tmp_path) as gate:
        assert not (await gate.call("write_file", {"path": "a.txt", "content": "x"})).ok


@needs("linux")
async def test_the_setting_runs_what_undo_can_revert_and_nothing_else(tmp_path: Path, home: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (home / "settings.toml").write_text(SETTINGS)
    async with Gate(workspace=workspace) as gate:
        gate.register(foreign)
        assert (await gate.call("write_file", {"path": "a.txt", "content": "x"})).ok
        assert (await gate.call("shell", {"command": "echo more >> a.txt"})).ok
        assert (await gate.call("delete_file", {"path": "a.txt"})).ok
        refused = [
            await gate.call("shell", {"command": "true", "network": True}),
            await gate.call("foreign", {"path": "b.txt"}),
            await gate.call("write_file", {"path": ".git/hooks/pre-commit", "content": "x"}),
        ]
        assert [each.ok for each in refused] == [False] * 3
        assert not (workspace / "b.txt").exists()


@needs("linux")
@pytest.mark.parametrize("variable", ["CALLGATE_CALL"])
async def test_inside_another_command_nothing_is_reversible_by_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    async with Gate(workspace=tmp_path) as gate:
        await gate.call("shell", {"command": "true"})
        assert undone_by(gate, "shell", {"command": "true"}) == COMMANDS
        monkeypatch.setenv(variable, "1")
        assert undone_by(gate, "shell", {"command": "true"}) == ""
