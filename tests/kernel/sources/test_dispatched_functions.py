"""Functions as tools of a real dispatcher: context, wall and failures."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

from callgate.core.content import TextBlock, ToolUseBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.tools import ToolContext
from callgate.sources.functions import tool
from tests.support import Bench


@pytest.mark.spec("S4-26")
async def test_the_context_reaches_the_parameter_of_its_type(tmp_path: Any) -> None:
    @tool(side_effects="none")
    async def probe(a: int, about: ToolContext) -> list[Any]:
        assert not about.cancel_event.is_set()
        about.logger.debug("in the log of the call")
        return [a, about.session_id, about.workspace_path, about.tool_use_id]

    bench = Bench(tmp_path, probe)
    result = await bench.run("probe", {"a": 1})
    assert result.value == [1, bench.session.id, str(tmp_path), result.call_id]


async def test_no_argument_can_stand_in_for_the_context(tmp_path: Any) -> None:
    @tool(side_effects="none")
    async def probe(context: ToolContext) -> str:
        return type(context).__name__

    result = await Bench(tmp_path, probe).run("probe", {"context": "forged"})
    assert result.error.error_class is ToolErrorClass.VALIDATION_ERROR


@pytest.mark.spec("S4-01", "S4-22")
async def test_a_tool_written_in_one_place_answers_through_the_dispatcher(tmp_path: Any) -> None:
    @tool(side_effects="read")
    async def count_words(path: str, context: ToolContext) -> int:
        """Count the words of a file in the workspace."""
        return len(context.workspace_files.read(path).split())

    (tmp_path / "a.txt").write_text("one two three")
    bench = Bench(tmp_path, count_words)
    use = ToolUseBlock("x1", "count_words", {"path": "a.txt"})
    block = await bench.dispatcher.dispatch(use, bench.session)
    assert (block.content, block.is_error) == ([TextBlock("3")], False)


async def test_a_path_annotation_is_confined_like_any_path(tmp_path: Any) -> None:
    ran = False

    @tool(side_effects="read")
    async def probe(anything: pathlib.Path) -> None:
        nonlocal ran
        ran = True

    result = await Bench(tmp_path, probe).run("probe", {"anything": "../outside"})
    assert result.error.error_class is ToolErrorClass.PERMISSION_DENIED
    assert not ran


@pytest.mark.spec("S4-73")
@pytest.mark.parametrize("error", [KeyError("x"), StopIteration(), OSError("x"), SystemExit(3)])
@pytest.mark.parametrize("is_async", [True, False])
async def test_any_other_exception_ends_the_call_and_hides_its_text(
    error: BaseException, is_async: bool, tmp_path: Any
) -> None:
    async def not_sync() -> None:
        raise error

    def sync() -> None:
        raise error

    made = tool(not_sync if is_async else sync, side_effects="none", name="probe")
    async with asyncio.timeout(60):
        result = await Bench(tmp_path, made).run("probe")
    assert result.error.error_class is ToolErrorClass.EXECUTION_ERROR
    assert not result.error.user_visible
