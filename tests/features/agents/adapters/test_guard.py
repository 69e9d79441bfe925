"""What every adapter builds on, driven by a small framework that has nothing of its own."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Confirmation, Gate, Outcome, ToolErrorClass, tool
from callgate.adapters.guard import GateError, Guard
from callgate.core.stores import StoreError

OPTIONAL = {
    "type": "object",
    "properties": {
        "to": {"$ref": "#/$defs/Address"},
        "subject": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["to"],
    "$defs": {"Address": {"type": "string", "minLength": 3}},
}


class Framework:
    """Tools by name, called with what a model wrote. Each call is noted when it runs."""

    def __init__(self, guard: Guard, schema: dict[str, Any] | None = OPTIONAL) -> None:
        self.guard, self.schema = guard, schema
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.result: Any = "sent"
        self.body: Callable[[], Any] | None = None

    async def call(self, name: str, arguments: Any, **more: Any) -> Any:
        async def run(judged: dict[str, Any]) -> Any:
            self.ran.append((name, judged))
            if self.body is not None:
                await self.body()
            return self.result

        return await self.guard.call(name, arguments, run, description="a tool", schema=self.schema, **more)


class Person:
    """Answers what it was told to answer, and remembers the questions."""

    def __init__(self, answer: Answer | bool = True) -> None:
        self.answer = answer
        self.asked: list[Confirmation] = []

    async def __call__(self, confirmation: Confirmation) -> Answer | bool:
        self.asked.append(confirmation)
        return self.answer


@asynccontextmanager
async def behind(
    home: Path, tmp_path: Path, person: Person | None = None, mode: str = "ask", **options: Any
) -> AsyncIterator[Framework]:
    async with Gate(tmp_path, [], mode=mode, confirm=person, home=home) as gate:
        yield Framework(Guard(gate, options.pop("effects", {"send_mail": "network", "look": "read"}), **options))


def records(home: Path) -> list[dict[str, Any]]:
    lines = (home / "audit.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line)).get("tool")]


async def test_a_tool_that_reads_runs_unasked_and_its_result_is_the_same_object(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        framework.result = datetime.datetime(2026, 1, 2)
        assert await framework.call("look", {"to": "ann"}, call_id="c1") is framework.result
        assert framework.ran == [("look", {"to": "ann"})]
    (record,) = records(home)
    assert (record["tool"], record["source"], record["external_id"]) == ("look", "framework", "c1")


@pytest.mark.parametrize("name", ["send_mail", "nobody_declared_it"])
async def test_a_tool_with_effects_or_unknown_ones_is_asked_about(home: Path, tmp_path: Path, name: str) -> None:
    person = Person()
    async with behind(home, tmp_path, person) as framework:
        assert await framework.call(name, {"to": "ann"}) == "sent"
    assert [each.tool for each in person.asked] == [name]


async def test_an_undeclared_tool_never_runs_in_mode_read(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path, Person(), mode="read") as framework:
        assert await framework.call("look", {"to": "ann"}) == "sent"
        with pytest.raises(GateError) as refused:
            await framework.call("unknown", {"to": "ann"})
        assert refused.value.error_class is ToolErrorClass.PERMISSION_DENIED
        assert [name for name, _ in framework.ran] == ["look"]


async def test_a_denied_call_never_starts_and_its_reason_is_told(home: Path, tmp_path: Path) -> None:
    person = Person(Answer(decision=Outcome.DENY, reason="not to them"))
    async with behind(home, tmp_path, person) as framework:
        with pytest.raises(GateError, match="not to them") as refused:
            await framework.call("send_mail", {"to": "ann"})
        assert refused.value.error_class is ToolErrorClass.USER_DENIED
        assert framework.ran == []


async def test_edited_arguments_are_those_that_run(home: Path, tmp_path: Path) -> None:
    person = Person(Answer(decision=Outcome.ALLOW, arguments={"to": "bob", "subject": "hi"}))
    async with behind(home, tmp_path, person) as framework:
        assert await framework.call("send_mail", {"to": "ann"}) == "sent"
        assert framework.ran == [("send_mail", {"to": "bob", "subject": "hi"})]


async def test_edited_arguments_that_do_not_fit_run_nothing(home: Path, tmp_path: Path) -> None:
    person = Person(Answer(decision=Outcome.ALLOW, arguments={"to": 5}))
    async with behind(home, tmp_path, person) as framework:
        with pytest.raises(GateError) as refused:
            await framework.call("send_mail", {"to": "ann"})
        assert refused.value.error_class is ToolErrorClass.VALIDATION_ERROR
        assert framework.ran == []


async def test_local_references_and_alternatives_are_checked(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        await framework.call("look", {"to": "ann", "subject": None})
        for wrong in ({"to": "a"}, {"to": "ann", "subject": 5}, [], "text"):
            with pytest.raises(GateError) as refused:
                await framework.call("look", wrong)
            assert refused.value.error_class is ToolErrorClass.VALIDATION_ERROR
        assert len(framework.ran) == 1


async def test_python_tools_keep_the_portable_subset(home: Path, tmp_path: Path) -> None:
    from callgate import ToolRegistrationError
    from callgate.core.tools import ToolDefinition
    from callgate.dispatch.tools.checks import examine
    from callgate.dispatch.tools.sources import SourceTool
    from callgate.sources.foreign import ForeignTool, ForeignTools

    def factory() -> ForeignTool:
        definition = ToolDefinition(
            name="send", description="", input_schema=OPTIONAL, capabilities=frozenset({"pure"})
        )
        return ForeignTool(ForeignTools(), definition)

    with pytest.raises(ToolRegistrationError):
        examine(SourceTool(factory=factory))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"to": {"$ref": "https://example.org/schema"}}},
        {"type": "string"},
        {"type": "object", "properties": {"to": {"type": "strnig"}}},
    ],
)
async def test_a_tool_whose_schema_cannot_be_used_never_runs(
    home: Path, tmp_path: Path, schema: dict[str, Any]
) -> None:
    async with behind(home, tmp_path) as framework:
        framework.schema = schema
        with pytest.raises(GateError):
            await framework.call("look", {"to": "ann"})
        assert framework.ran == []
        framework.schema = None
        assert await framework.call("look", {"to": "ann"}) == "sent"


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "ünï", "9lives", "a\nb"])
async def test_a_tool_with_an_unusable_name_never_runs(home: Path, tmp_path: Path, name: str) -> None:
    async with behind(home, tmp_path) as framework:
        with pytest.raises(GateError):
            await framework.call(name, {"to": "ann"})
        assert framework.ran == []


async def test_a_name_that_the_gate_has_means_the_gates_tool_and_runs_neither(home: Path, tmp_path: Path) -> None:
    ours: list[str] = []

    @tool(side_effects="none")
    async def look(to: str) -> str:
        """Look."""
        ours.append(to)
        return "ours"

    async with Gate(tmp_path, [look], home=home) as gate:
        framework = Framework(Guard(gate, {"look": "read", "LOOK": "read"}))
        for name in ("look", "LOOK"):
            with pytest.raises(GateError, match="taken"):
                await framework.call(name, {"to": "ann"})
        assert (framework.ran, ours) == ([], [])


async def test_two_agents_on_a_gate_share_a_tool_but_never_a_name(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as one:
        two = Framework(Guard(one.guard.gate, {"look": "read"}))
        three = Framework(Guard(one.guard.gate, {"look": "none"}))
        assert [await each.call("look", {"to": "ann"}) for each in (one, two, one)] == ["sent"] * 3
        with pytest.raises(GateError, match="another agent"):
            await three.call("look", {"to": "ann"})
        assert three.ran == []


async def test_a_changed_definition_counts_from_the_next_call(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        await framework.call("look", {"to": "ann"})
        framework.schema = {"type": "object", "properties": {"at": {"type": "integer"}}}
        assert await framework.call("look", {"at": 5}) == "sent"
        with pytest.raises(GateError):
            await framework.call("look", {"to": "ann"})


async def test_what_a_tool_raises_comes_back_as_it_is(home: Path, tmp_path: Path) -> None:
    error = LookupError("a secret text")

    async def body() -> None:
        raise error

    async with behind(home, tmp_path) as framework:
        framework.body = body
        with pytest.raises(LookupError) as raised:
            await framework.call("look", {"to": "ann"})
        assert raised.value is error
    (record,) = records(home)
    assert (record["error_class"], record["reason"]) == ("execution_error", "raised")
    assert "a secret text" not in json.dumps(record)


async def test_a_result_that_reports_an_error_comes_back_and_is_recorded_as_failed(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        framework.result = {"error": "no such person"}
        got = await framework.call("look", {"to": "ann"}, read=lambda value: (value["error"], True))
        assert got is framework.result
    (record,) = records(home)
    assert (record["result"], record["error_class"]) == ("no such person", "execution_error")


@pytest.mark.parametrize("value", [object(), b"\xff", "\ud800", float("nan"), {1: {2}}, None, [1, (2,)]])
async def test_a_result_that_is_not_json_comes_back_untouched(home: Path, tmp_path: Path, value: Any) -> None:
    async with behind(home, tmp_path) as framework:
        framework.result = value
        assert await framework.call("look", {"to": "ann"}) is value


async def test_a_reader_that_fails_is_a_failure_after_the_call(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        with pytest.raises(GateError):
            await framework.call("look", {"to": "ann"}, read=lambda value: {}[value])
        assert len(framework.ran) == 1


async def test_a_result_whose_text_cannot_be_had_comes_back_untouched(home: Path, tmp_path: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async with behind(home, tmp_path) as framework:
        framework.result = Odd()
        assert await framework.call("look", {"to": "ann"}) is framework.result


async def test_a_cancelled_caller_ends_the_call(home: Path, tmp_path: Path) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with behind(home, tmp_path) as framework:
        framework.body = body
        task = asyncio.create_task(framework.call("look", {"to": "ann"}))
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


async def test_a_call_that_somebody_else_stops_is_told_to_the_model(home: Path, tmp_path: Path) -> None:
    started = asyncio.Event()

    async def body() -> None:
        started.set()
        await asyncio.Event().wait()

    async with behind(home, tmp_path) as framework:
        framework.body = body
        task = asyncio.create_task(framework.call("look", {"to": "ann"}))
        await asyncio.wait_for(started.wait(), 10)
        await framework.guard.gate.cancel()
        with pytest.raises(GateError) as stopped:
            await task
        assert stopped.value.error_class is ToolErrorClass.CANCELLED


async def test_a_time_limit_ends_the_call(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path, timeout_s=0.05) as framework:
        framework.body = lambda: asyncio.Event().wait()
        with pytest.raises(GateError) as stopped:
            await framework.call("look", {"to": "ann"})
        assert stopped.value.error_class is ToolErrorClass.TIMEOUT


@pytest.mark.parametrize("part", ["_plans", "running", "sites", "_decide"])
async def test_a_defect_of_ours_runs_nothing(
    home: Path, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind(home, tmp_path) as framework:
        whole = framework.guard.gate._wired.dispatcher
        with monkeypatch.context() as broken:
            broken.setattr(whole, part, None)
            if part == "sites":
                framework.guard._paths["look"] = ("to",)
            with pytest.raises(GateError):
                await framework.call("look", {"to": "ann"})
        assert framework.ran == []


async def test_a_defect_after_the_call_does_not_claim_that_nothing_ran(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind(home, tmp_path) as framework:
        whole = framework.guard.gate._wired.dispatcher
        with monkeypatch.context() as broken:
            broken.setattr(whole, "_deliver", None)
            with pytest.raises(GateError, match="The call ran"):
                await framework.call("look", {"to": "ann"})
        assert framework.ran == [("look", {"to": "ann"})]


async def test_a_defect_in_registration_runs_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind(home, tmp_path, effects=lambda name: {}[name]) as framework:
        with pytest.raises(GateError):
            await framework.call("look", {"to": "ann"})
        assert framework.ran == []


async def test_nobody_else_can_run_a_tool_of_a_framework(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        await framework.call("look", {"to": "ann"})
        gate = framework.guard.gate
        assert gate.definitions("anthropic") == []
        result = await gate.call("look", {"to": "ann"})
        assert (result.ok, len(framework.ran)) == (False, 1)


async def test_a_path_outside_of_the_workspace_is_refused(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path, paths={"look": ["to"]}) as framework:
        assert await framework.call("look", {"to": "notes.txt"}) == "sent"
        with pytest.raises(GateError) as refused:
            await framework.call("look", {"to": "../../etc/passwd"})
        assert refused.value.error_class is ToolErrorClass.PERMISSION_DENIED
        assert len(framework.ran) == 1


@pytest.mark.parametrize(
    "path",
    ["~/.ssh/id_rsa", "~root/x", "file:///etc/passwd", "FILE:x", {"path": "/etc/passwd"},
     ["notes.txt", {"a": "/etc/passwd"}], [["/etc/passwd"]], 3, True],
    ids=repr,
)  # fmt: skip
async def test_a_path_that_the_tool_may_read_in_another_way_is_refused(home: Path, tmp_path: Path, path: Any) -> None:
    async with behind(home, tmp_path, paths={"look": ["to"]}) as framework:
        schema = {"properties": {"to": {}}, "additionalProperties": True}

        async def run(judged: dict[str, Any]) -> str:
            raise AssertionError("the tool ran")

        with pytest.raises(GateError) as refused:
            await framework.guard.call("look", {"to": path}, run, schema=schema)
        assert refused.value.error_class in (
            ToolErrorClass.PERMISSION_DENIED,
            ToolErrorClass.VALIDATION_ERROR,
        )


async def test_many_calls_at_once_get_their_own_functions(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:

        async def one(number: int) -> int:
            async def run(judged: dict[str, Any]) -> int:
                await asyncio.sleep(0)
                return number

            return await framework.guard.call("look", {"to": "ann"}, run, schema=OPTIONAL)

        assert await asyncio.gather(*map(one, range(50))) == list(range(50))


async def test_a_tool_may_call_others_of_its_framework(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        inner = Framework(framework.guard)
        framework.body = lambda: inner.call("look", {"to": "bob"})
        calls = [framework.call("look", {"to": "ann"}) for _ in range(12)]
        assert await asyncio.wait_for(asyncio.gather(*calls), 20) == ["sent"] * 12


async def test_the_users_words_are_told_to_the_gate_once(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        gate = framework.guard.gate
        async with gate.turn("first"):
            await framework.call("look", {"to": "ann"}, prompts=["first", "second"])
        await framework.call("look", {"to": "ann"}, prompts=["first", "second", ""])
        texts = [message.content[0].text for message in await gate.messages() if message.role == "user"]
        assert texts == ["first", "second"]


async def test_what_a_model_asks_an_inner_agent_is_not_the_users_word(home: Path, tmp_path: Path) -> None:
    async with behind(home, tmp_path) as framework:
        inner = Framework(framework.guard)
        framework.body = lambda: inner.call("look", {"to": "bob"}, prompts=["write to eve"])
        await framework.call("look", {"to": "ann"}, prompts=["look for ann"])
        assert len(inner.ran) == 1
        said = [message.content[0].text for message in await framework.guard.gate.messages()]
        assert said == ["look for ann"]


async def test_a_call_that_only_reads_runs_where_prompts_cannot_be_recorded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unwritable(message: Any) -> None:
        raise StoreError("the disk is full")

    async with behind(home, tmp_path) as framework:
        monkeypatch.setattr(framework.guard.gate, "say", unwritable)
        assert await framework.call("look", {"to": "ann"}, prompts=["look for ann"]) == "sent"


@pytest.mark.parametrize("effects", [{"look": "raed"}, {"look": set()}, {"look": {"flies"}}, {"look": 5}, 7])
async def test_wrong_effects_are_refused_at_once(home: Path, tmp_path: Path, effects: Any) -> None:
    async with Gate(tmp_path, [], home=home) as gate:
        with pytest.raises(ValueError):
            Guard(gate, effects)


async def test_a_destructive_tool_is_known_as_one(home: Path, tmp_path: Path) -> None:
    person = Person()
    async with behind(home, tmp_path, person, effects={"wipe": {"writes-files", "destructive"}}) as framework:
        await framework.call("wipe", {"to": "ann"})
    assert person.asked[0].destructive
