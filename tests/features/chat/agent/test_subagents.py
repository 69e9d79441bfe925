"""Agents that work for another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Gate, Mode, Outcome, tool
from callgate.core.content import TextBlock, ToolResultBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.events import (
    CALLED,
    CHAT,
    COMPLETED,
    FAILED,
    PROGRESS,
    TURN_CANCELLED,
    TURN_COMPLETED,
    Event,
)
from callgate.core.models import ModelError, ModelErrorKind, Price, Prompt, Reply, Usage
from callgate.core.sessions import Root, Session
from callgate.core.stored import StoredSession
from callgate.dispatch.permission.confirmations import Confirmation, Scope
from callgate.features.chat.agent.tools import AT_ONCE, worker_of
from callgate.features.chat.agent.turns import TurnLimits
from callgate.sessions.shows import SPAWN_AGENT, TurnEnd
from callgate.storage.sqlite.store import SqliteStore
from tests.features.chat.agent.talks import LOG, TOOLS, PlayedModel, Step, call, calls, text, uses, yes


class Family:
    """A gate whose agent has sub-agents; all of them play the same model."""

    def __init__(self, gate: Gate, model: PlayedModel) -> None:
        self.gate = gate
        self.model = model
        self.events: list[Event] = []
        gate.runtime.sessions.listen(self.events.append)

    async def turn(self, prompt: str = "go") -> TurnEnd:
        return await self.gate.run(prompt, model=self.model)

    def of(self, *types: str) -> list[tuple[str, Event]]:
        """Events of these types, and whose: the parent's or a worker's."""
        own = self.gate.session.id
        some = [event for event in self.events if event.type in types]
        return [("parent" if event.session_id == own else "worker", event) for event in some]

    async def workers(self) -> list[StoredSession]:
        store = await self.gate.runtime.sessions.store()
        page = await store.list_sessions(workers=True)
        return [each for each in page.sessions if each.parent is not None]

    @property
    def result(self) -> ToolResultBlock:
        """What the parent's model was told last."""
        (block,) = self.model.prompts[-1].messages[-1].content
        assert isinstance(block, ToolResultBlock)
        return block

    @property
    def reported(self) -> str:
        return "".join(block.text for block in self.result.content if isinstance(block, TextBlock))


def spawn(id: str = "s", task: str = "look around", **more: Any) -> Reply:
    return uses((id, SPAWN_AGENT, {"task": task, **more}))


def told(prompt: Prompt) -> str:
    """What the user, or the parent, said first."""
    (first,) = [b.text for b in prompt.messages[0].content if isinstance(b, TextBlock)]
    return first


@asynccontextmanager
async def family(
    tmp_path: Path,
    *steps: Step,
    native: bool = True,
    mode: str = "ask",
    confirm: Any = yes,
    tools: Any = TOOLS,
) -> AsyncIterator[Family]:
    LOG.clear()
    (tmp_path / "workspace").mkdir(exist_ok=True)
    model = PlayedModel(steps, native=native)
    async with asyncio.timeout(60):
        async with Gate(tmp_path / "workspace", mode=mode, confirm=confirm, home=tmp_path / "home") as gate:
            for each in tools:
                gate.register(each)
            yield Family(gate, model)


@pytest.mark.spec("S2-72")
async def test_a_sub_agents_report_is_the_result_and_its_steps_are_the_progress(
    tmp_path: Path,
) -> None:
    look = uses(("x", "look", {"what": "the map"}), said="I look.")
    steps = [spawn(), look, text("Seen it all."), text("Done.")]
    async with family(tmp_path, *steps) as those:
        end = await those.turn()
        assert (end.stop, end.text) == ("end_turn", "Done.")
        assert (those.reported, those.result.is_error) == ("Seen it all.", False)
    progress = [(whose, event.payload["message"]) for whose, event in those.of(PROGRESS)]
    assert progress == [
        ("parent", "step 1: calls the model"),
        ("parent", "step 1: look what=the map"),
        ("parent", "step 2: calls the model"),
    ]
    said = [(whose, event.payload["content"]) for whose, event in those.of(CHAT)]
    assert said == [("worker", "I look."), ("worker", "Seen it all."), ("parent", "Done.")]
    assert LOG == ["look the map"]


async def test_nothing_that_a_sub_agent_says_is_shown(tmp_path: Path) -> None:
    shows: list[Any] = []
    steps = [spawn(), uses(("x", "look", {"what": "a"}), said="Within."), text("In."), text("Out.")]
    async with family(tmp_path, *steps) as those:
        await those.gate.run("go", model=those.model, screen=shows.append)
    shown = repr(shows)
    assert "Within." not in shown and "look" not in [show.use.name for show in shows if hasattr(show, "use")]
    assert "Out." in shown


