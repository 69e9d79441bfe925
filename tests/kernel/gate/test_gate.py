"""The library as its users meet it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import callgate
from callgate import Answer, Gate, Outcome, Scope, ToolContext, ToolUseBlock, tool
from callgate.config.load import SettingsError
from callgate.core.errors import ToolErrorClass, ToolNotFound
from tests.support import LIMIT_S


@tool(side_effects="read")
async def count_words(path: str, context: ToolContext) -> int:
    """Count the words of a file in the workspace."""
    return len(context.workspace_files.read(path).split())


@tool(side_effects="write")
def save(text: str) -> str:
    """Save a text."""
    return f"saved {text}"


@tool(side_effects="none", input="text")
async def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


async def test_the_example_of_the_design_works(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("one two three")
    async with Gate(workspace=tmp_path, tools=[count_words]) as gate:
        result = await gate.call("count_words", {"path": "README.md"})
    assert (result.ok, result.value, result.text, result.error) == (True, 3, "3", None)


async def test_without_a_confirmer_effects_are_refused_and_with_one_they_are_asked(tmp_path: Path) -> None:
    async with Gate(tmp_path, [save]) as gate:
        assert (await gate.call("save", {"text": "x"})).error.reason == "no_confirmer"
    asked = []

    async def confirm(question: Any) -> bool:
        asked.append(question.arguments)
        return True

    async with Gate(tmp_path, [save], confirm=confirm) as gate:
        assert (await gate.call("save", {"text": "x"})).value == "saved x"
    assert asked == [{"text": "x"}]


async def test_a_sync_function_that_outlives_its_limit_is_honest_about_it(tmp_path: Path) -> None:
    import threading

    release = threading.Event()

    @tool(side_effects="none", timeout_s=0.05)
    def block() -> str:
        """Block."""
        release.wait(60)
        return "late"

    async with Gate(tmp_path, [block]) as gate:
        result = await gate.call("block")
        release.set()
    assert result.error.error_class is ToolErrorClass.TIMEOUT
    assert result.error.details == {"stopped": False}


DIALECTS = {
    "anthropic": (
        [
            {"type": "text", "text": "hm"},
            {"type": "tool_use", "id": "a", "name": "count_words", "input": {"path": "f"}},
        ],
        lambda replies: (replies[0]["tool_use_id"], replies[0]["content"][0]["text"]),
    ),
    "openai": (
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "count_words", "arguments": '{"path": "f"}'}}
            ],
        },
        lambda replies: (replies[0]["tool_call_id"], replies[0]["content"]),
    ),
    "openai-responses": (
        [{"type": "function_call", "call_id": "a", "name": "count_words", "arguments": '{"path": "f"}'}],
        lambda replies: (replies[0]["call_id"], replies[0]["output"]),
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_it_drops_into_an_agent_loop_of_any_dialect(tmp_path: Path, dialect: Any) -> None:
    message, read = DIALECTS[dialect]
    (tmp_path / "f").write_text("a b")
    async with Gate(tmp_path, [count_words]) as gate:
        assert "count_words" in json.dumps(gate.definitions(dialect))
        assert read(await gate.respond(message, dialect)) == ("a", "2")


def test_the_definitions_of_an_mcp_server_are_among_the_shapes(tmp_path: Path) -> None:
    (definition,) = Gate(tmp_path, [count_words]).definitions("mcp")
    assert definition["annotations"]["readOnlyHint"] is True
    with pytest.raises(ValueError):
        Gate(tmp_path).definitions("cobol")  # type: ignore[arg-type]


async def test_arguments_that_are_no_json_get_an_answer_and_a_record(tmp_path: Path, home: Path) -> None:
    broken = {"id": "b", "type": "function", "function": {"name": "count_words", "arguments": '{"path": '}}
    good = {"id": "g", "type": "function", "function": {"name": "count_words", "arguments": '{"path": "f"}'}}
    (tmp_path / "f").write_text("a")
    async with Gate(tmp_path, [count_words], home=home) as gate:
        first, second = await gate.call_all({"tool_calls": [broken, good]})
    assert (first.error.error_class, second.value) == (ToolErrorClass.PARSE_ERROR, 1)
    assert len((home / "audit.jsonl").read_text().splitlines()) == 2


async def test_free_text_is_taken_by_a_tool_made_for_it(tmp_path: Path) -> None:
    async with Gate(tmp_path, [shout]) as gate:
        assert (await gate.call("shout", "hey")).value == "HEY"
        assert (await gate.call("shout", {"text": "hey"})).value == "HEY"


@pytest.mark.spec("S4-30")
async def test_call_all_keeps_the_order_of_the_uses(tmp_path: Path) -> None:
    ended = [asyncio.Event() for _ in range(3)]

    @tool(side_effects="none")
    async def last_first(n: int) -> int:
        """End after the next call."""
        if n < 2:
            await ended[n + 1].wait()
        ended[n].set()
        return n

    uses = [ToolUseBlock(str(n), "last_first", {"n": n}) for n in range(3)]
    async with asyncio.timeout(LIMIT_S), Gate(tmp_path, [last_first]) as gate:
        assert [r.value for r in await gate.call_all(uses)] == [0, 1, 2]


async def test_events_can_be_read_while_calls_run(tmp_path: Path) -> None:
    async with Gate(tmp_path, [shout]) as gate:
        with gate.events() as events:
            await gate.call("shout", "x")
            events.close()
            assert [event.type async for event in events] == ["tool.called", "tool.completed"]


async def test_a_saved_answer_is_a_rule_that_holds_from_then_on(tmp_path: Path, home: Path) -> None:
    answers = [Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS)]

    async def confirm(question: Any) -> Answer:
        return answers.pop()

    async with Gate(tmp_path, [save], confirm=confirm, home=home) as gate:
        assert (await gate.call("save", {"text": "x"})).ok
        assert (await gate.call("save", {"text": "x"})).ok
    async with Gate(tmp_path, [save], home=home) as later:
        assert (await later.call("save", {"text": "x"})).ok
        assert not (await later.call("save", {"text": "other"})).ok


def test_explain_says_what_would_happen_without_doing_it(tmp_path: Path) -> None:
    gate = Gate(tmp_path, [save, count_words])
    assert gate.explain("save", {"text": "x"}).outcome is Outcome.ASK
    assert gate.explain("count_words", {"path": "f"}).outcome is Outcome.ALLOW
    with pytest.raises(ToolNotFound):
        gate.explain("nope")


def test_broken_settings_keep_a_gate_from_opening(tmp_path: Path, home: Path) -> None:
    (home / "settings.toml").write_text("[policy")
    with pytest.raises(SettingsError):
        Gate(tmp_path, home=home)


async def test_settings_of_the_user_are_in_force(tmp_path: Path, home: Path) -> None:
    (home / "settings.toml").write_text('[policy.per_tool]\nsave = "auto"\n[tools]\ndisable = ["shout"]\n')
    async with Gate(tmp_path, [save, shout], home=home) as gate:
        assert (await gate.call("save", {"text": "x"})).ok
        assert (await gate.call("shout", "x")).error.error_class is ToolErrorClass.NOT_FOUND


async def test_leaving_the_gate_stops_what_runs(tmp_path: Path) -> None:
    started = asyncio.Event()

    @tool(side_effects="none")
    async def forever() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    async with Gate(tmp_path, [forever]) as gate:
        call = asyncio.create_task(gate.call("forever"))
        await started.wait()
    assert (await call).error.error_class is ToolErrorClass.SHUTTING_DOWN


@pytest.mark.spec("T43")
async def test_a_secret_put_anywhere_leaves_no_trace_in_record_log_or_events(
    tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "sk-" + "live" + "A1b2C3d4E5f6G7h8I9j0K1l2"
    monkeypatch.setenv("SERVICE_TOKEN", canary)

    @tool(side_effects="none")
    async def leak(api_key: str, headers: dict[str, Any], how: str, context: ToolContext) -> str:
        """Leak."""
        context.output(f"Authorization: Bearer {canary}\n")
        context.progress(f"token={canary}")
        if how == "raise":
            raise RuntimeError(f"https://x?api_key={canary}")
        return f"token: {canary}"

    seen: list[Any] = []
    arguments = {"api_key": canary, "headers": {"Authorization": f"Bearer {canary}"}}
    with caplog.at_level("DEBUG"):
        async with Gate(tmp_path, [leak, *callgate.BUILT_IN], home=home, mode="write") as gate:
            gate._wired.bus.listen(seen.append)
            await gate.call("leak", {**arguments, "how": "raise"})
            await gate.call("leak", {**arguments, "how": "return"})
            await gate.call("leak", {**arguments, "how": 1})
            await gate.call("shell", {"command": f"echo password={canary}; env"})
            await gate.call(f"nope {canary}", {})
    text = (home / "audit.jsonl").read_text() + caplog.text + repr([msgspec.to_builtins(e) for e in seen])
    assert len(seen) > 8
    assert canary not in text


def test_every_name_that_is_promised_can_be_imported() -> None:
    for name in callgate.__all__:
        assert getattr(callgate, name) is not None
    with pytest.raises(AttributeError):
        callgate.nonsense  # noqa: B018


SEED_NAMES = [
    "Tool",
    "ToolDefinition",
    "ToolContext",
    "ToolOutput",
    "TextBlock",
    "ImageBlock",
    "ContentBlock",
    "Session",
    "WorkspaceEscapeError",
    "ToolRegistrationError",
    "ToolDispatcher",
    "ToolUseBlock",
    "ToolResultBlock",
    "WorkspaceFileAPI",
    "ToolErrorClass",
    "SideEffects",
    "ToolError",
    "ToolNotFound",
    "ToolValidationError",
    "ToolPermissionDenied",
    "ToolUserDenied",
    "ToolTimeout",
    "ToolExecutionError",
    "ToolCancelled",
    "ConfirmationTimeout",
]


def test_the_names_of_the_seed_are_the_names_of_the_package() -> None:
    assert [name for name in SEED_NAMES if name not in callgate.__all__] == []


async def test_a_program_gets_the_changes_of_a_call(tmp_path: Path) -> None:
    async with Gate(workspace=tmp_path, mode="write") as gate:
        result = await gate.call("write_file", {"path": "a.txt", "content": "one\n"})
        found = await gate.changes(result.call_id)
        assert found is not None and found.count == 1
        assert [(each.path, each.kind, each.diff) for each in found.files] == [
            ("a.txt", "created", "--- /dev/null\n+++ a.txt\n@@ -0,0 +1 @@\n+one")
        ]
        assert await gate.changes("tu_none") is None
