"""What was worked out for a tool counts for its next call only as long as nothing it rests on changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.config import policies
from callgate.config.home import Home
from callgate.config.trust import distrust, trust
from callgate.core.calls import ToolResult
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, Session
from callgate.dispatch.dispatcher import CallLimits
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.dispatch.tools.sources import FixedTools, ForSession, Lazy
from callgate.policy.rules import Outcome
from tests.support import Bench, make_tool

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
DENY = '[policy.per_tool]\nprobe = "deny"\n'


def ended(result: ToolResult) -> str:
    """How: by the class of its error and the reason, or `ok`."""
    return "ok" if result.error is None else f"{result.error.error_class} {result.error.reason}"


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """One whose tool was called twice: with the second call nothing is worked out any more."""
    made = Bench("/", make_tool(run=lambda input, context: "first"))
    for _ in range(2):
        assert (await made.run("probe")).text == "first"
    yield made
    await made.dispatcher.close()


@pytest.fixture
async def gate(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    """The same with settings, which are looked at for each call."""
    monkeypatch.setattr(policies, "LOOK_EVERY_S", 0.0)
    async with Gate(tmp_path, [make_tool()]) as made:
        for _ in range(2):
            assert (await made.call("probe")).ok
        yield made


async def test_a_tool_that_was_removed_is_not_found(bench: Bench) -> None:
    bench.dispatcher.unregister("probe")
    assert ended(await bench.run("probe")) == "not_found None"


async def test_a_tool_of_the_same_name_takes_its_place(bench: Bench) -> None:
    bench.dispatcher.unregister("probe")
    bench.dispatcher.register(make_tool(schema=NUMBER, run=lambda input, context: f"{input['n']}"))
    assert ended(await bench.run("probe")) == "validation_error None"
    assert (await bench.run("probe", {"n": 2})).text == "2"


async def test_a_tool_of_the_same_name_with_effects_is_asked_about(bench: Bench) -> None:
    bench.dispatcher.unregister("probe")
    bench.dispatcher.register(make_tool(effect=SideEffects.WRITE))
    assert ended(await bench.run("probe")) == "permission_denied no_confirmer"


async def test_a_tool_that_is_disabled_is_not_found_until_it_is_not(bench: Bench) -> None:
    bench.dispatcher.registry.disable_only(["probe"], "by a test")
    assert ended(await bench.run("probe")) == "not_found None"
    bench.dispatcher.registry.disable_only([], "by a test")
    assert (await bench.run("probe")).ok


async def test_another_spelling_means_another_tool_once_that_has_the_name(bench: Bench) -> None:
    bench.dispatcher.unregister("probe")
    bench.dispatcher.register(make_tool("other", aliases=("probe",), run=lambda input, context: "second"))
    assert (await bench.run("probe")).text == "second"


async def test_a_tool_of_everyone_goes_before_one_of_the_session(bench: Bench) -> None:
    registry, session = bench.dispatcher.registry, bench.session
    mine = ForSession(FixedTools([make_tool("mine", run=lambda input, context: "the session's")]), session.id)
    registry.add(mine)
    for _ in range(2):
        assert (await bench.run("mine")).text == "the session's"
    other = Session(workspace="/")
    assert ended(await bench.run("mine", session=other)) == "not_found None"
    registry.remove(mine)
    registry.register(make_tool("mine", run=lambda input, context: "everyone's"))
    assert (await bench.run("mine")).text == "everyone's"


async def test_who_may_see_a_tool_is_looked_up_for_each_call(bench: Bench) -> None:
    bench.dispatcher.register(make_tool("tagged", required_tags=frozenset({"x"})))
    bench.dispatcher.register(make_tool("hidden", hidden_from_workers=True))
    session = Session(workspace="/", tags=frozenset({"x"}))
    for name in ("tagged", "hidden"):
        assert (await bench.run(name, session=session)).ok
    session.tags, session.is_worker = frozenset(), True
    for name in ("tagged", "hidden"):
        assert ended(await bench.run(name, session=session)) == "not_found None"


async def test_a_tool_that_is_loaded_with_its_first_call_is_planned_with_the_next(bench: Bench) -> None:
    bench.dispatcher.registry.add(Lazy(["late"], lambda: FixedTools([make_tool("late")])))
    for _ in range(3):
        assert (await bench.run("late")).ok
    assert (await bench.run("probe")).text == "first"


@pytest.mark.parametrize("given", [Mode.NONE, "none"])
async def test_a_mode_counts_with_the_next_call(bench: Bench, given: Any) -> None:
    bench.session.mode = given
    assert ended(await bench.run("probe")) == "permission_denied mode_none"
    bench.session.mode = Mode.READ
    assert (await bench.run("probe")).ok


async def test_another_session_has_its_own_mode(bench: Bench) -> None:
    closed = Session(workspace="/", mode=Mode.NONE)
    assert ended(await bench.run("probe", session=closed)) == "permission_denied mode_none"
    assert (await bench.run("probe")).ok


async def test_an_answer_for_the_session_ends_with_the_session() -> None:
    asked: list[str] = []

    async def human(question: Confirmation) -> Answer:
        asked.append(question.tool)
        return Answer(decision=Outcome.ALLOW, scope=Scope.SESSION)

    bench = Bench("/", make_tool("save", SideEffects.WRITE), human=human)
    for _ in range(3):
        assert (await bench.run("save")).ok
    assert asked == ["save"]
    await bench.dispatcher.close_session(bench.session)
    assert (await bench.run("save")).ok
    assert asked == ["save", "save"]
    await bench.dispatcher.close()


async def test_a_call_has_its_own_time_limit_below_that_of_the_runtime() -> None:
    limits: list[Any] = []

    def run(input: Any, context: Any) -> str:
        (running,) = bench.dispatcher.running
        limits.append(running.limit_s)
        return "ok"

    bench = Bench("/", make_tool(run=run, timeout_s=7.0), limits=CallLimits(max_timeout_s=20.0))
    for timeout_s in (None, 3.0, None, 100.0):
        assert (await bench.run("probe", timeout_s=timeout_s)).ok
    assert limits == [7.0, 3.0, 7.0, 20.0]
    assert ended(await bench.run("probe", timeout_s=0.0)) == "validation_error None"
    await bench.dispatcher.close()


async def test_settings_count_with_the_next_call(gate: Gate, home: Path) -> None:
    (home / "settings.toml").write_text(DENY)
    assert ended(await gate.call("probe")) == "permission_denied policy_deny"
    (home / "settings.toml").write_text("")
    assert (await gate.call("probe")).ok


async def test_a_rule_counts_with_the_next_call(gate: Gate, home: Path) -> None:
    (home / "settings.toml").write_text('[[policy.rules]]\ndecision = "deny"\ntool = "probe"\n')
    assert ended(await gate.call("probe")) == "permission_denied policy_deny"
    (home / "settings.toml").unlink()
    assert (await gate.call("probe")).ok


async def test_a_tool_that_the_settings_disable_is_not_found(gate: Gate, home: Path) -> None:
    (home / "settings.toml").write_text('[tools]\ndisable = ["probe"]\n')
    await gate.call("probe")  # which looks at the settings
    assert ended(await gate.call("probe")) == "not_found None"


async def test_settings_that_cannot_be_used_refuse_effects_and_nothing_else(gate: Gate, home: Path) -> None:
    gate.register(make_tool("save", SideEffects.WRITE))
    gate.session.mode = Mode.WRITE
    assert (await gate.call("save")).ok
    (home / "settings.toml").write_text("[policy\n")
    assert ended(await gate.call("save")) == "permission_denied settings_invalid"
    assert (await gate.call("probe")).ok


async def test_trust_counts_with_the_next_call(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / ".callgate").mkdir()
    (tmp_path / ".callgate" / "settings.toml").write_text(DENY)
    assert (await gate.call("probe")).ok  # nobody trusts it
    trust(Home.from_environment(), str(tmp_path))
    assert ended(await gate.call("probe")) == "permission_denied policy_deny"
    distrust(Home.from_environment(), str(tmp_path))
    assert (await gate.call("probe")).ok


async def test_nothing_runs_once_the_runtime_is_closed(gate: Gate) -> None:
    await gate.runtime.close()
    assert ended(await gate.call("probe")) == "shutting_down None"
