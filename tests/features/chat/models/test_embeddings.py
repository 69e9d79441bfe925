"""Texts to vectors: what counts as an answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callgate.core.models import ModelError, ModelErrorKind
from callgate.features.chat.models.embeddings import Embeddings, read
from callgate.features.chat.settings import ModelTable
from tests.models_server import Embeds, Fails, ModelServer


def body(*rows: Any) -> bytes:
    return msgspec.json.encode({"data": rows})


def row(index: int | None, *numbers: float) -> dict[str, Any]:
    return {"embedding": numbers} if index is None else {"index": index, "embedding": numbers}


@pytest.mark.parametrize(
    ("rows", "vectors"),
    [
        ([row(0, 1, 2)], [[1, 2]]),
        ([row(1, 3, 4), row(0, 1, 2)], [[1, 2], [3, 4]]),
        ([row(None, 1.5), row(None, -2e-3)], [[1.5], [-0.002]]),
    ],
)
def test_vectors_come_in_the_order_of_their_texts(rows: list[Any], vectors: Any) -> None:
    assert read(body(*rows), len(vectors)) == vectors


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"data": null}',
        body(row(0, 1)),
        body(row(0, 1), row(1, 1), row(2, 1)),
        body(row(0, 1), row(0, 1)),
        body(row(0, 1), row(2, 1)),
        body(row(None, 1), row(0, 1)),
        body(row(0, 1), row(1, 1, 2)),
        body(row(0), row(1)),
        body(row(0, 1e308, 1e308), row(1, 1, 1)),
        body(row(0, 1), row(1, 1)).replace(b"1.0", b"NaN").replace(b"[1]", b"[NaN]"),
    ],
)
def test_anything_else_is_no_answer(answer: bytes) -> None:
    with pytest.raises(ModelError) as refused:
        read(answer, 2)
    assert refused.value.kind is ModelErrorKind.MALFORMED


async def test_a_request_is_what_servers_of_this_kind_take() -> None:
    async with ModelServer(Embeds(8)) as server:
        embeddings = Embeddings(ModelTable(kind="openai", model="m", base_url=server.url), None)
        vectors = await embeddings.embed(["a car", "cash"])
        await embeddings.close()
    (request,) = server.requests
    assert (request.target, request.body) == (
        "/v1/embeddings",
        {"model": "m", "input": ["a car", "cash"], "encoding_format": "float"},
    )
    assert vectors == [Embeds(8).vector("a car"), Embeds(8).vector("cash")]


@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (None, 2)])
async def test_a_failed_request_is_made_again_as_often_as_is_said(retries: int | None, requests: int) -> None:
    async with ModelServer(Fails(500, {})) as server:
        table = ModelTable(kind="openai", model="m", base_url=server.url, retries=1)
        embeddings = Embeddings(table, None)
        with pytest.raises(ModelError) as refused:
            await embeddings.embed(["x"], retries)
        await embeddings.close()
    assert (refused.value.kind, len(server.requests)) == (ModelErrorKind.OVERLOADED, requests)


async def test_an_answer_without_end_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.features.chat.models.embeddings._MOST_BYTES", 1_000)
    async with ModelServer(Embeds(500)) as server:
        embeddings = Embeddings(ModelTable(kind="openai", model="m", base_url=server.url), None)
        with pytest.raises(ModelError) as refused:
            await embeddings.embed(["x"])
        await embeddings.close()
    assert refused.value.kind is ModelErrorKind.MALFORMED


@pytest.mark.parametrize(
    ("status", "says", "kind", "requests"),
    [
        (500, "input (751 tokens) is too large to process", ModelErrorKind.CONTEXT, 1),
        (503, "input is too large to process", ModelErrorKind.OVERLOADED, 2),
        (500, "out of order", ModelErrorKind.OVERLOADED, 2),
    ],
)
async def test_a_text_that_is_too_long_is_not_sent_twice(
    status: int, says: str, kind: ModelErrorKind, requests: int
) -> None:
    async with ModelServer(Fails(status, {"error": {"message": says}})) as server:
        table = ModelTable(kind="openai", model="m", base_url=server.url, retries=1)
        embeddings = Embeddings(table, None)
        with pytest.raises(ModelError) as refused:
            await embeddings.embed(["x"])
        await embeddings.close()
    assert (refused.value.kind, len(server.requests)) == (kind, requests)
