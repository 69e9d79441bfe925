"""Calls of an MCP client: what it sees, what it hears meanwhile, and how it stops them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from callgate.core.events import OUTPUT_DELTA, PROGRESS, Event
from callgate.core.sessions import Mode
from callgate.features.mcp.server.pending_requests import MOST, Notifications, RequestStep
from tests.features.mcp.server.talks import GENERATIONS, texts, world

each_generation = pytest.mark.parametrize("generation", GENERATIONS)


@each_generation
async def test_every_tool_of_the_session_is_listed_and_no_other(tmp_path: Path, generation: str) -> None:
    async with world(tmp_path) as here, here.client(generation) as client:
        listed = [each.name for each in (await client.list_tools()).tools]
    own = [each.name for each in here.wired.runtime.tools.listed(here.session)]
    assert listed == sorted(own)
    assert "read_resource" not in listed


@each_generation
async def test_what_a_tool_can_do_is_said_of_it(tmp_path: Path, generation: str) -> None:
    async with world(tmp_path) as here, here.client(generation) as client:
        listed = (await client.list_tools()).tools
    said = {}
    for each in listed:
        assert each.annotations is not None
        hints = each.annotations
        said[each.name] = (hints.read_only_hint, hints.destructive_hint, hints.open_world_hint)
    assert said["read_file"] == (True, None, False)
    assert said["write_file"] == (False, False, False)
    assert said["delete_file"] == (False, True, False)
    assert said["shell"] == (False, True, True)
    assert said["count"] == (True, None, False)


@each_generation
async def test_an_object_is_given_as_structured_content_and_a_text_is_not_repeated(
    tmp_path: Path, generation: str
) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/a.txt").write_text("hello\n")
    async with world(tmp_path) as here, here.client(generation) as client:
        counted = await client.call_tool("count", {})
        read = await client.call_tool("read_file", {"path": "a.txt"})
    assert counted.structured_content == {"counted": 3}
    assert (texts(read), read.structured_content, read.is_error) == (["hello\n"], None, False)


@each_generation
async def test_wrong_arguments_are_told_to_the_model_and_an_unknown_tool_to_the_client(
    tmp_path: Path, generation: str
) -> None:
    async with world(tmp_path) as here, here.client(generation) as client:
        wrong = await client.call_tool("read_file", {"path": 7})
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("no_such_tool", {})
        with pytest.raises(MCPError) as hidden:
            await client.call_tool("read_resource", {"path": "a.txt"})
    assert wrong.is_error
    assert unknown.value.code == hidden.value.code == types.INVALID_PARAMS


@each_generation
async def test_progress_and_output_reach_the_client_and_always_grow(tmp_path: Path, generation: str) -> None:
    heard: asyncio.Queue[tuple[float, str | None]] = asyncio.Queue()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        await heard.put((progress, message))

    async with world(tmp_path) as here, here.client(generation) as client:
        await client.call_tool("count", {}, progress_callback=hear)
        steps = sorted([await heard.get() for _ in range(3)])
    assert [message for _, message in steps] == ["one", "two\n", "three"]
    assert len({value for value, _ in steps}) == 3


async def test_log_lines_of_a_tool_reach_its_client_from_the_level_that_it_wants(
    tmp_path: Path,
) -> None:
    heard: list[tuple[str, Any]] = []

    async def hear(params: types.LoggingMessageNotificationParams) -> None:
        heard.append((params.level, params.data))

    async with world(tmp_path) as here:
        for more in ({"log_level": "debug"}, {"log_level": "error"}, {}):
            async with here.client("2026-07-28", logging_callback=hear, **more) as client:
                await client.call_tool("count", {})
    assert heard == [("debug", "quietly"), ("warning", "loudly")]


@each_generation
async def test_a_cancelled_call_stops_its_work(tmp_path: Path, generation: str) -> None:
    async with world(tmp_path) as here, here.client(generation) as client:
        calling = asyncio.create_task(client.call_tool("wait", {}))
        await here.started.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await here.stopped.wait()


async def test_a_call_is_on_record_as_one_of_an_mcp_client(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client("legacy") as client:
        await client.call_tool("put", {"what": "it"})
    lines = (here.home / "audit.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(each["tool"], each["caller"]) for each in records] == [("put", "mcp")]


async def test_in_mode_none_nothing_is_offered_and_nothing_runs(tmp_path: Path) -> None:
    async with world(tmp_path, Mode.NONE) as here, here.client("legacy") as client:
        assert (await client.list_tools()).tools == []
        result = await client.call_tool("put", {"what": "it"})
    assert (result.is_error, here.did) == (True, [])


def _event(type: str, **payload: Any) -> Event:
    return Event(id="e", timestamp=0.0, session_id="s", type=type, actor="tool", payload=payload)


def test_a_client_that_does_not_read_is_told_how_much_it_missed() -> None:
    notifications = Notifications(lambda: None)
    for _ in range(MOST + 5):
        notifications.note(_event(PROGRESS, message="step"))
    notifications.note(_event(OUTPUT_DELTA, text="lost"))
    *steps, last = [each for each in notifications.take() if isinstance(each, RequestStep)]
    assert [each.message for each in steps] == ["step"] * MOST
    assert (last.message or "").startswith("6 events of this call were dropped")
    assert last.progress > steps[-1].progress
    notifications.note(_event(OUTPUT_DELTA, text="x" * 20_000))
    notifications.note(_event(OUTPUT_DELTA, text="y" * 1_000))
    (step,) = notifications.take()
    assert isinstance(step, RequestStep) and (step.message or "").endswith(
        f"[... {21_000 - 16_384} characters were dropped]\n"
    )
    assert not notifications.take()
