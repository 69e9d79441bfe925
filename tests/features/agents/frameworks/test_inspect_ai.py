from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, eval_async
from inspect_ai.approval import ApprovalPolicy
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import Generate, TaskState, generate, solver, use_tools
from inspect_ai.tool import Tool, bash, tool
from inspect_ai.util import SandboxUserUnsupportedError, sandbox

from callgate import Gate
from callgate.adapters import inspect_registry  # noqa: F401  # what the entry point loads
from callgate.adapters.inspect_ai import _open, gate_approver
from tests.features.agents.frameworks.contract import (
    gate_for,
    outcome,
    test_a_call_that_only_reads_runs_unasked,  # noqa: F401
    test_a_call_with_effects_asks_and_runs_when_allowed,  # noqa: F401
    test_a_closed_gate_runs_nothing,  # noqa: F401
    test_a_defect_of_the_dispatcher_runs_nothing,  # noqa: F401
    test_a_defect_of_the_guard_runs_nothing,  # noqa: F401
    test_a_denied_call_never_starts_and_the_model_is_told_why,  # noqa: F401
    test_nobody_to_ask_is_a_refusal,  # noqa: F401
    test_the_gate_is_told_what_the_user_said,  # noqa: F401
    test_what_a_person_edits_is_what_runs,  # noqa: F401
)
from tests.features.agents.frameworks.world import EFFECTS, PROMPT, World, records
from tests.needs import needs


def scripted(name: str, arguments: dict[str, Any]) -> Any:
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", name, arguments),
        ModelOutput.from_content("mockllm/model", "done"),
    ]
    for output in outputs:  # else tokens are counted with data from the network
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return get_model("mockllm/model", custom_outputs=outputs)


def tools_of(world: World) -> list[Tool]:
    @tool
    def look() -> Tool:
        async def execute(to: str) -> str:
            """Look somebody up.

            Args:
                to: Whom.
            """
            return world.look(to)

        return execute

    @tool
    def send_mail() -> Tool:
        async def execute(to: str, subject: str | None = None) -> str:
            """Send a mail.

            Args:
                to: To whom.
                subject: About what.
            """
            return world.send_mail(to, subject)

        return execute

    @tool
    def fail() -> Tool:
        async def execute(to: str) -> str:
            """Fail.

            Args:
                to: Whom.
            """
            return world.fail(to)

        return execute

    return [look(), send_mail(), fail()]


async def evaluate(task: Task, model: Any, directory: Path, approval: Any = None) -> list[str]:
    (log,) = await eval_async(task, model=model, approval=approval, log_dir=str(directory))
    if log.status != "success":
        raise RuntimeError(str(log.error and log.error.message))
    assert log.samples is not None
    messages = log.samples[0].messages
    return [each.error.message if each.error else each.text for each in messages if isinstance(each, ChatMessageTool)]


class Harness:
    shows_errors = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def run(
        self, gate: Gate | None, world: World, tool: str, arguments: dict[str, Any], *, stream: bool = False
    ) -> list[str]:
        task = Task(dataset=[Sample(input=PROMPT)], solver=[use_tools(tools_of(world)), generate()])
        approval = None if gate is None else [ApprovalPolicy(gate_approver(EFFECTS, gate=gate), "*")]
        return await evaluate(task, scripted(tool, arguments), self.directory, approval)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSPECT_DISPLAY", "none")


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "logs")


async def test_an_error_of_a_tool_is_as_without_us(harness: Harness, home: Path, tmp_path: Path) -> None:
    bare, world = World(), World()
    expected = await outcome(harness, None, bare, "fail")
    async with gate_for(tmp_path, home) as gate:
        assert await outcome(harness, gate, world, "fail") == expected
    assert world.ran == bare.ran == [("fail", "ann")]


