"""The audit record of a call has what the stages found out until it ended, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.dispatch.permission.confirmations import Answer
from callgate.policy.rules import Outcome, Policy, PolicyMode, Setting
from tests.support import Bench, FakeHuman, make_tool

PATHS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["path"],
}


def bench(workspace: Path, effect: SideEffects, human: Any = None, **options: Any) -> Bench:
    def fail(input: Any, context: Any) -> str:
        raise RuntimeError("boom")

    tools = (
        make_tool("touch", effect, PATHS),
        make_tool("command", SideEffects.EXECUTE, PATHS, sandboxed=True),
        make_tool("broken", effect, PATHS, run=fail),
    )
    return Bench(workspace, *tools, human=human, **options)


def known(bench: Bench) -> tuple[Any, ...]:
    (record,) = bench.recorder.records
    return (record.side_effects, record.args, record.args_hash is not None, record.policy, record.sandbox)


async def test_of_an_unknown_tool_nothing_is_known_but_its_arguments(tmp_path: Path) -> None:
    it = bench(tmp_path, SideEffects.READ)
    await it.run("nothing", {"path": "a"})
    assert known(it) == (None, '{"path":"a"}', False, None, None)


async def test_of_invalid_arguments_the_tool_is_known_and_no_hash(tmp_path: Path) -> None:
    it = bench(tmp_path, SideEffects.READ)
    await it.run("touch", {"n": 1})
    assert known(it) == (SideEffects.READ, '{"n":1}', False, None, None)


async def test_of_a_path_outside_the_hash_is_known_and_no_decision(tmp_path: Path) -> None:
    it = bench(tmp_path, SideEffects.READ)
    await it.run("touch", {"path": "../../etc"})
    assert known(it) == (SideEffects.READ, '{"path":"../../etc"}', True, None, None)


async def test_of_a_command_outside_its_sandbox_is_known_too(tmp_path: Path) -> None:
    it = bench(tmp_path, SideEffects.READ)
    await it.run("command", {"path": "../../etc"})
    assert known(it) == (SideEffects.EXECUTE, '{"path":"../../etc"}', True, None, "off")


@pytest.mark.parametrize("tool", ["touch", "command"])
async def test_of_a_denied_call_the_decision_is_known(tmp_path: Path, tool: str) -> None:
    it = bench(tmp_path, SideEffects.WRITE, policy=Policy(per_tool={tool: Setting(PolicyMode.DENY)}))
    await it.run(tool, {"path": "a"})
    _, args, hashed, policy, _ = known(it)
    assert (args, hashed) == ('{"path":"a"}', True)
    assert policy is not None


@pytest.mark.parametrize("tool", ["touch", "broken"])
async def test_of_a_call_that_ran_all_is_known(tmp_path: Path, tool: str) -> None:
    it = bench(tmp_path, SideEffects.READ, mode=Mode.READ)
    await it.run(tool, {"path": "a"})
    effect, args, hashed, policy, sandbox = known(it)
    assert (effect, args, hashed, sandbox) == (SideEffects.READ, '{"path":"a"}', True, None)
    assert policy is not None


async def test_of_amended_arguments_that_escape_those_are_known(tmp_path: Path) -> None:
    """A person put them in place of the caller's: they were judged last."""
    answer = Answer(decision=Outcome.ALLOW, arguments={"path": "../../etc"})
    it = bench(tmp_path, SideEffects.WRITE, FakeHuman(answer))
    result = await it.run("touch", {"path": "a"})
    assert result.error.reason is not None
    _, args, hashed, policy, _ = known(it)
    assert (args, hashed) == ('{"path":"../../etc"}', True)
    assert policy is not None


async def test_of_amended_arguments_that_do_not_fit_the_callers_stay_known(tmp_path: Path) -> None:
    answer = Answer(decision=Outcome.ALLOW, arguments={"n": 1})
    it = bench(tmp_path, SideEffects.WRITE, FakeHuman(answer))
    await it.run("touch", {"path": "a"})
    assert known(it)[1:3] == ('{"path":"a"}', True)


async def test_amended_arguments_are_what_runs_and_what_is_recorded(tmp_path: Path) -> None:
    answer = Answer(decision=Outcome.ALLOW, arguments={"path": "b"})
    it = bench(tmp_path, SideEffects.WRITE, FakeHuman(answer))
    result = await it.run("touch", {"path": "a"})
    assert result.ok
    assert known(it)[1:3] == ('{"path":"b"}', True)
