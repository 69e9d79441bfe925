"""Sync functions run in processes of their own: a timeout ends them, and nothing else differs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, tool
from callgate.core.errors import ToolErrorClass
from callgate.dispatch import early_answers
from tests.kernel.gate import isolated_tools

TOOLS: list[Any] = [
    isolated_tools.process,
    isolated_tools.here,
    isolated_tools.nap,
    isolated_tools.count,
    isolated_tools.fail,
    isolated_tools.variable,
]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the end of a process is waited for."""
    monkeypatch.setattr(early_answers, "CLEAN_UP_S", 60.0)


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[Gate]:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.txt").write_text("one two three")
    async with Gate(tmp_path / "ws", TOOLS, home=tmp_path / "home", mode="write") as gate:
        yield gate


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_sync_function_has_its_own_process_and_keeps_it(gate: Gate) -> None:
    first = (await gate.call("process")).value
    assert first != os.getpid()
    assert (await gate.call("process")).value == first
    assert (await gate.call("here")).value == os.getpid()


async def test_a_sync_function_that_sleeps_through_its_timeout_is_really_gone(gate: Gate) -> None:
    pid = (await gate.call("process")).value
    result = await gate.call("nap", {"seconds": 600}, timeout_s=0.2)
    assert result.error is not None
    assert (result.error.error_class, result.error.details) == (ToolErrorClass.TIMEOUT, {"stopped": True})
    assert not alive(pid)
    assert (await gate.call("process")).value not in (pid, os.getpid())


async def test_calls_of_one_module_run_side_by_side(gate: Gate) -> None:
    results = await asyncio.gather(*(gate.call("nap", {"seconds": 0.3}) for _ in range(3)))
    assert len({result.value for result in results}) == 3


async def test_a_function_reaches_its_files_and_no_others(gate: Gate, tmp_path: Path) -> None:
    told: list[str] = []
    gate.runtime.sessions.listen(lambda event: told.append(event.type))
    assert (await gate.call("count", {"path": "a.txt"})).value == 3
    assert (tmp_path / "ws" / "a.txt.count").read_text() == "3"
    assert "tool.progress" in told
    escaped = await gate.call("count", {"path": "../home/settings.toml"})
    assert escaped.error is not None and escaped.error.error_class is ToolErrorClass.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("how", "kind", "reason"),
    [
        ("handled", ToolErrorClass.EXECUTION_ERROR, "empty"),
        ("ours", ToolErrorClass.PERMISSION_DENIED, "mine"),
        ("other", ToolErrorClass.EXECUTION_ERROR, "exception"),
    ],
)
async def test_failures_are_what_they_are_in_process(gate: Gate, how: str, kind: Any, reason: str) -> None:
    error = (await gate.call("fail", {"how": how})).error
    assert error is not None
    assert (error.error_class, error.reason) == (kind, reason)
    assert "secret" not in error.message


async def test_a_function_sees_the_environment_of_its_program_but_nothing_of_ours(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE", "there")
    monkeypatch.setenv("CALLGATE_PROBE", "ours")
    seen = [(await gate.call("variable", {"name": name})).value for name in ("PROBE", "CALLGATE_PROBE")]
    assert seen == ["there", None]


async def test_a_function_that_no_other_process_can_import_runs_here(tmp_path: Path) -> None:
    @tool(side_effects="none")
    def local() -> int:
        """Say where it runs."""
        return os.getpid()

    async with Gate(tmp_path, [local], home=tmp_path / "home") as gate:
        assert (await gate.call("local")).value == os.getpid()


async def test_closing_the_gate_ends_the_processes(tmp_path: Path) -> None:
    async with Gate(tmp_path, TOOLS, home=tmp_path / "home") as gate:
        pid = (await gate.call("process")).value
    assert not alive(pid)


async def test_a_function_whose_caller_gives_up_is_really_gone(gate: Gate) -> None:
    pid = (await gate.call("process")).value
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await gate.call("nap", {"seconds": 600})
    assert not alive(pid)
    assert (await gate.call("process")).value not in (pid, os.getpid())
