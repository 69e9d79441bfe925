"""Texts to vectors, by any server that speaks OpenAI's `/embeddings`.

Whatever is not one vector of finite numbers for each text is no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import msgspec

from callgate.core.models import Key
from callgate.models.http import Server
from callgate.models.openai_chat import BASE_URL
from callgate.models.replies import malformed
from callgate.models.tables import ModelTable

MOST_NUMBERS = 16_384
"""Of one vector."""
_MOST_BYTES = 64 * 1024 * 1024


class _Row(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Row]


class Embeddings:
    def __init__(self, table: ModelTable, key: Key | None) -> None:
        """Raises `ModelError` where the server cannot be asked."""
        base_url = BASE_URL if table.base_url is None else table.base_url
        self._model = table.model
        self._server = Server(table, base_url, "/embeddings", key)
        self.name = f"{base_url.rstrip('/')} {table.model}"
        self.host = self._server.host

    async def embed(self, texts: Sequence[str], retries: int | None = None) -> list[list[float]]:
        """A vector for each, all of one length. Raises `ModelError`."""
        request = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        return read(await self._server.fetch(request, _MOST_BYTES, retries), len(texts))

    async def close(self) -> None:
        await self._server.close()


def read(body: bytes, count: int) -> list[list[float]]:
    """The vectors of an answer, in the order of their texts."""
    try:
        rows = msgspec.json.decode(body, type=_Answer).data
    except (ValueError, RecursionError):
        raise malformed("it has no vectors; is the address right?") from None
    if len(rows) != count:
        raise malformed(f"it has {len(rows)} vectors for {count} texts")
    vectors: list[list[float] | None] = [None] * count
    for position, row in enumerate(rows):
        index = position if row.index is None else row.index
        if not 0 <= index < count or vectors[index] is not None:
            raise malformed("it does not say which vector belongs to which text")
        vectors[index] = row.embedding
    complete = [each for each in vectors if each is not None]
    length = len(complete[0]) if complete else 0
    if not 0 < length <= MOST_NUMBERS or any(len(each) != length for each in complete):
        raise malformed("its vectors are not of one length")
    if not all(isfinite(sum(map(abs, each))) for each in complete):
        raise malformed("its vectors have numbers that are none")
    return complete
