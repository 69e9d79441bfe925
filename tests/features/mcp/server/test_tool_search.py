"""A client of many tools searches for them, and calls what it found, through the same gate as any other call."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from callgate import tool
from callgate.core.sessions import Mode
from callgate.core.tools import ToolDefinition
from callgate.features.mcp.server.server import McpServer
from callgate.features.mcp.server.tool_lists import CALL, FIND, ToolIndex
from tests.features.mcp.server.talks import GENERATIONS, World, answers, texts, world
from tests.features.web.browser.instances import Served

each_generation = pytest.mark.parametrize("generation", GENERATIONS)
ABOVE = 50


def add_tools(here: World, number: int, name: str = "fetch_report") -> None:
    for count in range(number):

        @tool(name=f"{name}_{count}", side_effects="none")
        async def report(month: str, count: int = count) -> str:
            """Fetch the sales report of a month."""
            return f"{month} {count}"

        here.wired.register(report)


@asynccontextmanager
async def many(directory: Path, **options: Any) -> AsyncIterator[World]:
    async with world(directory, search_above=ABOVE, **options) as here:
        add_tools(here, ABOVE)
        yield here


async def names_of(client: Client) -> list[str]:
    return [each.name for each in (await client.list_tools()).tools]


async def found(client: Client, query: str, **more: Any) -> list[str]:
    result = await client.call_tool(FIND, {"query": query, **more})
    assert not result.is_error and result.structured_content is not None
    assert json.loads(texts(result)[0]) == result.structured_content
    return [each["name"] for each in result.structured_content["tools"]]


def records(here: World) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (here.home / "audit.jsonl").read_text().splitlines()]


@each_generation
async def test_up_to_the_limit_every_tool_is_listed(tmp_path: Path, generation: str) -> None:
    async with world(tmp_path, search_above=200) as here, here.client(generation) as client:
        listed = await names_of(client)
    assert "read_file" in listed and FIND not in listed and CALL not in listed


@each_generation
async def test_above_the_limit_two_tools_stand_for_all(tmp_path: Path, generation: str) -> None:
    async with many(tmp_path) as here, here.client(generation) as client:
        listed = (await client.list_tools()).tools
        number = len(here.wired.runtime.tools.listed(here.session))
    assert [each.name for each in listed] == [CALL, FIND]
    hints = [each.annotations for each in listed]
    assert hints[0] is not None and hints[0].destructive_hint and hints[1] is not None and hints[1].read_only_hint
    assert f"the {number} tools" in (listed[1].description or "")


async def test_without_the_setting_both_names_are_unknown(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client("legacy") as client:
        add_tools(here, ABOVE)
        assert FIND not in await names_of(client)
        for name in (FIND, CALL):
            with pytest.raises(Exception, match="Unknown tool"):
                await client.call_tool(name, {"query": "x"})


@each_generation
async def test_a_search_returns_definitions_best_first(tmp_path: Path, generation: str) -> None:
    async with many(tmp_path) as here, here.client(generation) as client:
        result = await client.call_tool(FIND, {"query": "write a file", "limit": 2})
        plain = await _whole_list(here, generation)
        assert len(await found(client, "sales report")) == 5
        assert len(await found(client, "sales report", limit=20)) == 20
        assert (await found(client, "fetch_report_31"))[0] == "fetch_report_31"
        assert await found(client, "quaternion") == []
    assert result.structured_content is not None
    best = result.structured_content["tools"][0]
    assert best == plain["write_file"].model_dump(mode="json", by_alias=True, exclude_none=True)
    assert result.structured_content["matches"] >= 2


async def _whole_list(here: World, generation: str) -> dict[str, types.Tool]:
    """The tools as a client without search gets them, by name."""
    server = McpServer(here.wired.runtime, lambda wish: here.session)
    try:
        async with Client(server.sdk, mode=generation, cache=None) as client:
            return {each.name: each for each in (await client.list_tools()).tools}
    finally:
        await server.close()


@each_generation
async def test_a_call_is_recorded_as_a_call_of_the_named_tool(tmp_path: Path, generation: str) -> None:
    async with many(tmp_path) as here, here.client(generation) as client:
        named = await client.call_tool(CALL, {"name": "fetch_report_7", "arguments": {"month": "May"}})
        written = await client.call_tool(CALL, {"name": "write_file", "arguments": {"path": "a", "content": "b"}})
        direct = await client.call_tool("fetch_report_8", {"month": "June"})
        counted = await client.call_tool(CALL, {"name": "count"})
    assert (texts(named), texts(direct)) == (["May 7"], ["June 8"])
    assert counted.structured_content == {"counted": 3}
    assert not written.is_error and (here.workspace / "a").read_text() == "b"
    kept = [(each["tool"], each["caller"], each["side_effects"]) for each in records(here) if each.get("tool")]
    assert ("write_file", "mcp", "write") in kept and not {CALL, FIND} & {name for name, _, _ in kept}


@each_generation
async def test_a_call_needs_the_approval_of_the_named_tool(tmp_path: Path, generation: str) -> None:
    seen: list[str] = []
    async with many(tmp_path, mode=Mode.ASK) as here:
        async with here.client(generation, elicitation_callback=answers("Allow once", seen)) as client:
            read = await client.call_tool(CALL, {"name": "fetch_report_1", "arguments": {"month": "May"}})
            put = await client.call_tool(CALL, {"name": "put", "arguments": {"what": "it"}})
        async with here.client(generation, elicitation_callback=answers("decline")) as client:
            refused = await client.call_tool(CALL, {"name": "put", "arguments": {"what": "no"}})
    assert (texts(read), texts(put), here.did) == (["May 1"], ["put it"], ["it"])
    assert len(seen) == 1 and "put" in seen[0] and CALL not in seen[0]
    assert refused.is_error and refused.structured_content is not None
    assert refused.structured_content["error"]["class"] == "user_denied"


@each_generation
async def test_a_mode_that_forbids_the_named_tool_refuses_it(tmp_path: Path, generation: str) -> None:
    async with many(tmp_path, mode=Mode.READ) as here, here.client(generation) as client:
        refused = await client.call_tool(CALL, {"name": "put", "arguments": {"what": "no"}})
    assert refused.is_error and here.did == []


@pytest.mark.parametrize(
    ("arguments", "error_class", "message"),
    [
        ({"name": "read_fil", "arguments": {}}, "not_found", "Did you mean 'read_file'?"),
        ({"name": "read_resource", "arguments": {"path": "a"}}, "not_found", "There is no tool 'read_resource'"),
        ({"name": "read_file", "arguments": {"path": 7}}, "validation_error", "path"),
        ({"name": "read_file", "arguments": "a"}, "validation_error", "must be an object"),
        ({"arguments": {}}, "validation_error", "needs 'name'"),
        ({"name": "read_file", "path": "a"}, "validation_error", "no parameter 'path'"),
        ({"name": CALL, "arguments": {"name": "put"}}, "not_found", "There is no tool 'call_tool'"),
    ],
    ids=["misspelt", "hidden", "wrong argument", "no object", "no name", "misplaced", "itself"],
)
async def test_a_wrong_call_is_explained_to_the_model(
    tmp_path: Path, arguments: dict[str, Any], error_class: str, message: str
) -> None:
    async with many(tmp_path) as here, here.client("legacy") as client:
        wrong = await client.call_tool(CALL, arguments)
    assert wrong.is_error and wrong.structured_content is not None
    assert wrong.structured_content["error"]["class"] == error_class
    assert message in texts(wrong)[0]


@pytest.mark.parametrize(
    "arguments", [{}, {"query": " "}, {"query": "x" * 1_001}, {"query": "x", "limit": 21}, {"query": "x", "why": 1}]
)
async def test_a_wrong_search_is_explained_to_the_model(tmp_path: Path, arguments: dict[str, Any]) -> None:
    async with many(tmp_path) as here, here.client("legacy") as client:
        wrong = await client.call_tool(FIND, arguments)
    assert wrong.is_error and wrong.structured_content is not None
    assert wrong.structured_content["error"]["class"] == "validation_error"


@each_generation
async def test_hidden_tools_are_not_found(tmp_path: Path, generation: str) -> None:
    async with many(tmp_path, mode=Mode.READ) as here, here.client(generation) as client:
        visible = {each.name for each in here.wired.runtime.tools.listed(here.session)}
        names = [name for query in ("read resource", "write file", "shell") for name in await found(client, query)]
    assert names and set(names) <= visible and "read_resource" not in names


async def test_a_client_hears_of_new_tools_and_finds_them(tmp_path: Path) -> None:
    heard = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            heard.set()

    async with many(tmp_path) as here, here.client("legacy", message_handler=hear) as client:
        assert await found(client, "quaternion") == []
        heard.clear()
        add_tools(here, 1, name="quaternion_product")
        await heard.wait()
        assert await found(client, "quaternion") == ["quaternion_product_0"]


async def test_a_tool_of_the_same_name_is_called_by_call_tool(tmp_path: Path) -> None:
    async with world(tmp_path, search_above=ABOVE) as here, here.client("legacy") as client:

        @tool(name=CALL, side_effects="none")
        async def other(number: str) -> str:
            """Call a number."""
            return f"called {number}"

        here.wired.register(other)
        few = await client.call_tool(CALL, {"number": "1"})
        add_tools(here, ABOVE)
        many_tools = await client.call_tool(CALL, {"name": CALL, "arguments": {"number": "2"}})
    assert (texts(few), texts(many_tools)) == (["called 1"], ["called 2"])


@each_generation
async def test_an_instance_searches_by_its_settings(home: Path, tmp_path: Path, generation: str) -> None:
    (home / "settings.toml").write_text("[tools]\nsearch_above = 5\n")
    served = Served(home, tmp_path / "ws")
    (tmp_path / "ws/a.txt").write_text("hello\n")
    served.start()
    try:
        async with asyncio.timeout(100), httpx2.AsyncClient(headers=served.headers, timeout=60) as http:
            transport = streamable_http_client(f"{served.url}/mcp", http_client=http)
            async with Client(transport, mode=generation, cache=None) as client:
                assert await names_of(client) == [CALL, FIND]
                assert "read_file" in await found(client, "read a file")
                read = await client.call_tool(CALL, {"name": "read_file", "arguments": {"path": "a.txt"}})
    finally:
        served.stop()
    assert texts(read) == ["hello\n"]


@pytest.mark.parametrize(
    ("setting", "words", "expected"),
    [(5, [], True), (0, ["--search-above", "5"], True), (5, ["--search-above", "0"], False)],
)
async def test_the_command_searches_by_its_setting_and_its_option(
    home: Path, tmp_path: Path, setting: int, words: list[str], expected: bool
) -> None:
    (home / "settings.toml").write_text(f"[tools]\nsearch_above = {setting}\n")
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/a.txt").write_text("hello\n")
    command = ["-m", "callgate", "mcp", "serve", "--workspace", str(tmp_path / "ws"), *words]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with asyncio.timeout(100), Client(stdio_client(server), mode="legacy") as client:
        listed = await names_of(client)
        if expected:
            assert "read_file" in await found(client, "read a file")
            read = await client.call_tool(CALL, {"name": "read_file", "arguments": {"path": "a.txt"}})
            assert texts(read) == ["hello\n"]
    assert (listed == [CALL, FIND]) is expected


def definition(name: str, description: str, *parameters: str) -> ToolDefinition:
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in parameters}}
    return ToolDefinition(name=name, description=description, input_schema=schema)


def test_the_index_prefers_names_and_rare_words_and_ignores_endings() -> None:
    index = ToolIndex(
        [
            definition("mcp__github__create_issue", "Open a new issue in a repository.", "repo", "title"),
            definition("mcp__github__list_issues", "List the issues of a repository.", "repo"),
            definition("mcp__github__mergePullRequest", "Merge a pull request in a repository.", "repo", "number"),
            definition("mcp__mail__send", "Send a message, for example about an issue.", "to", "subject"),
        ]
    )
    assert index.find("creating issues")[0] == "mcp__github__create_issue"
    assert index.find("issues")[-1] == "mcp__mail__send"
    assert index.find("merge pull requests")[0] == "mcp__github__mergePullRequest"
    assert index.find("subject") == ["mcp__mail__send"]
    assert index.find("MCP__MAIL__SEND")[0] == "mcp__mail__send"
    assert index.find("the of and") == [] == index.find("%%%")