@pytest.mark.spec("S2-27", "S2-74")
async def test_a_worker_has_a_session_of_its_own_that_no_list_shows(tmp_path: Path) -> None:
    task = "look around"
    async with family(tmp_path, spawn(title="Around"), text("Seen."), text("Done.")) as those:
        parent = those.gate.session
        parent.extra_roots = (Root(str(tmp_path / "more")),)
        await those.turn()
        (worker,) = await those.workers()
        store = await those.gate.runtime.sessions.store()
        listed = (await store.list_sessions()).sessions
        assert [each.id for each in listed] == [parent.id]
        said = await store.read_messages(worker.id, 0)
    assert (worker.parent, worker.title, worker.mode) == (parent.id, "Around", Mode.ASK)
    assert (worker.workspace, worker.extra_roots) == (parent.workspace, parent.extra_roots)
    assert (worker.owner, worker.turn_id) == (None, None)
    assert [each.body["role"] for each in said] == ["user", "assistant"]
    first, within, last = those.model.prompts
    assert told(within) == task
    offered = [{tool.name for tool in prompt.tools} for prompt in (first, within, last)]
    noting = {"memory_add", "memory_replace", "memory_consolidate", "memory_search"}
    assert offered[0] - offered[1] == {SPAWN_AGENT, "update_plan"} | noting
    assert offered[0] == offered[2]


@pytest.mark.spec("S2-74")
async def test_a_sub_agent_cannot_start_another(tmp_path: Path) -> None:
    steps = [spawn(), spawn("t"), text("I cannot."), text("Done.")]
    async with family(tmp_path, *steps) as those:
        await those.turn()
        assert len(await those.workers()) == 1
    ((whose, failed),) = those.of(FAILED)
    assert (whose, failed.payload["error_class"]) == ("worker", ToolErrorClass.NOT_FOUND)
    assert those.reported == "I cannot."


@pytest.mark.spec("S2-73")
async def test_who_answers_for_the_parent_is_asked_for_its_sub_agent(tmp_path: Path) -> None:
    asked: list[Confirmation] = []

    async def confirm(question: Confirmation) -> Answer:
        asked.append(question)
        return Answer(decision=Outcome.ALLOW, scope=Scope.SESSION)

    put = uses(("x", "put", {"what": "a"}))
    again = uses(("y", "put", {"what": "b"}))
    steps = [spawn(), put, again, text("Put."), text("Done.")]
    async with family(tmp_path, *steps, confirm=confirm) as those:
        await those.turn()
        (worker,) = await those.workers()
    assert LOG == ["put a", "put b"]
    # What is answered for a worker counts once: it is asked again.
    assert [question.session_id for question in asked] == [worker.id, worker.id]
    assert all("sub-agent" in question.why for question in asked)


@pytest.mark.parametrize("outcome", [Outcome.ALLOW, Outcome.DENY])
async def test_what_was_answered_for_the_parents_session_holds_for_its_sub_agents(
    tmp_path: Path, outcome: Outcome
) -> None:
    asked: list[Confirmation] = []

    async def confirm(question: Confirmation) -> Answer:
        asked.append(question)
        return Answer(decision=outcome, scope=Scope.SESSION)

    put, again = uses(("x", "put", {"what": "a"})), uses(("y", "put", {"what": "b"}))
    steps = [put, spawn(), again, text("Put."), text("Done.")]
    async with family(tmp_path, *steps, confirm=confirm) as those:
        await those.turn()
        assert [question.session_id for question in asked] == [those.gate.session.id]
    assert LOG == (["put a", "put b"] if outcome is Outcome.ALLOW else [])


@pytest.mark.parametrize(
    ("parent", "wanted", "has"),
    [
        ("write", None, "write"),
        ("write", "read", "read"),
        ("ask", "write", "ask"),
        ("read", "write", "read"),
        ("write", "none", "none"),
    ],
)
async def test_a_sub_agent_has_the_parents_mode_or_the_narrower_one_asked_for(
    tmp_path: Path, parent: str, wanted: str | None, has: str
) -> None:
    asking = spawn() if wanted is None else spawn(mode=wanted)
    steps = [asking, uses(("x", "put", {"what": "a"})), text("Tried."), text("Done.")]
    async with family(tmp_path, *steps, mode=parent) as those:
        await those.turn()
        (worker,) = await those.workers()
    assert worker.mode == has
    assert LOG == (["put a"] if has in ("ask", "write") else [])


