"""An MCP server that means no good, or does not know better: nobody else is harmed by it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.content import TextBlock
from callgate.core.errors import ToolHostUnavailable, ToolRegistrationError
from callgate.dispatch.tools.registry import Registry
from callgate.features.mcp.client import stdio
from callgate.features.mcp.client.definitions import Beliefs, definitions, names_of
from callgate.features.mcp.client.servers import ServerLocation
from callgate.features.mcp.client.stdio import Lines
from tests.features.mcp.client.labs import Lab, refusal

SCHEMA = {"type": "object"}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with Lab(tmp_path) as lab:
        yield lab


def entry(name: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "", "inputSchema": SCHEMA, **more}


async def still_works(lab: Lab) -> None:
    assert (await lab.call("echo", text="still here")).text == "still here"


async def test_what_is_no_message_is_passed_over_and_noted(lab: Lab) -> None:
    assert (await lab.call("noise")).text == "done"
    await still_works(lab)
    assert (lab.home / "mcp" / "odd.log").read_text().count("ignored") >= 4


@pytest.mark.spec("T34")
async def test_an_answer_counts_for_its_own_request_and_once(lab: Lab) -> None:
    assert (await lab.call("other_id")).text == "for you"
    assert (await lab.call("twice")).text == "first"
    await still_works(lab)


async def test_an_answer_of_a_hundred_megabytes_fails_its_call_alone(lab: Lab) -> None:
    assert refusal(await lab.call("huge", timeout_s=60)) == ("execution_error", "mcp_error")
    await still_works(lab)


async def test_ten_megabytes_of_complaints_leave_a_bounded_log(lab: Lab) -> None:
    assert (await lab.call("stderr")).ok
    assert len(lab.server.log.tail) <= 4_096
    logs = [path.stat().st_size for path in (lab.home / "mcp").glob("odd.log*")]
    assert sum(logs) < 3 * 1024 * 1024
    await still_works(lab)


async def test_who_floods_us_is_ended_and_its_call_is_answered(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MOST_NOISE", 5_000)
    assert refusal(await lab.call("flood", timeout_s=60)) == ("host_unavailable", "mcp_died")
    await still_works(lab)


def test_a_flood_of_progress_is_thinned_out() -> None:
    line = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n'
    assert len([*Lines().feed(line * 10_000)]) == stdio.PER_SECOND


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"jsonrpc":"2.0","id":7,"result":{"a":1,"a":2}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}',
    ],
    ids=["deep", "twice", "nan"],
)
def test_an_answer_that_can_be_read_in_two_ways_ends_its_request_with_an_error(line: bytes) -> None:
    (said,) = Lines().feed(line + b"\n")
    assert (said["id"], said["error"]["code"]) == (7, stdio.INVALID)


# --- what it lists ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries",
    [
        [entry(f"t{n}") for n in range(10_000)],
        [entry("")],
        [entry(5)],
        [entry("a b")],
        [entry("a\x1b[2J")],
        [entry("x" * 129)],
        [entry("a"), entry("a")],
    ],
    ids=["many", "empty", "number", "space", "control", "long", "twice"],
)
def test_a_list_that_cannot_be_told_apart_is_refused_as_a_whole(entries: list[Any]) -> None:
    with pytest.raises(ToolRegistrationError):
        names_of(entries, "odd")


async def test_a_server_with_far_too_many_tools_is_not_approved(tmp_path: Path) -> None:
    listed = tmp_path / "tools.json"
    listed.write_text(json.dumps([entry("one")]))
    async with Lab(tmp_path, "--file", str(listed)) as lab:
        listed.write_text(json.dumps([entry(f"t{n}") for n in range(2_000)]))
        servers = lab.servers()
        with pytest.raises(ToolHostUnavailable):
            await servers.ask("odd", ServerLocation(str(lab.ws)))
        await servers.close()
        assert refusal(await lab.call("one")) == ("host_unavailable", "mcp_not_started")


def registered(*entries: dict[str, Any], server: str = "odd") -> list[str]:
    """The tools that a registry takes, after those of a server that came first."""
    registry = Registry()
    names = []
    for name, definition in definitions([*entries], server, Beliefs()):
        tool = _tool(definition)
        try:
            names.append(registry.register(lambda tool=tool: tool()).name)
        except ToolRegistrationError:
            pass
    return names


def _tool(definition: Any) -> Any:
    class Made:
        async def execute(self, input: Any, context: Any) -> Any:
            raise NotImplementedError

        async def cancel(self) -> bool:
            return False

    Made.definition = definition
    return Made


@pytest.mark.spec("T22")
def test_tools_that_would_be_called_the_same_are_offered_once() -> None:
    assert registered(entry("a.b"), entry("a/b"), entry("A_b"), entry("ok")) == [
        "mcp__odd__a_b",
        "mcp__odd__ok",
    ]


@pytest.mark.spec("T22")
def test_no_server_stands_in_for_a_built_in_tool() -> None:
    assert registered(entry("read_file"), entry("shell")) == [
        "mcp__odd__read_file",
        "mcp__odd__shell",
    ]


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        deep(200),
        {"type": "string"},
        {},
        {"type": "object", "properties": 5},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"type": "object", "$schema": "https://example.com/mine"},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
    ],
    ids=["deep", "text", "empty", "no properties", "http", "file", "dialect", "pattern"],
)
def test_a_schema_that_cannot_be_checked_here_leaves_its_tool_out(schema: Any) -> None:
    assert registered(entry("odd", inputSchema=schema), entry("ok")) == ["mcp__odd__ok"]


@pytest.mark.spec("T22")
def test_a_description_hides_nothing_from_who_reads_it() -> None:
    hidden = entry("t", description="Adds.\u202eevil\U000e0041\x1b[8m\nNext line.")
    ((_, definition),) = definitions([hidden], "odd", Beliefs())
    assert definition.description == "Adds.\\u202eevil\\U000e0041\\x1b[8m\nNext line."


@pytest.mark.spec("T21", "T22")
def test_a_schema_hides_nothing_either_but_its_values_stay_as_they_are() -> None:
    said, value = "Adds.\U000e0041", "a\u200b"
    default = {"description": said, "enum": [value], "x-note": [{"why": said}]}
    schema = {"properties": {"default": default, value: {"default": value, "pattern": value}}}
    ((_, definition),) = definitions([entry("t", inputSchema=schema)], "odd", Beliefs())
    shown = "Adds.\\U000e0041"
    seen = {"description": shown, "enum": [value], "x-note": [{"why": shown}]}
    assert definition.input_schema == {"properties": {"default": seen, value: {"default": value, "pattern": value}}}
    ((_, definition),) = definitions([entry("t", inputSchema={"title": "a\x1b"})], "odd", Beliefs())
    assert definition.input_schema == {"title": "a\\x1b"}


async def test_an_error_text_of_a_server_is_shown_but_cut(lab: Lab) -> None:
    result = await lab.call("error")
    assert result.content == [TextBlock("No such thing.\x1b[2J")]


async def test_a_server_that_never_says_what_its_tools_are_now_can_still_be_left(
    tmp_path: Path,
) -> None:
    listing = tmp_path / "tools.json"
    listing.write_text(json.dumps([entry("echo"), entry("change")]))
    async with Lab(tmp_path, "--file", str(listing)) as lab:
        assert (await lab.call("echo", text="x")).ok
        listing.unlink()
        os.mkfifo(listing)
        assert (await lab.call("change")).ok
        asked = await asyncio.to_thread(open, listing, "w")  # it is at it, and waits for us
        async with asyncio.timeout(60):
            await lab.server.close()
        asked.close()


# --- what it says of its results ----------------------------------------------------------------


@pytest.fixture
async def results(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    """A server whose tools have this output schema."""
    listed = tmp_path / "tools.json"
    named = [entry(name, outputSchema=request.param) for name in ("structured", "matched", "pid", "fail")]
    listed.write_text(json.dumps([*named, entry("echo", inputSchema={"type": "object", "properties": {"text": {}}})]))
    async with Lab(tmp_path, "--file", str(listed)) as lab:
        yield lab


def output(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize("results", [output(text={"pattern": "^(a+)+$"})], indirect=True)
async def test_a_pattern_for_results_holds_nobody_up(results: Lab) -> None:
    assert refusal(await results.call("matched")) == ("protocol_error", "mcp_answer")
    assert (await results.call("structured")).value == {"n": 3}
    await still_works(results)


@pytest.mark.parametrize("results", [output(n={"type": "integer", "minimum": 3}, text={"type": "null"})], indirect=True)
async def test_results_are_held_to_what_the_server_says_of_them(results: Lab) -> None:
    assert (await results.call("structured")).value == {"n": 3}
    assert refusal(await results.call("matched")) == ("protocol_error", "mcp_answer")
    assert refusal(await results.call("pid")) == ("protocol_error", "mcp_answer")  # nothing structured
    assert (await results.call("fail")).text == "It is broken."
    await still_works(results)


BOMB = {
    "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(10)} | {"d10": {}},
    "$ref": "#/$defs/d0",
}


@pytest.mark.parametrize(
    "schema",
    [
        output(text={"pattern": "(?=a)b"}),
        output(text={"pattern": r"(a)\1"}),
        output(text={"pattern": "a{1,100000}"}),
        BOMB,
    ],
    ids=["look-around", "back reference", "large", "bomb"],
)
def test_a_schema_of_results_that_cannot_be_checked_leaves_its_tool_out(schema: Any) -> None:
    assert registered(entry("odd", outputSchema=schema), entry("ok")) == ["mcp__odd__ok"]
    assert registered(entry("odd", inputSchema={**schema, "type": "object"}), entry("ok")) == ["mcp__odd__ok"]
