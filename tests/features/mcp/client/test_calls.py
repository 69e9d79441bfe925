"""Calls of an MCP server's tools through the dispatcher, in both generations of the protocol."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.core.content import ImageBlock, ImageSource, TextBlock
from callgate.core.errors import ToolHostUnavailable
from callgate.features.mcp.client.servers import ServerLocation
from callgate.sources.lifecycle import Health
from tests.features.mcp.client.labs import Lab, refusal, stdio


@pytest.fixture(params=[(), ("--modern",)], ids=["initialize", "discover"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with Lab(tmp_path, *request.param) as lab:
        yield lab


async def test_what_a_tool_says_comes_back_as_text_value_and_pictures(lab: Lab) -> None:
    echoed = await lab.call("echo", text="hi")
    assert (echoed.ok, echoed.content, echoed.value) == (True, [TextBlock("hi")], "hi")
    structured = await lab.call("structured")
    assert (structured.content, structured.value) == ([TextBlock("three")], {"n": 3})
    assert (await lab.call("image")).content == [
        ImageBlock(source=ImageSource(data="aGk="), media_type="image/png"),
        TextBlock("inside"),
        TextBlock("b: file:///b"),
    ]


async def test_failures_are_told_apart(lab: Lab) -> None:
    failed = await lab.call("fail")
    assert (failed.ok, failed.text, refusal(failed)) == (
        False,
        "It is broken.",
        ("execution_error", "tool_reported"),
    )
    error = await lab.call("error")
    assert refusal(error) == ("execution_error", "mcp_error")
    assert error.error.details == {"server": "odd", "code": -32011}
    assert refusal(await lab.call("wrong")) == ("protocol_error", "mcp_answer")
    assert refusal(await lab.call("echo")) == ("validation_error", None)


async def test_progress_becomes_events_of_the_call(lab: Lab) -> None:
    assert (await lab.call("progress")).ok
    told = [(each["message"], each["fraction"]) for each in lab.of("tool.progress")]
    assert told == [("step 1", 0.5), ("step 2", 1.0)]


@pytest.mark.spec("S2-77")
async def test_roots_and_directory_are_those_of_the_calling_session(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = lab.other_session(other)
    roots = [json.loads((await lab.call("roots", session=each)).text) for each in (lab.session, elsewhere, lab.session)]
    assert roots == [[lab.ws.as_uri()], [other.as_uri()], [lab.ws.as_uri()]]
    assert (await lab.call("cwd", session=elsewhere)).text == str(other)


async def test_a_cancelled_call_ends_and_its_server_is_told(lab: Lab) -> None:
    hanging = asyncio.create_task(lab.call("hang"))
    await lab.seen("tool.progress")
    await lab.wired.runtime.sessions.cancel(lab.session.id)
    assert refusal(await hanging)[0] == "cancelled"
    assert (await lab.call("stopped")).text == "yes"


async def test_a_call_that_takes_too_long_ends_without_its_server(lab: Lab) -> None:
    assert refusal(await lab.call("hang", timeout_s=0.2))[0] == "timeout"
    assert (await lab.call("echo", text="still here")).text == "still here"


async def test_a_server_sees_no_secret_of_ours_but_what_the_settings_pass_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "PASSED", "OTHER"):
        monkeypatch.setenv(name, f"value of {name}")
    more = 'env = ["PASSED"]\nset_env = { SET = "${OTHER}!" }\n'
    async with Lab(tmp_path, more=more) as lab:
        seen = json.loads((await lab.call("environ")).text)
    assert {name: seen.get(name) for name in ("OPENAI_API_KEY", "PASSED", "OTHER", "SET")} == {
        "OPENAI_API_KEY": None,
        "PASSED": "value of PASSED",
        "OTHER": None,
        "SET": "value of OTHER!",
    }


@pytest.mark.parametrize("generation", [(), ("--modern",)], ids=["initialize", "discover"])
async def test_what_a_server_has_beside_tools_is_offered_as_tools(tmp_path: Path, generation: tuple[str, ...]) -> None:
    async with Lab(tmp_path, "--more", *generation) as lab:
        listed = (await lab.call("resources/list")).value
        assert [each["uri"] for each in listed["resources"]] == ["odd://a"]
        assert [each["uriTemplate"] for each in listed["resourceTemplates"]] == ["odd://{x}"]
        assert (await lab.call("resources/read", uri="odd://a")).text == "inside"
        assert (await lab.call("prompts/list")).value["prompts"] == [{"name": "greet"}]
        got = await lab.call("prompts/get", name="greet", arguments={"who": "Ada"})
        assert got.value["messages"][0]["content"]["text"] == "Greet."
        completed = await lab.call("completion", prompt="greet", argument="colour", value="g")
        assert completed.value["completion"]["values"] == ["green"]


# --- its life ---------------------------------------------------------------------------------


async def test_a_server_that_dies_under_a_call_is_told_of_and_started_again(lab: Lab) -> None:
    first = (await lab.call("pid")).text
    died = await lab.call("die")
    assert refusal(died) == ("host_unavailable", "mcp_died")
    assert died.error.details["exit_code"] == 7
    assert died.error.details["stderr"] == "I have had enough"
    assert (await lab.call("pid")).text != first


async def test_a_server_that_keeps_dying_is_given_up_until_it_is_restarted(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        for _ in range(5):
            assert refusal(await lab.call("die")) == ("host_unavailable", "mcp_died")
        assert refusal(await lab.call("echo", text="x")) == ("host_unavailable", "mcp_quarantined")
        assert lab.server.health is Health.QUARANTINED
        assert lab.wired.mcp is not None
        assert (await lab.wired.mcp.renew("odd", forget=True)).health == "resting"
        assert (await lab.call("echo", text="x")).ok


@pytest.mark.spec("T45")
async def test_nothing_of_a_server_is_left_when_the_runtime_closes(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        pids = [int((await lab.call(tool)).text) for tool in ("pid", "child")]
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []


async def test_a_server_that_never_answers_holds_up_nobody_else(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        table = f'\n[mcp.mute]\n{stdio("--mute")}effect = "read"\nstart_timeout_s = 600\n'
        with open(lab.home / "settings.toml", "a") as settings:
            settings.write(table)
        servers, place = lab.servers(), ServerLocation(str(lab.ws))
        mute = asyncio.create_task(servers.ask("mute", place))
        assert len((await servers.ask("odd", place)).schemas) > 10
        assert servers.hosts["mute"].health is Health.STARTING
        await servers.close()
        with pytest.raises(ToolHostUnavailable) as refused:
            await mute
        assert refused.value.reason == "mcp_not_started"


async def test_a_server_that_never_answers_is_waited_for_only_so_long(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        table = f'\n[mcp.mute]\n{stdio("--mute")}effect = "read"\nstart_timeout_s = 0.3\n'
        with open(lab.home / "settings.toml", "a") as settings:
            settings.write(table)
        servers = lab.servers()
        with pytest.raises(ToolHostUnavailable) as refused:
            await servers.ask("mute", ServerLocation(str(lab.ws)))
        assert refused.value.reason == "mcp_not_started"
        await servers.close()


async def test_servers_that_nobody_calls_are_not_started(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        log = lab.home / "mcp" / "odd.log"
        before = log.read_text().count("starting") if log.exists() else 0
        assert (await lab.call("nothing_of_this_name")).error is not None
        assert lab.server.health is Health.RESTING
        await lab.call("echo", text="x")
        assert log.read_text().count("starting") == before + 1