async def test_a_parent_in_mode_none_starts_no_sub_agent(tmp_path: Path) -> None:
    async with family(tmp_path, spawn(), text("No."), mode="none") as those:
        await those.turn()
        assert await those.workers() == []
        assert those.result.is_error


async def test_a_sub_agent_is_narrowed_with_its_parent_while_it_works(tmp_path: Path) -> None:
    def narrow(prompt: Prompt) -> Reply:
        those.gate.session.mode = Mode.READ
        return uses(("y", "put", {"what": "b"}))

    def widen(prompt: Prompt) -> Reply:
        those.gate.session.mode = Mode.WRITE
        return uses(("z", "put", {"what": "c"}))

    steps: list[Step] = [spawn(), uses(("x", "put", {"what": "a"})), narrow, widen]
    async with family(tmp_path, *steps, text("Tried."), text("Done."), mode="write") as those:
        await those.turn()
    assert LOG == ["put a", "put c"]


async def test_a_question_is_of_no_use_once_the_parents_mode_is_narrower(tmp_path: Path) -> None:
    async def confirm(question: Confirmation) -> bool:
        those.gate.session.mode = Mode.READ
        return True

    steps = [spawn(), uses(("x", "put", {"what": "a"})), text("Tried."), text("Done.")]
    async with family(tmp_path, *steps, confirm=confirm) as those:
        await those.turn()
    assert LOG == []


def test_the_mode_of_a_worker_is_the_narrower_one_at_any_time() -> None:
    for own in Mode:
        for above in Mode:
            parent = Session(workspace="/", mode=Mode.WRITE)
            worker = worker_of(parent, mode=own)
            parent.mode = above
            assert worker.mode is min(own, above, key=list(Mode).index)


