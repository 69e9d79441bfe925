"""Asks a model against the server of `tests.models_server`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from callgate.core.content import Message
from callgate.core.models import Key, Model, Piece, Prompt, Reply
from callgate.features.chat.models.make import make_model
from callgate.features.chat.settings import ModelTable

KINDS = ("anthropic", "openai", "responses")
KEY = "sk-canary/9f8e7d6c5b4a39281706"
HELLO = Prompt(messages=[Message.text("user", "Hello.")])


def model_at(kind: Any, url: str | None, *, key: str | None = KEY, **table: Any) -> Model:
    made = ModelTable(kind=kind, model="m-1", base_url=url, **table)
    return make_model("m", made, None if key is None else Key(key))


async def pieces_of(model: Model, prompt: Prompt = HELLO) -> list[Piece]:
    try:
        async with asyncio.timeout(60), aclosing(model.stream(prompt)) as pieces:
            return [piece async for piece in pieces]
    finally:
        await model.close()


async def reply_of(model: Model, prompt: Prompt = HELLO) -> Reply:
    last = (await pieces_of(model, prompt))[-1]
    assert isinstance(last, Reply)
    return last
