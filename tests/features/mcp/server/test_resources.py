"""Resources, prompts and completion: what is offered, and what the wall keeps back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.subscriptions import ToolsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from callgate import tool
from callgate.core.sessions import Mode
from callgate.features.mcp.server import tool_lists
from callgate.features.mcp.server.server import McpServer
from tests.features.mcp.server.talks import GENERATIONS, world

each_generation = pytest.mark.parametrize("generation", GENERATIONS)


def _fill(directory: Path) -> None:
    workspace = directory / "workspace"
    (workspace / "src").mkdir(parents=True)
    (workspace / "src/a b.py").write_text("print()\n")
    (workspace / "logo.png").write_bytes(b"\x89PNG\xff")


async def _uris(client: Client) -> list[str]:
    return [str(each.uri) for each in (await client.list_resources()).resources]


@each_generation
async def test_the_files_of_the_workspace_are_listed_and_read(tmp_path: Path, generation: str) -> None:
    _fill(tmp_path)
    async with world(tmp_path) as here, here.client(generation) as client:
        uris = [each for each in await _uris(client) if each.startswith("workspace:")]
        contents = [(await client.read_resource(each)).contents[0] for each in uris]
    assert uris == ["workspace:///logo.png", "workspace:///src/a%20b.py"]
    assert [type(each) for each in contents] == [
        types.BlobResourceContents,
        types.TextResourceContents,
    ]
    assert contents[1].text == "print()\n"  # type: ignore[union-attr]


@pytest.mark.spec("T02")
@each_generation
@pytest.mark.parametrize(
    "uri",
    [
        "workspace:///../secret",
        "workspace:///..%2Fsecret",
        "workspace:////etc/passwd",
        "workspace:///link",
        "artifact:///../../secret",
        "artifact:///..%2f..%2fsecret",
    ],
)
async def test_no_resource_lies_outside_of_the_workspace(tmp_path: Path, generation: str, uri: str) -> None:
    _fill(tmp_path)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "workspace/link").symlink_to(tmp_path / "secret")
    async with world(tmp_path) as here, here.client(generation) as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
    assert "secret" not in json.dumps(refused.value.error.data).replace(json.dumps(uri), "")


@each_generation
async def test_a_resource_that_is_not_there_is_told_with_its_address(tmp_path: Path, generation: str) -> None:
    codes = {"legacy": -32002, "2026-07-28": types.INVALID_PARAMS}
    async with world(tmp_path) as here, here.client(generation) as client:
        for uri in ("workspace:///none.txt", "other://x", "transcript:///none"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            assert (refused.value.code, refused.value.error.data) == (
                codes[generation],
                {"uri": uri},
            )


async def test_in_mode_none_no_file_is_read(tmp_path: Path) -> None:
    _fill(tmp_path)
    async with world(tmp_path, Mode.NONE) as here, here.client("legacy") as client:
        with pytest.raises(MCPError):
            await client.read_resource("workspace:///logo.png")


async def test_reading_a_resource_is_on_record(tmp_path: Path) -> None:
    _fill(tmp_path)
    async with world(tmp_path) as here, here.client("legacy") as client:
        await client.read_resource("workspace:///logo.png")
    records = [json.loads(line) for line in (here.home / "audit.jsonl").read_text().splitlines()]
    assert [(each["tool"], each["caller"]) for each in records] == [("read_resource", "mcp")]


async def test_a_transcript_is_read_in_its_own_workspace_only(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client("legacy") as client:
        await client.call_tool("put", {"what": "it"})
        await here.wired.runtime.sessions.conversations.flush()
        own = f"transcript:///{here.session.id}"
        assert own in await _uris(client)
        page = (await client.read_resource(own)).contents[0]
        assert isinstance(page, types.TextResourceContents)
        assert here.session.id in page.text
        other = tmp_path / "other"
        other.mkdir()
        stranger = here.wired.session(str(other), Mode.WRITE)
        await here.wired.runtime.sessions.conversations.keep(stranger)
        with pytest.raises(MCPError):
            await client.read_resource(f"transcript:///{stranger.id}")
        assert f"transcript:///{stranger.id}" not in await _uris(client)


@each_generation
async def test_skills_are_prompts(tmp_path: Path, generation: str) -> None:
    skill = tmp_path / "home/skills/greet"
    skill.mkdir(parents=True)
    (tmp_path / "home").chmod(0o700)
    (skill / "SKILL.md").write_text("---\ndescription: Says hello.\n---\nSay hello.\n")
    async with world(tmp_path) as here, here.client(generation) as client:
        listed = [(each.name, each.description) for each in (await client.list_prompts()).prompts]
        got = await client.get_prompt("greet", {"request": "To Ann."})
        with pytest.raises(MCPError) as unknown:
            await client.get_prompt("none")
    said = got.messages[0].content
    assert listed == [("greet", "Says hello.")]
    assert isinstance(said, types.TextContent)
    assert said.text.startswith("To Ann.\n\n")
    assert said.text.rstrip().endswith("Say hello.")
    assert unknown.value.code == types.INVALID_PARAMS


@each_generation
async def test_a_path_is_completed(tmp_path: Path, generation: str) -> None:
    _fill(tmp_path)
    template = types.ResourceTemplateReference(type="ref/resource", uri="workspace:///{+path}")
    async with world(tmp_path) as here, here.client(generation) as client:
        done = await client.complete(template, {"name": "path", "value": "src/"})
    assert done.completion.values == ["src/a b.py"]


@each_generation
async def test_long_lists_come_in_pages(tmp_path: Path, generation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_lists, "PAGE", 3)
    names: list[str] = []
    async with world(tmp_path) as here, here.client(generation) as client:
        cursor = None
        while True:
            listed = await client.list_tools(cursor=cursor)
            names += [each.name for each in listed.tools]
            if (cursor := listed.next_cursor) is None:
                break
            assert len(listed.tools) == 3
        with pytest.raises(MCPError) as wrong:
            await client.list_tools(cursor="not ours")
    assert names == sorted(each.name for each in here.wired.runtime.tools.listed(here.session))
    assert wrong.value.code == types.INVALID_PARAMS


async def test_a_client_hears_of_a_file_that_it_watches(tmp_path: Path) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()

    async def hear(message: object) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            await heard.put(str(message.params.uri))

    async with world(tmp_path) as here:
        async with here.client("legacy", message_handler=hear) as client:
            with pytest.warns(MCPDeprecationWarning):
                await client.session.subscribe_resource("workspace:///b.txt")
            await client.call_tool("write_file", {"path": "a.txt", "content": "x"})
            await client.call_tool("write_file", {"path": "b.txt", "content": "x"})
            assert await heard.get() == "workspace:///b.txt"
    assert heard.empty()


async def test_a_client_that_asks_nothing_hears_that_a_tool_went(tmp_path: Path) -> None:
    heard = asyncio.Event()

    async def hear(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            heard.set()

    async with world(tmp_path) as here:
        async with here.client("legacy", message_handler=hear) as client:
            await client.list_tools()
            here.wired.registry.unregister("count")
            await heard.wait()


async def test_a_client_that_listens_hears_once_of_tools_that_came_together(
    tmp_path: Path,
) -> None:
    @tool(side_effects="none")
    async def one() -> str:
        """One."""
        return "1"

    @tool(side_effects="none")
    async def two() -> str:
        """Two."""
        return "2"

    async with world(tmp_path) as here, here.client("2026-07-28") as client:
        async with client.listen(tools_list_changed=True) as changes:
            here.wired.register(one)
            here.wired.register(two)
            assert isinstance(await anext(changes), ToolsListChanged)
            here.wired.registry.unregister("one")
            names = [each.name for each in (await client.list_tools()).tools]
            assert "two" in names and "one" not in names
            assert isinstance(await anext(changes), ToolsListChanged)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(changes)


async def test_what_nobody_offers_is_not_claimed(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        async with here.client("legacy") as client:
            said = client.server_capabilities
            assert None not in (said.tools, said.resources, said.prompts, said.completions)
        await here.server.close()
        here.server = McpServer(here.wired.runtime, lambda wish: here.session)
        async with here.client("legacy") as client:
            said = client.server_capabilities
            with pytest.raises(MCPError) as refused:
                await client.list_prompts()
    assert (said.resources, said.prompts, said.completions) == (None, None, None)
    assert (said.tools is not None, refused.value.code) == (True, types.METHOD_NOT_FOUND)
