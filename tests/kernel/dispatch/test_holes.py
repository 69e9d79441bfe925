"""Ways around the road that were tried, and stay closed."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Gate, Outcome, Scope, tool
from callgate.core.calls import CallerKind
from callgate.core.content import TextBlock, ToolUseBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError, ToolErrorClass, ToolUserDenied
from callgate.core.ids import call_id
from callgate.core.sessions import Mode, Root, Session
from callgate.core.tools import ToolOutput
from callgate.dispatch.dispatcher import CallLimits
from callgate.dispatch.running import StopLimits
from callgate.policy.rules import Policy, PolicyMode, Rule, Setting
from callgate.tools.files import ReadFile, WriteFile
from callgate.tools.search import SearchText
from callgate.tools.shell import Shell
from tests.support import QUICK, Bench, FakeHuman, descriptors, make_tool

TOKEN = "ghp_" + "1degvI558ZTr18jAxdq4LfHj9SIA8LdfeJwB"


@pytest.mark.spec("T07")
async def test_a_rule_about_reading_does_not_open_a_protected_place_for_writing(tmp_path: Path) -> None:
    policy = Policy(rules=(Rule(decision=Outcome.ALLOW, tool="read_file", path=".git/**"),))
    bench = Bench(tmp_path, WriteFile, ReadFile, policy=policy, mode=Mode.WRITE)
    result = await bench.run("write_file", {"path": ".git/hooks/pre-commit", "content": "x"})
    assert result.error.reason == "protected_path"
    assert not (tmp_path / ".git").exists()


async def test_an_answer_for_good_to_amended_arguments_saves_the_amended_ones(tmp_path: Path) -> None:
    answer = Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS, arguments={"command": "echo safe"})
    bench = Bench(tmp_path, Shell, human=FakeHuman(answer))
    await bench.run("shell", {"command": "echo dangerous"})
    ((_, subject, _),) = bench.saved
    assert subject.checked.arguments["command"] == "echo safe"


@pytest.mark.spec("T02")
async def test_what_is_to_be_asked_about_cannot_be_read_by_searching_from_above(tmp_path: Path) -> None:
    (tmp_path / "sec").mkdir()
    (tmp_path / "sec/k").write_text("TOPSECRET")
    (tmp_path / "open").write_text("hello")
    policy = Policy(rules=(Rule(decision=Outcome.ASK, path="sec/**"),))
    human = FakeHuman(True)
    bench = Bench(tmp_path, ReadFile, SearchText, policy=policy, human=human)
    found = await bench.run("search_text", {"pattern": ".+"})
    assert "TOPSECRET" not in found.text
    assert (await bench.run("read_file", {"path": "sec/k"})).text == "TOPSECRET"
    assert len(human.questions) == 1


async def test_a_mode_that_sinks_while_a_person_thinks_holds_for_the_call(tmp_path: Path) -> None:
    async def human(question: Any) -> bool:
        bench.session.mode = Mode.NONE
        return True

    bench = Bench(tmp_path, WriteFile, human=human)
    assert (await bench.run("write_file", {"path": "a", "content": "b"})).error.reason == "mode_none"
    assert not (tmp_path / "a").exists()


async def test_a_yes_to_prompt_once_does_not_answer_what_a_rule_asks() -> None:
    from callgate.policy.commands import parse_pattern

    human = FakeHuman(True, False)
    policy = Policy(
        per_tool={"shell": Setting(PolicyMode.PROMPT_ONCE)},
        rules=(Rule(decision=Outcome.ASK, command=parse_pattern("rm *")),),
    )
    bench = Bench("/tmp", Shell, policy=policy, human=human)
    assert (await bench.run("shell", {"command": "true"})).ok
    assert (await bench.run("shell", {"command": "rm nothing"})).error.error_class is ToolErrorClass.USER_DENIED
    assert len(human.questions) == 2


async def test_modes_and_callers_may_be_given_as_words() -> None:
    rules = (Rule(decision=Outcome.DENY, caller=CallerKind.AGENT),)
    bench = Bench("/", make_tool(effect=SideEffects.READ), policy=Policy(rules=rules))
    assert not (await bench.run("probe", caller="agent")).ok
    silent = Session(workspace="/", mode="none")  # type: ignore[arg-type]
    assert (await bench.run("probe", session=silent)).error.reason == "mode_none"
    bench.session.mode = "none"
    assert (await bench.run("probe")).error.reason == "mode_none"


async def test_a_workspace_reached_by_a_link_is_the_workspace_of_the_rules(tmp_path: Path, home: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ws")
    (home / "settings.toml").write_text(f'[[policy.rules]]\ndecision = "deny"\nworkspace = "{tmp_path}/ws"\n')
    async with Gate(tmp_path / "link", home=home) as gate:
        assert (await gate.call("list_dir")).error.reason == "policy_deny"


async def test_a_trusted_directory_does_not_trust_where_its_links_lead(tmp_path: Path, home: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "mine/l").symlink_to(tmp_path / "out")
    (home / "settings.toml").write_text(f'[policy]\ntrusted_workspaces = ["{tmp_path}/mine"]\n')
    async with Gate(tmp_path / "mine/l", home=home) as gate:
        assert (await gate.call("write_file", {"path": "a", "content": "b"})).error.reason == "no_confirmer"


async def test_a_canceller_that_is_cancelled_itself_does_not_make_a_call_immortal() -> None:
    async def run(input: Any, context: Any) -> str:
        await asyncio.sleep(1000)
        return ""

    limits = CallLimits(stop=StopLimits(grace_s=0.2, abandon_s=2))
    bench = Bench("/", make_tool(run=run), limits=limits)
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.dispatcher.cancel_session_tools(bench.session.id), 0.02)
    async with asyncio.timeout(60):
        assert (await call).error.error_class is ToolErrorClass.CANCELLED


async def test_a_cancel_that_raises_cancelled_error_ends_the_call_all_the_same() -> None:
    def explode() -> bool:
        raise asyncio.CancelledError

    async def run(input: Any, context: Any) -> str:
        await asyncio.sleep(1000)
        return ""

    bench = Bench("/", make_tool(run=run, on_cancel=explode, timeout_s=0.02))
    async with asyncio.timeout(60):
        assert (await bench.run("probe")).error.error_class is ToolErrorClass.TIMEOUT


async def test_an_id_that_a_model_chose_is_nobody_else_s() -> None:
    release = asyncio.Event()

    async def run(input: Any, context: Any) -> str:
        await release.wait()
        return "first"

    bench = Bench("/", make_tool(run=run))
    use = ToolUseBlock(call_id(), "probe", {})
    first = asyncio.create_task(bench.dispatcher.dispatch(use, bench.session))
    await bench.recorder.seen("tool.called")
    elsewhere = Session(workspace="/")
    second = asyncio.create_task(bench.dispatcher.dispatch(use, elsewhere))
    third = await bench.dispatcher.dispatch(use, bench.session)
    assert third.is_error  # it is in flight in this session
    release.set()
    assert (await first).content == (await second).content == [TextBlock("first")]
    ends = [event.payload["call_id"] for event in bench.recorder.terminal]
    assert len(ends) == len(set(ends)) == 3


def odd(kind: str) -> Any:
    def run(input: Any, context: Any) -> Any:
        if kind == "metadata":
            return ToolOutput(content=[TextBlock("x")], metadata=None)  # type: ignore[arg-type]
        if kind == "reason":
            return ToolOutput(content=[TextBlock("x")], success=False, metadata={"reason": object()})
        if kind == "message":
            raise ToolError(12)  # type: ignore[arg-type]
        if kind == "error reason":
            raise ToolError("x", reason=object())  # type: ignore[arg-type]
        return ToolOutput(content=[TextBlock("x")], metadata={"diagnostics": 3})

    return run


@pytest.mark.spec("S4-19", "S4-20")
@pytest.mark.parametrize("kind", ["metadata", "reason", "message", "error reason", "diagnostics"])
async def test_whatever_a_tool_hands_over_there_is_one_end_and_one_record(kind: str) -> None:
    bench = Bench("/", make_tool(run=odd(kind)))
    await bench.run("probe")
    assert len(bench.recorder.terminal) == len(bench.recorder.records) == 1


@pytest.mark.parametrize("id", [None, 7, "", "x" * 129, "a\nb", "\ud800"])
async def test_an_id_that_is_none_gets_an_answer(id: Any) -> None:
    bench = Bench("/", make_tool())
    block = await bench.dispatcher.dispatch(ToolUseBlock(id, "probe", {}), bench.session)
    assert block.is_error
    assert len(bench.recorder.terminal) == len(bench.recorder.records) == 1


async def test_tools_that_call_tools_do_not_wait_for_their_own_slots() -> None:
    async def outer(input: Any, context: Any) -> str:
        await asyncio.sleep(0)
        return (await bench.run("inner")).text

    bench = Bench("/", make_tool("outer", run=outer, timeout_s=5), make_tool("inner"), limits=QUICK)
    async with asyncio.timeout(60):
        results = await asyncio.gather(*(bench.run("outer") for _ in range(4)))
    assert [result.text for result in results] == ["ok"] * 4


async def test_a_confirmer_that_is_cancelled_is_a_no() -> None:
    async def gone(question: Any) -> bool:
        raise asyncio.CancelledError

    bench = Bench("/", make_tool(effect=SideEffects.WRITE), human=gone)
    async with asyncio.timeout(60):
        assert (await bench.run("probe")).error.reason == "confirmer_failed"


async def test_time_before_the_first_wait_counts() -> None:
    import time

    async def run(input: Any, context: Any) -> str:
        time.sleep(0.1)
        await asyncio.sleep(0.1)
        return "late"

    bench = Bench("/", make_tool(run=run, timeout_s=0.12))
    assert (await bench.run("probe")).error.error_class is ToolErrorClass.TIMEOUT


async def test_a_tool_that_says_the_user_denied_it_was_allowed_all_the_same() -> None:
    def run(input: Any, context: Any) -> str:
        raise ToolUserDenied("says the tool")

    bench = Bench("/", make_tool(run=run))
    await bench.run("probe")
    assert bench.recorder.records[0].decision == "allow"


@pytest.mark.spec("T43")
async def test_a_secret_that_is_asked_about_reported_or_cut_in_two_is_in_no_event(tmp_path: Path) -> None:
    from callgate.policy.commands import parse_pattern

    policy = Policy(rules=(Rule(decision=Outcome.ASK, command=parse_pattern("printf *")),))
    half = len(TOKEN) // 2
    (tmp_path / "a").write_text(TOKEN[:half])
    (tmp_path / "b").write_text(TOKEN[half:] + " end")

    def broken(input: Any, context: Any) -> str:
        raise ToolError("x", reason=f"token={TOKEN}")

    bench = Bench(tmp_path, Shell, make_tool("broken", run=broken), policy=policy, human=FakeHuman(True, True))
    await bench.run("shell", {"command": f"printf {TOKEN}"})
    await bench.run("shell", {"command": "cat a; sleep 0.1; cat b"})
    await bench.run("broken")
    text = repr([event.payload for event in bench.recorder.events]) + repr(bench.recorder.records)
    for start in range(0, len(TOKEN) - 11):
        if TOKEN[start : start + 12] in text:
            pytest.fail(f"{TOKEN[start : start + 12]} of the token is left")


async def test_readers_that_nobody_holds_any_more_are_let_go(tmp_path: Path) -> None:
    @tool(side_effects="none")
    async def nothing() -> str:
        """Nothing."""
        return ""

    async with Gate(tmp_path, [nothing]) as gate:
        for _ in range(5):
            events = gate.events()
            await gate.call("nothing")
            async for _ in events:
                break
            del events
        for _ in range(10):  # the loop finishes abandoned iterations in its own time
            await asyncio.sleep(0)
            gc.collect()
        assert not gate._wired.bus._readers


async def test_a_gate_that_is_left_leaves_no_descriptor(tmp_path: Path) -> None:
    async def once() -> None:
        async with Gate(tmp_path, mode="write") as gate:
            await gate.call("write_file", {"path": "a", "content": "b"})

    await once()
    before = descriptors()
    for _ in range(5):
        await once()
    assert descriptors() <= before


async def test_a_pattern_that_cannot_be_read_spoils_neither_the_call_nor_the_home(tmp_path: Path, home: Path) -> None:
    async def confirm(question: Any) -> Answer:
        return Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS, pattern="git log 'unclosed")

    async with Gate(tmp_path, home=home, confirm=confirm) as gate:
        assert (await gate.call("shell", {"command": "true"})).ok
    Gate(tmp_path, home=home)


async def test_extra_roots_may_be_named_from_the_home_directory(tmp_path: Path, home: Path) -> None:
    more = Path(os.environ["HOME"]) / "more"
    more.mkdir()
    (more / "f").write_text("there")
    (home / "settings.toml").write_text('[workspace]\nextra_roots = [{ path = "~/more" }]\n')
    async with Gate(tmp_path, home=home) as gate:
        assert gate.session.extra_roots == (Root(str(more)),)
        assert (await gate.call("read_file", {"path": f"{more}/f"})).text == "there"


async def test_no_tool_writes_into_our_own_home(tmp_path: Path) -> None:
    home = tmp_path / "gatehome"
    async with Gate(tmp_path, home=home, mode="write") as gate:
        refused = await gate.call("write_file", {"path": "gatehome/rules.toml", "content": "x"})
        assert refused.error.reason == "protected_path"
        assert (await gate.call("write_file", {"path": "ok.txt", "content": "x"})).ok
        gone = await gate.call("delete_file", {"path": "gatehome/audit.jsonl"})
        assert gone.error.reason == "protected_path"
    assert not (home / "rules.toml").exists()


READS_OF_OUR_HOME: tuple[tuple[str, dict[str, str]], ...] = (
    ("read_file", {"path": "gatehome/keys"}),
    ("read_file", {"path": "link"}),
    ("read_file", {"path": "aside/keys"}),
    ("list_dir", {"path": "gatehome"}),
    ("search_text", {"pattern": "okapi", "path": "gatehome"}),
    ("file_get", {"path": "gatehome/keys"}),
    ("file_get", {"path": "server:gatehome/keys"}),
    ("file_get", {"path": "gatehome/keys", "encoding": "base64"}),
    ("file_upload", {"path": "gatehome/keys"}),
    ("search", {"query": "okapi", "scope": "gatehome"}),
    ("search", {"query": "okapi", "scope": "./aside"}),
)


@pytest.mark.spec("T02")
@pytest.mark.parametrize(("name", "arguments"), READS_OF_OUR_HOME)
async def test_no_tool_reads_our_own_home(name: str, arguments: dict[str, str], tmp_path: Path) -> None:
    home = _home_in_a_workspace(tmp_path)
    async with Gate(tmp_path, home=home, mode="write") as gate:
        refused = await gate.call(name, arguments)
        assert refused.error is not None and refused.error.reason == "protected_path"


@pytest.mark.spec("T02")
async def test_a_search_from_above_passes_our_home_by(tmp_path: Path) -> None:
    home = _home_in_a_workspace(tmp_path)
    async with Gate(tmp_path, home=home, mode="write") as gate:
        found = [
            (await gate.call(name, arguments)).text
            for name, arguments in (
                ("search_text", {"pattern": "okapi"}),
                ("search", {"query": "okapi"}),
                ("find_files", {"pattern": "**/*"}),
            )
        ]
    assert found == ["open.txt:1:an okapi", "open.txt:1: an okapi", "open.txt"]


@pytest.mark.spec("T02")
async def test_a_session_reads_in_our_home_what_its_own_calls_put_aside_and_no_other_does(tmp_path: Path) -> None:
    home = _home_in_a_workspace(tmp_path)
    (tmp_path / "long.txt").write_text("an okapi\n" * 500_000)
    async with Gate(tmp_path, home=home, mode="write") as gate:
        assert (await gate.call("shell", {"command": "cat long.txt"})).truncated
        (kept,) = (home / "artifacts").rglob("*-stdout.txt")
        assert (await gate.call("read_file", {"path": str(kept), "limit": 1})).ok
        other = await gate.call("read_file", {"path": str(home / "artifacts" / "other")})
        assert other.error is not None and other.error.reason == "protected_path"
    async with Gate(tmp_path, home=home, mode="write") as gate:
        refused = await gate.call("read_file", {"path": str(kept)})
        assert refused.error is not None and refused.error.reason == "protected_path"


def _home_in_a_workspace(workspace: Path) -> Path:
    home = workspace / "gatehome"
    home.mkdir(mode=0o700)
    (home / "keys").write_text("a secret okapi")
    (home / "artifacts").mkdir(mode=0o700)
    (home / "artifacts" / "other").write_text("of another session")
    (workspace / "link").symlink_to("gatehome/keys")
    (workspace / "aside").symlink_to("gatehome")
    (workspace / "open.txt").write_text("an okapi")
    return home


class Strange(BaseException):
    pass


async def test_a_tool_that_raises_something_strange_ends_its_own_call_only() -> None:
    def run(input: Any, context: Any) -> str:
        raise Strange

    bench = Bench("/", make_tool(run=run))
    assert (await bench.run("probe")).error.error_class is ToolErrorClass.EXECUTION_ERROR
