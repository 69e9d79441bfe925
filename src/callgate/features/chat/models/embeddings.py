"""Embeddings of texts from any server with OpenAI's `/embeddings` endpoint.

A valid answer has one vector of finite numbers for each text. The first search that needs vectors
opens the provider of the settings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import isfinite

import msgspec

from callgate.config.home import Home
from callgate.config.schema import EmbeddingsTable
from callgate.core.models import Key, ModelError, ModelErrorKind
from callgate.features.chat.models.http import Server
from callgate.features.chat.models.make import USUAL_VARIABLES, find_key
from callgate.features.chat.models.openai_chat import BASE_URL
from callgate.features.chat.models.replies import malformed
from callgate.features.chat.settings import ModelTable

MOST_NUMBERS = 16_384
"""Maximum number of dimensions."""
_MOST_BYTES = 64 * 1024 * 1024


class _Row(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Row]


class Embeddings:
    def __init__(self, table: ModelTable, key: Key | None) -> None:
        """Raises `ModelError` if the address or the headers are invalid."""
        base_url = BASE_URL if table.base_url is None else table.base_url
        self._model = table.model
        self._server = Server(table, base_url, "/embeddings", key)
        self.name = f"{base_url.rstrip('/')} {table.model}"
        self.host = self._server.host

    async def embed(self, texts: Sequence[str], retries: int | None = None) -> list[list[float]]:
        """Return a vector for each text, all with the same length. Raises `ModelError`."""
        request = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        return read(await self._server.fetch(request, _MOST_BYTES, retries), len(texts))

    async def close(self) -> None:
        await self._server.close()


def read(body: bytes, count: int) -> list[list[float]]:
    """Return the vectors of an answer, in the order of their texts."""
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
            raise malformed("the indexes of its vectors do not match the texts")
        vectors[index] = row.embedding
    complete = [each for each in vectors if each is not None]
    length = len(complete[0]) if complete else 0
    if not 0 < length <= MOST_NUMBERS or any(len(each) != length for each in complete):
        raise malformed("its vectors differ in length")
    if not all(isfinite(sum(map(abs, each))) for each in complete):
        raise malformed("its vectors contain values that are not finite numbers")
    return complete


NAME = "embeddings"
"""The name under which `callgate keys set` stores its key."""
_RETRIES = 2
"""Retries are few: a person waits for the search, which works without vectors."""


def open_embedder(home: Home, table: EmbeddingsTable) -> Embeddings:
    """Open the embedding provider. Raises `ModelError` if the key or the address is unusable."""
    endpoint = table.endpoint.rstrip("/")
    model = ModelTable(
        kind="openai",
        model=table.model,
        # OpenAI's environment variable is used only for OpenAI's own address, the default.
        base_url=None if endpoint == BASE_URL else endpoint,
        insecure_http=table.insecure_http,
        key_env=table.key_env,
        key_command=table.key_command,
        timeout_s=table.timeout_s,
        total_timeout_s=table.refresh_s,
        retries=_RETRIES,
    )
    key = find_key(NAME, model, home, os.environ)
    if key is None and model.base_url is None:
        raise ModelError(
            ModelErrorKind.KEY,
            f"There is no key for embeddings: set {USUAL_VARIABLES[model.kind]},"
            f" or run: callgate keys set {NAME}",
        )
    return Embeddings(model, key)
