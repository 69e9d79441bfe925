"""Models of an Ollama: its address, its errors, and models without tool calling."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from callgate.core.content import Message
from callgate.core.models import ModelError, ModelErrorKind, Piece, Prompt, Reply
from callgate.core.tools import ToolDefinition
from callgate.features.chat.models.local import OllamaModel, origin
from callgate.features.chat.models.make import find_table, make_model
from callgate.features.chat.settings import ModelTable
from tests.ollama_server import OllamaServer

TOOL = ToolDefinition(name="f", description="Do it.", input_schema={"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (None, "http://127.0.0.1:11434"),
        ("", "http://127.0.0.1:11434"),
        (" 'box' ", "http://box:11434"),
        ("box:99", "http://box:99"),
        (":99", "http://127.0.0.1:99"),
        ("http://box", "http://box:80"),
        ("https://box", "https://box:443"),
        ("https://box:8443/ollama/", "https://box:8443/ollama"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:99", "http://127.0.0.1:99"),
        ("[::]:99", "http://[::1]:99"),
        ("::1", "http://[::1]:11434"),
        ("box:port", "http://box:port"),
        ("[box", "http://[box"),
    ],
)
def test_the_address_is_read_as_ollama_reads_it(value: str | None, address: str) -> None:
    assert origin({} if value is None else {"OLLAMA_HOST": value}) == address


def opened(host: str, model: str = "llama3") -> OllamaModel:
    found = make_model(*find_table(f"ollama/{model}", {}, {"OLLAMA_HOST": host}))
    assert isinstance(found, OllamaModel)
    return found


async def ask(model: OllamaModel, *tools: ToolDefinition) -> Reply:
    pieces: list[Piece] = []
    prompt = Prompt(messages=[Message.text("user", "Hello")], tools=list(tools))
    try:
        async with aclosing(model.stream(prompt)) as stream:
            pieces += [piece async for piece in stream]
    finally:
        await model.close()
    assert isinstance(pieces[-1], Reply)
    return pieces[-1]


async def test_a_model_named_on_the_spot_answers_without_a_key() -> None:
    with OllamaServer({"llama3": True}, "Hi there.") as server:
        reply = await ask(opened(server.host), TOOL)
        (request,) = server.requests
    assert reply.message == Message.text("assistant", "Hi there.")
    assert (request["model"], request["tools"][0]["function"]["name"]) == ("llama3", "f")


async def test_a_table_of_the_settings_needs_no_address() -> None:
    with OllamaServer({"qwen3:8b": True}) as server:
        tables = {"home": ModelTable(kind="ollama", model="qwen3:8b", context_tokens=9000)}
        model = make_model(*find_table("home", tables, {"OLLAMA_HOST": server.host}))
        assert isinstance(model, OllamaModel)
        assert (model.context_tokens, (await ask(model)).stop) == (9000, "end_turn")


async def test_an_ollama_that_does_not_run_is_named_at_once() -> None:
    with OllamaServer({}) as server:
        host = server.host
    with pytest.raises(ModelError) as failed:
        await ask(opened(host))
    assert failed.value.kind is ModelErrorKind.UNREACHABLE
    assert f"http://{host}" in failed.value.message and "ollama serve" in failed.value.message


async def test_a_model_that_was_not_pulled_names_the_command() -> None:
    with OllamaServer({"other": True}) as server, pytest.raises(ModelError) as failed:
        await ask(opened(server.host))
    assert (failed.value.kind, failed.value.status) == (ModelErrorKind.REQUEST, 404)
    assert "ollama pull llama3" in failed.value.message


async def test_a_model_without_tool_calling_writes_its_calls_from_then_on() -> None:
    with OllamaServer({"llama3": False}) as server:
        model = opened(server.host)
        with pytest.raises(ModelError) as failed:
            await ask(model, TOOL)
        assert (failed.value.kind, model.native_tools) == (ModelErrorKind.NO_TOOLS, False)
        assert (await ask(model)).stop == "end_turn"


def test_an_ollama_on_another_machine_needs_a_setting() -> None:
    with pytest.raises(ModelError) as failed:
        opened("192.0.2.1")
    assert "insecure_http" in failed.value.message