async def test_a_cancelled_evaluation_withdraws_its_question(harness: Harness, home: Path, tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def nobody(question: Any) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    world = World()
    async with Gate(tmp_path, [], confirm=nobody, home=home) as gate:
        task = asyncio.create_task(harness.run(gate, world, "send_mail", {"to": "ann"}))
        await asyncio.wait_for(asked.wait(), 30)
        task.cancel()
        await asyncio.wait({task}, timeout=30)
        assert (await gate.runtime.permission.open_confirmations(), gate.runtime.calls.in_flight()) == ([], [])
    assert world.ran == []


async def test_each_sample_has_a_session_of_its_own_which_ends_with_it(
    harness: Harness, home: Path, tmp_path: Path
) -> None:
    world = World()
    outputs = []
    for text in ("done", None, "done", None):
        outputs.insert(
            0,
            ModelOutput.from_content("mockllm/model", text)
            if text
            else ModelOutput.for_tool_call("mockllm/model", "look", {"to": "ann"}),
        )
        outputs[0].usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    task = Task(dataset=[Sample(input="one"), Sample(input="two")], solver=[use_tools(tools_of(world)), generate()])
    (log,) = await eval_async(
        task,
        model=get_model("mockllm/model", custom_outputs=outputs),
        approval=[ApprovalPolicy(gate_approver(EFFECTS, workspace=str(tmp_path)), "*")],
        log_dir=str(harness.directory),
        max_samples=1,
    )
    assert log.status == "success"
    assert len(world.ran) == 2 and _open == {}
    assert len({record["session"] for record in records(home)}) == 2


async def test_the_policy_file_of_an_evaluation_names_the_approver(
    harness: Harness, home: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "approval.json"
    parameters = {"workspace": str(tmp_path), "effects": {"look": "read"}, "mode": "read"}
    settings.write_text(json.dumps({"approvers": [{"name": "callgate/gate", "tools": "*", **parameters}]}))
    world = World()
    for name, count in (("look", 1), ("send_mail", 1)):
        task = Task(dataset=[Sample(input=PROMPT)], solver=[use_tools(tools_of(world)), generate()])
        await evaluate(task, scripted(name, {"to": "ann"}), harness.directory, str(settings))
        assert len(world.ran) == count


@needs("bwrap")
async def test_commands_of_a_sample_run_in_our_sandbox(harness: Harness, home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    command = f"echo hi > inside; cat inside; echo no > {outside}/file; cat {home}/settings.toml; pwd"
    task = Task(dataset=[Sample(input=PROMPT)], solver=[use_tools([bash()]), generate()], sandbox="callgate")
    (told,) = await evaluate(task, scripted("bash", {"command": command}), harness.directory)
    assert "hi" in told and list(outside.iterdir()) == []
    assert [record["tool"] for record in records(home)] == ["sandbox_exec"]


@needs("bwrap")
async def test_the_sandbox_keeps_what_inspect_promises_of_one(harness: Harness, home: Path) -> None:
    found: dict[str, Any] = {}

    async def attempt(work: Any) -> Any:
        try:
            return await work
        except Exception as error:
            return type(error)

    @solver
    def probe() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            box = sandbox()
            await box.write_file("a/b.bin", b"\x00\xff")
            found["binary"] = await box.read_file("a/b.bin", text=False)
            await box.write_file("text", "é\r\n")
            found["text"] = await box.read_file("text")
            found["missing"] = await attempt(box.read_file("nope"))
            found["directory"] = await attempt(box.read_file("a"))
            found["escape"] = await attempt(box.read_file("/etc/passwd"))
            result = await box.exec(
                ["sh", "-c", "cat; echo err >&2; echo $X; exit 3"], input="in ", env={"X": "x"}, cwd="a"
            )
            found["exec"] = (result.success, result.returncode, result.stdout, result.stderr)
            found["unknown"] = (await box.exec(["no-such-program"])).success
            found["late"] = await attempt(box.exec(["sleep", "60"], timeout=1))
            found["user"] = await attempt(box.exec(["id"], user="root"))
            many = await asyncio.gather(*(box.exec(["cat"], input=str(n)) for n in range(6)))
            found["many"] = [each.stdout for each in many]
            return state

        return solve

    await evaluate(
        Task(dataset=[Sample(input=PROMPT)], solver=probe(), sandbox="callgate"), scripted("x", {}), harness.directory
    )
    assert issubclass(found.pop("late"), TimeoutError)
    assert found == {
        "binary": b"\x00\xff",
        "text": "é\r\n",
        "missing": FileNotFoundError,
        "directory": IsADirectoryError,
        "escape": PermissionError,
        "exec": (False, 3, "in x\n", "err\n"),
        "unknown": False,
        "user": SandboxUserUnsupportedError,
        "many": [str(n) for n in range(6)],
    }
