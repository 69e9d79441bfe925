"""The fake Ollama of the tests speaks as the real one does: an independent client accepts it."""

from __future__ import annotations

import pytest

from tests.ollama_server import OllamaServer

openai = pytest.importorskip("openai")


def test_the_openai_client_lists_streams_and_reads_the_errors_of_the_fake_ollama() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    said = [{"role": "user", "content": "Hello"}]
    with OllamaServer({"llama3": False}, "Hi there.") as server:
        client = openai.OpenAI(base_url=f"http://{server.host}/v1", api_key="ollama", max_retries=0)
        assert [each.id for each in client.models.list()] == ["llama3"]
        whole = client.chat.completions.create(model="llama3", messages=said)
        assert (whole.choices[0].message.content, whole.usage.total_tokens) == ("Hi there.", 14)
        stream = client.chat.completions.create(model="llama3", messages=said, stream=True)
        assert "".join(each.choices[0].delta.content for each in stream if each.choices) == "Hi there."
        with pytest.raises(openai.NotFoundError, match="model 'other' not found"):
            client.chat.completions.create(model="other", messages=said)
        with pytest.raises(openai.BadRequestError, match="does not support tools"):
            client.chat.completions.create(model="llama3", messages=said, tools=[tool])
