"""Worked examples from the first call to the last, with the built-in tools."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from callgate.core.content import TextBlock, ToolUseBlock
from callgate.dispatch.dispatcher import CallLimits
from callgate.policy.rules import Policy
from callgate.tools.files import ReadFile, WriteFile
from callgate.tools.shell import Shell
from tests.support import Bench, FakeHuman


@pytest.mark.spec("S4-17")
async def test_9_1_the_happy_path(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Project Foo\n")
    bench = Bench(tmp_path, ReadFile)
    use = ToolUseBlock("tu_01HZ_a", "read_file", {"path": "README.md"})
    block = await bench.dispatcher.dispatch(use, bench.session)
    assert (block.tool_use_id, block.is_error) == ("tu_01HZ_a", False)
    assert "# Project Foo" in block.content[0].text
    called, completed = bench.recorder.events
    assert {k: called.payload[k] for k in ("tool_name", "tool_use_id", "side_effects")} == {
        "tool_name": "read_file",
        "tool_use_id": "tu_01HZ_a",
        "side_effects": "read",
    }
    assert completed.type == "tool.completed"


@pytest.mark.spec("S4-14")
async def test_9_2_a_workspace_escape_is_rejected(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ReadFile)
    use = ToolUseBlock("tu_01HZ_b", "read_file", {"path": "../../etc/passwd"})
    block = await bench.dispatcher.dispatch(use, bench.session)
    assert block.is_error
    assert "root:" not in block.content[0].text
    (failed,) = bench.recorder.events
    assert (failed.type, failed.payload["error_class"]) == ("tool.failed", "permission_denied")
    assert failed.payload["message"] == "Path '../../etc/passwd' escapes workspace boundary"


@pytest.mark.spec("S4-52")
async def test_9_3_a_user_denies_a_write(tmp_path: Path) -> None:
    bench = Bench(tmp_path, WriteFile, human=FakeHuman("deny"))
    use = ToolUseBlock("tu_01HZ_c", "write_file", {"path": "src/auth.ts", "content": "..."})
    block = await bench.dispatcher.dispatch(use, bench.session)
    assert (block.is_error, block.content) == (True, [TextBlock("User denied this operation.")])
    assert not (tmp_path / "src").exists()
    requested, resolved, failed = bench.recorder.events
    assert requested.payload["projected_modifications"] == ["src/auth.ts"]
    assert resolved.payload["decision"] == "deny"
    assert failed.payload["error_class"] == "user_denied"


@pytest.mark.spec("S4-62", "S4-63", "S4-65")
async def test_9_4_a_shell_command_is_cancelled_midway(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Shell, human=FakeHuman("allow"), limits=CallLimits())
    use = ToolUseBlock("tu_01HZ_d", "shell", {"command": "echo installing; sleep 60"})
    call = asyncio.create_task(bench.dispatcher.dispatch(use, bench.session))
    await bench.recorder.seen("tool.output_delta")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    block = await call
    assert block.is_error
    failed = bench.recorder.one("tool.failed")
    assert failed.payload["error_class"] == "cancelled"
    assert "installing" in failed.payload["partial_output"]


@pytest.mark.spec("S4-27")
async def test_9_5_three_reads_at_once(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    bench = Bench(tmp_path, ReadFile)
    uses = [
        ToolUseBlock(f"tu_01HZ_{id}", "read_file", {"path": f"{name}.txt"})
        for id, name in zip("efg", "abc", strict=True)
    ]
    blocks = await asyncio.gather(*(bench.dispatcher.dispatch(use, bench.session) for use in uses))
    assert [block.tool_use_id for block in blocks] == ["tu_01HZ_e", "tu_01HZ_f", "tu_01HZ_g"]
    assert [block.content[0] for block in blocks] == [TextBlock("a"), TextBlock("b"), TextBlock("c")]
    assert sorted(bench.recorder.types) == ["tool.called"] * 3 + ["tool.completed"] * 3


@pytest.mark.spec("S4-47")
async def test_10_1_13_a_trusted_workspace_lowers_the_bar_for_writes_only(tmp_path: Path) -> None:
    human = FakeHuman("allow")
    policy = Policy(trusted_workspaces=(str(tmp_path),))
    bench = Bench(tmp_path, WriteFile, Shell, policy=policy, human=human)
    await bench.run("write_file", {"path": "a", "content": "b"})
    assert human.questions == []
    await bench.run("shell", {"command": "true"})
    assert len(human.questions) == 1


@pytest.mark.spec("S4-23", "T-8")
async def test_a_command_that_ran_out_of_its_own_time_still_shows_what_it_printed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Shell, human=FakeHuman("allow"), limits=CallLimits())
    result = await bench.run("shell", {"command": "echo half; sleep 60", "timeout_seconds": 1})
    assert (result.error.error_class, result.partial) == ("timeout", True)
    assert "half" in result.text
    assert "half" in bench.recorder.one("tool.failed").payload["partial_output"]
    assert result.error.details == {"timeout_seconds": 1}
