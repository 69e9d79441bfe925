"""What an MCP server asks back goes to a person, each time, and never past one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.calls import ToolCall
from callgate.core.sessions import Mode
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.policy.rules import Outcome
from tests.features.mcp.client.labs import Lab, refusal, stdio
from tests.support import FakeHuman


@pytest.fixture(params=[(), ("--modern",)], ids=["initialize", "discover"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with Lab(tmp_path, *request.param) as lab:
        yield lab


def filled(question: Confirmation, **content: Any) -> Answer:
    return Answer(decision=Outcome.ALLOW, arguments={**question.arguments, "content": content})


async def answered(lab: Lab, answer: Any, tool: str = "form", **more: Any) -> Any:
    """What a server is told where a person says something."""
    with lab.wired.runtime.permission.attach(answer):
        return json.loads((await lab.call(tool, **more)).text)


async def test_a_form_is_filled_in_by_a_person(lab: Lab) -> None:
    seen: list[Confirmation] = []

    async def human(question: Confirmation) -> Answer:
        seen.append(question)
        return filled(question, name="Ada", sure=False)

    assert await answered(lab, human) == {"action": "accept", "content": {"name": "Ada", "sure": False}}
    (question,) = seen
    assert (question.tool, question.arguments["server"], question.arguments["message"]) == (
        "mcp_form",
        "odd",
        "Who is it?",
    )
    assert question.session_id == lab.session.id


async def test_a_no_declines_and_a_form_that_was_not_filled_in_cancels(lab: Lab) -> None:
    assert await answered(lab, FakeHuman(False)) == {"action": "decline"}
    assert await answered(lab, FakeHuman(True)) == {"action": "cancel"}


async def test_where_nobody_can_be_asked_the_server_is_told_no(lab: Lab) -> None:
    assert json.loads((await lab.call("form")).text) == {"action": "decline"}


async def test_no_mode_and_no_earlier_answer_speaks_for_a_person(lab: Lab) -> None:
    session = lab.other_session(mode=Mode.WRITE)
    asked = 0

    async def human(question: Confirmation) -> Answer:
        nonlocal asked
        asked += 1
        arguments = {**question.arguments, "content": {"name": "Ada"}}
        return Answer(decision=Outcome.ALLOW, scope=Scope.SESSION, arguments=arguments)

    for _ in range(2):
        assert (await answered(lab, human, session=session))["action"] == "accept"
    assert asked == 2


async def test_nobody_else_can_put_such_a_question(lab: Lab) -> None:
    for tool in ("mcp_form", "mcp_sample"):
        call = ToolCall(tool=tool, arguments={"server": "s", "message": "m"}, session=lab.session)
        assert refusal(await lab.wired.runtime.calls.run(call)) == ("not_found", None)
        assert tool not in [each.name for each in lab.wired.runtime.tools.listed(lab.session)]


async def test_four_calls_that_all_ask_do_not_wait_for_each_other(lab: Lab) -> None:
    async def human(question: Confirmation) -> Answer:
        return filled(question, name="Ada")

    with lab.wired.runtime.permission.attach(human):
        async with asyncio.timeout(60):
            results = await asyncio.gather(*(lab.call("form") for _ in range(4)))
    assert [json.loads(each.text)["action"] for each in results] == ["accept"] * 4


# --- in the older generation alone ----------------------------------------------------------------


async def test_an_address_is_shown_and_opened_by_nobody(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        human = FakeHuman(True, True)
        assert await answered(lab, human, "link") == {"action": "accept"}
        assert [each.arguments["url"] for each in human.questions] == ["https://example.com/x"]
        refused = await answered(lab, human, "link", url="file:///etc/passwd")
        assert refused["error"]["code"] == -32600 and len(human.questions) == 1


@pytest.mark.spec("T31")
async def test_of_two_sessions_that_call_neither_is_asked_for_the_other(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        human = FakeHuman(True)
        with lab.wired.runtime.permission.attach(human):
            hanging = asyncio.create_task(lab.call("hang", session=lab.other_session()))
            await lab.seen("tool.progress")
            said = json.loads((await lab.call("form")).text)
            assert (said["error"]["code"], human.questions) == (-32600, [])
        hanging.cancel()
        await asyncio.wait({hanging})


async def test_a_model_is_lent_only_where_the_settings_say_so(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        assert "error" in await answered(lab, FakeHuman(), "sample")


async def test_a_lent_model_is_asked_after_a_yes_to_the_very_prompt(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[[replies]]\ntext = "Hello."\n')
    settings = f'model = "scripted/{script}"\n[mcp.odd]\n{stdio()}effect = "read"\nsampling = true\n'
    async with Lab(tmp_path, settings=settings) as lab:
        human = FakeHuman(False, True)
        assert "error" in await answered(lab, human, "sample")
        said = await answered(lab, human, "sample")
        assert (said["role"], said["content"]) == ("assistant", {"type": "text", "text": "Hello."})
        assert [each.arguments["messages"] for each in human.questions] == [[{"role": "user", "text": "Hi?"}]] * 2
