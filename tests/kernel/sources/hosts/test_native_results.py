"""A result that a host wrote for one provider: structured for its models, text for all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.sandbox.processes.broker_client import BrokerProcess
from tests.features.chat.models.asking import KINDS, model_at
from tests.kernel.sources.hosts.test_hosts import Make
from tests.models_server import Asks, ModelServer, Says

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CONTENT: dict[str, list[dict[str, Any]]] = {
    "openai.chat_completions": [{"type": "text", "text": "seen"}, PICTURE],
    "openai.responses": [{"type": "input_text", "text": "seen"}, {"type": "input_file", "file_id": "f1"}],
    "anthropic.messages": [{"type": "text", "text": "seen"}, {"type": "document", "title": "t"}],
}
SPOKEN = {"openai": "openai.chat_completions", "responses": "openai.responses", "anthropic": "anthropic.messages"}


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    process = BrokerProcess()
    make = Make(process, tmp_path)
    yield make
    await make.close()
    process.close()


async def told(make: Make, tmp_path: Path, kind: str, format: str, content: list[Any], tool: str = "echo") -> Any:
    """What the model's server is sent as the content of the tool's result."""
    native = {"type": "provider_native_tool_result", "format": format, "content": content}
    stand = await make(config={"optional": {"format_tool_result": native}})
    replies = (Says(calls=[Asks(tool, {"text": "hi"})]), Says("Done."))
    async with ModelServer(*replies) as server:
        factories = stand.hosts.factories("plain")
        async with Gate(tmp_path, factories, mode="write", home=tmp_path / "home") as gate:
            model = model_at(kind, server.url)
            end = await gate.run("go", model=model)
            await model.close()
        assert end.stop == "end_turn"
        sent = server.requests[-1].body
    if kind == "openai":
        (result,) = [each["content"] for each in sent["messages"] if each["role"] == "tool"]
    elif kind == "responses":
        (result,) = [each["output"] for each in sent["input"] if each["type"] == "function_call_output"]
    else:
        last = sent["messages"][-1]["content"]
        (result,) = [each["content"] for each in last if each["type"] == "tool_result"]
    return result


@pytest.mark.spec("S1-40", "S1-41")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_that_speaks_the_format_gets_the_parts_as_they_are(make: Make, tmp_path: Path, kind: str) -> None:
    format = SPOKEN[kind]
    assert await told(make, tmp_path, kind, format, CONTENT[format]) == CONTENT[format]


@pytest.mark.spec("S1-42")
@pytest.mark.parametrize(("kind", "format"), [("openai", "openai.responses"), ("responses", "openai.chat_completions")])
async def test_a_model_of_another_format_gets_text(make: Make, tmp_path: Path, kind: str, format: str) -> None:
    shown = await told(make, tmp_path, kind, format, CONTENT[format][:1])
    assert shown == "seen"


@pytest.mark.parametrize(
    "part", [{"type": "no_such_part"}, {"type": ["text"]}, {"type": "text", "text": ""}, "bare", 7]
)
async def test_a_part_that_its_provider_does_not_know_becomes_text(make: Make, tmp_path: Path, part: Any) -> None:
    """Else it would refuse the conversation from then on."""
    shown = await told(make, tmp_path, "openai", "openai.chat_completions", [PICTURE, part])
    assert shown[0] == PICTURE
    assert shown[1].keys() == {"type", "text"} and shown[1]["type"] == "text" and shown[1]["text"]


async def test_a_failure_is_marked_before_its_parts(make: Make, tmp_path: Path) -> None:
    parts = CONTENT["openai.responses"]
    shown = await told(make, tmp_path, "responses", "openai.responses", parts, tool="fail")
    assert shown == [{"type": "input_text", "text": "Error:"}, *parts]


async def test_a_result_that_is_too_long_is_cut_like_any_other(make: Make, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "x" * 2_000_000}]
    shown = await told(make, tmp_path, "openai", "openai.chat_completions", parts)
    assert isinstance(shown, str) and len(shown) < 1_000_000 and "[truncated:" in shown