@pytest.mark.spec("S2-75")
@pytest.mark.parametrize("how", ["turn", "session"])
async def test_cancelling_the_parent_stops_the_sub_agent_first(tmp_path: Path, how: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool(side_effects="none")
    async def dwell() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    steps = [spawn(), uses(("x", "dwell", {})), text("Stopped.")]
    async with family(tmp_path, *steps, tools=[dwell]) as those:
        turn = asyncio.create_task(those.turn())
        await began.wait()
        if how == "turn":
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
        else:
            await those.gate.cancel()
            await turn
        assert ended.is_set()
        (worker,) = await those.workers()
        assert (worker.owner, worker.turn_id) == (None, None)
    ends = those.of(FAILED, TURN_CANCELLED, TURN_COMPLETED)
    assert [(whose, event.type) for whose, event in ends] == [
        ("worker", FAILED),
        ("worker", TURN_CANCELLED),
        ("parent", FAILED),
        ("parent", TURN_CANCELLED if how == "turn" else TURN_COMPLETED),
    ]


async def test_a_sub_agent_that_fails_is_a_failed_call_and_not_a_failed_turn(
    tmp_path: Path,
) -> None:
    gone = ModelError(ModelErrorKind.KEY, "No such key.")
    async with family(tmp_path, spawn(), gone, text("It failed.")) as those:
        end = await those.turn()
        assert (end.stop, end.text) == ("end_turn", "It failed.")
        assert those.result.is_error and "No such key." in those.reported
        (worker,) = await those.workers()
        assert worker.turn_id is None


async def test_at_most_four_work_at_once_and_the_others_wait_for_them(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)  # more calls at once than sub-agents
    (tmp_path / "home" / "settings.toml").write_text("[limits]\nconcurrency = 16\n")
    many, most, now = AT_ONCE + 3, 0, 0
    full = asyncio.Event()

    @tool(side_effects="none")
    async def dwell() -> str:
        nonlocal most, now
        now += 1
        most = max(most, now)
        if now == AT_ONCE:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        now -= 1
        return ""

    def play(prompt: Prompt) -> Reply:
        last = prompt.messages[-1].content[-1]
        if told(prompt) == "go":
            if isinstance(last, ToolResultBlock):
                return text("Done.")
            return uses(*((f"s{n}", SPAWN_AGENT, {"task": f"task {n}"}) for n in range(many)))
        return text("Seen.") if isinstance(last, ToolResultBlock) else uses(("x", "dwell", {}))

    async with family(tmp_path, *([play] * (2 + 2 * many)), tools=[dwell]) as those:
        await those.turn()
        assert len(await those.workers()) == many
    assert most == AT_ONCE
    assert [whose for whose, e in those.of(COMPLETED)].count("parent") == many


async def test_what_sub_agents_use_counts_for_the_turn(tmp_path: Path) -> None:
    steps = [spawn(), text("Seen.", input=100, output=10), text("Done.", input=1_000, output=1)]
    async with family(tmp_path, *steps) as those:
        those.model.price = Price(input=1.0, output=1.0)
        end = await those.turn()
        assert end.usage == Usage(input=1_100, output=11)
        assert end.cost_usd == pytest.approx(1_111 / 1_000_000)
        assert those.gate.session.turn_id is None


async def test_what_sub_agents_use_counts_against_the_limit_of_the_turn(tmp_path: Path) -> None:
    async with family(tmp_path, spawn(), text("Seen.", input=100)) as those:
        agent = those.gate._wired.open_agent(those.model)
        agent.limits = TurnLimits(tokens=100)
        end = await agent.turn(those.gate.session, "go")
    assert (end.stop, end.usage) == ("max_turn_requests", Usage(input=100))


async def test_no_sub_agent_begins_before_the_reply_that_asks_for_it_is_complete(
    tmp_path: Path,
) -> None:
    parts: list[str] = []

    def play(prompt: Prompt) -> Reply:
        parts.append("worker" if told(prompt) == "look" else "parent")
        return calls(call("end_turn"))

    first = calls(call(SPAWN_AGENT, task="look"), call("send_chat", content="x" * 500))
    async with family(tmp_path, first, play, play, native=False) as those:
        await those.turn()
        order = [e.type for whose, e in those.of(CHAT, CALLED) if whose == "parent"]
    assert order == [CHAT, CALLED]
    assert parts == ["worker", "parent"]


async def test_what_the_agent_itself_opens_is_no_doing_of_the_tool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def opening(prompt: Prompt) -> Reply:
        (tmp_path / "key").write_text("x")
        return text("Seen.")

    async with family(tmp_path, spawn(), opening, text("Done.")) as those:
        await those.turn()
        assert those.reported == "Seen."
    assert [each for each in caplog.records if each.name == "callgate.raw_open"] == []


async def test_without_an_agent_there_is_no_such_tool(tmp_path: Path) -> None:
    async with family(tmp_path, text("Hello.")) as those:
        result = await those.gate.call(SPAWN_AGENT, {"task": "look"})
        assert result.error is not None
        assert result.error.error_class is ToolErrorClass.NOT_FOUND
        names = {each["name"] for each in those.gate.definitions("anthropic")}
        assert names.isdisjoint({SPAWN_AGENT, "update_plan"})
        await those.turn()
        assert {tool.name for tool in those.model.prompts[0].tools} >= {SPAWN_AGENT, "update_plan"}
        assert not (await those.gate.call(SPAWN_AGENT, {"task": "look"})).ok


async def test_a_gate_with_tools_of_its_own_has_no_others(tmp_path: Path) -> None:
    model = PlayedModel([text("Hello.")], native=True)
    async with Gate(tmp_path, TOOLS, home=tmp_path / "home") as gate:
        await gate.run("go", model=model)
    offered = {tool.name for tool in model.prompts[0].tools} - {"say", "open_url"}
    assert offered == {"look", "put", "fail", "much"}


async def test_a_worker_that_sees_the_runtime_go_away_leaves_no_turn_behind(
    tmp_path: Path,
) -> None:
    def closing(prompt: Prompt) -> Reply:
        running = those.gate._wired.dispatcher.running
        running.closing = running.draining = True
        return uses(("x", "look", {"what": "a"}))

    async with family(tmp_path, spawn(), closing) as those:
        assert (await those.turn()).stop == "waiting"
        (worker,) = await those.workers()
        assert (worker.turn_id, worker.owner) == (None, None)
    assert LOG == []


async def test_when_the_runtime_goes_away_the_worker_is_closed_and_the_parent_goes_on_later(
    tmp_path: Path,
) -> None:
    asked = asyncio.Event()

    async def confirm(question: Confirmation) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    steps = [spawn(), uses(("x", "put", {"what": "a"}))]
    async with family(tmp_path, *steps, confirm=confirm) as those:
        turn = asyncio.create_task(those.turn())
        await asked.wait()
        session = those.gate.session
    assert (await turn).stop == "waiting"
    store = await SqliteStore.open(str(tmp_path / "home"))
    try:
        assert await store.open_confirmations() == []
        found = (await store.list_sessions(workers=True)).sessions
        turns = {each.parent is not None: each.turn_id for each in found}
        assert turns == {True: None, False: session.turn_id}
    finally:
        await store.close()
    model = PlayedModel([text("It was stopped.")], native=True)
    async with Gate(home=tmp_path / "home", session=session.id, confirm=yes) as gate:
        agent = gate._wired.open_agent(model)
        end = await agent.go_on(gate.session, {})
    assert end is not None and end.text == "It was stopped."
    assert LOG == []
