"""Whoever is busy in a host, what the runtime sends is read, and by one thread at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.host.driving import PATIENCE_S, Driven

TOOLS = '''
import asyncio, threading
from callgate import ToolContext, tool

@tool(side_effects="none")
def sync() -> str:
    """Where a sync function runs."""
    return threading.current_thread().name

@tool(side_effects="none")
async def side_by_side() -> bool:
    """Whether an async function is elsewhere."""
    return threading.current_thread() is not threading.main_thread()

@tool(side_effects="none")
def block(path: str, context: ToolContext) -> str:
    """Wait in the main thread for somebody to write to a pipe."""
    context.output("begun")
    return open(path).read()

@tool(side_effects="none")
async def block_loop(path: str, context: ToolContext) -> str:
    """Wait in the loop, which no async tool should do."""
    context.output("begun")
    return open(path).read()

@tool(side_effects="none")
def let_go(path: str) -> None:
    """Write to it."""
    open(path, "w").write("gone")

@tool(side_effects="none")
async def let_go_async(path: str) -> None:
    """The same from the loop."""
    open(path, "w").write("gone")

@tool(side_effects="none")
def read(path: str, context: ToolContext) -> str:
    """A file of the workspace."""
    return context.workspace_files.read(path)

@tool(side_effects="none")
async def read_in_loop(path: str, context: ToolContext) -> str:
    """The same, holding up the loop."""
    return context.workspace_files.read(path)
'''


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Driven]:
    (tmp_path / "tools.py").write_text(TOOLS)
    os.mkfifo(tmp_path / "pipe")
    with Driven(str(tmp_path / "tools.py"), cwd=tmp_path) as driven:
        driven.init()
        yield driven


def test_each_kind_of_call_runs_where_it_belongs_whatever_came_before(host: Driven) -> None:
    kinds = ["sync", "side_by_side", "sync", "sync", "side_by_side", "side_by_side"] * 20
    expected = {"sync": "MainThread", "side_by_side": True}
    assert [host.value(each)["result"] for each in kinds] == [expected[each] for each in kinds]


def test_calls_of_both_kinds_at_once_are_all_answered(host: Driven) -> None:
    for number in range(200):
        host.run(str(number), "side_by_side" if number % 3 else "sync")
    answers = [host.next() for _ in range(200)]
    assert sorted(int(each["id"]) for each in answers) == list(range(200))
    assert {each["ok"] for each in answers} == {True}


@pytest.mark.spec("S1-10")
@pytest.mark.parametrize(
    ("blocked", "frees"), [("block", "let_go_async"), ("block_loop", "let_go")], ids=["main", "loop"]
)
def test_a_call_that_holds_up_its_thread_holds_up_no_reading(host: Driven, blocked: str, frees: str) -> None:
    host.run("1", blocked, path="pipe")
    host.part()
    host.run("2", frees, path="pipe")
    answers = [host.next(), host.next()]
    assert {each["id"]: each["result"]["value"]["result"] for each in answers} == {"1": "gone", "2": None}


@pytest.mark.parametrize("tool", ["read", "read_in_loop"])
def test_a_tool_that_waits_for_the_runtime_gets_its_answer(host: Driven, tool: str) -> None:
    for number in range(20):
        host.run("1", tool, path="a.txt")
        asked = host.next()
        host.give(asked["id"], str(number))
        assert host.next()["result"]["value"]["result"] == str(number)


@pytest.mark.spec("S1-04")
@pytest.mark.parametrize("blocked", ["block", "block_loop"])
def test_a_host_whose_runtime_is_gone_ends_whatever_it_is_doing(host: Driven, blocked: str) -> None:
    host.run("1", blocked, path="pipe")
    host.part()
    assert host.end() == 0
    assert host.process.wait(PATIENCE_S) == 0
