"""A model on this machine: a GGUF file behind llama.cpp's own server, on loopback.

It needs the extra `callgate[local]`. The server is part of this process and starts with the
first request, which takes as long as reading the file does. It listens on a free port of
127.0.0.1 and knows a key made for it, so that no page in a browser and no other user can ask.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from callgate.core.models import Key, ModelError, ModelErrorKind, Piece, Prompt
from callgate.core.usage import Price
from callgate.models.openai_chat import OpenAIChatModel
from callgate.models.tables import ModelTable

CONTEXT_TOKENS = 8192
_MODULE = "xllamacpp"
_MAGIC = b"GGUF"
_ERRORS_ONLY = 1


class LocalModel:
    def __init__(self, name: str, table: ModelTable) -> None:
        """Raises `ModelError` where the file or the extra is missing."""
        self.name = name
        self.images = table.images is True
        self.native_tools = table.tools == "native"
        self.constrained = table.constrain is not False
        self.small = table.small is not False
        self.catalogue_names = table.names == "catalogue"
        self.context_tokens = table.context_tokens or CONTEXT_TOKENS
        self.price: Price | None = table.price
        self._table = table
        self._path = _checked(os.path.expanduser(table.path or ""))
        if find_spec(_MODULE) is None:
            raise _unusable("it needs an extra: pip install 'callgate[local]'")
        self._starting = asyncio.Lock()
        self._server: Any = None
        self._chat: OpenAIChatModel | None = None

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        chat = await self._started()
        async with aclosing(chat.stream(prompt)) as pieces:
            async for piece in pieces:
                yield piece

    async def close(self) -> None:
        async with self._starting:
            chat, self._chat = self._chat, None
            if chat is not None:
                await chat.close()
            self._server = None  # it ends when nothing refers to it any more

    async def _started(self) -> OpenAIChatModel:
        async with self._starting:
            if self._chat is None:
                key = Key(secrets.token_urlsafe(32))
                self._server = await asyncio.to_thread(self._start, key)
                table = msgspec.structs.replace(
                    self._table,
                    base_url=f"{self._server.listening_address}/v1",
                    model=self._table.model or os.path.basename(self._path),
                )
                self._chat = OpenAIChatModel(self.name, table, key)
            return self._chat

    def _start(self, key: Key) -> Any:
        xllamacpp = import_module(_MODULE)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = self._path
        parameters.model_alias = {os.path.basename(self._path)}
        parameters.n_ctx = self.context_tokens
        parameters.n_parallel = 1
        if self._table.threads is not None:
            parameters.cpuparams.n_threads = self._table.threads
            parameters.cpuparams_batch.n_threads = self._table.threads
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = 0
        parameters.api_keys = [key.reveal()]
        parameters.cors_origins = ""
        parameters.ui = False
        parameters.endpoint_slots = False
        parameters.verbosity = _ERRORS_ONLY
        try:
            return xllamacpp.Server(parameters)
        except Exception as error:  # foreign code, which raises whatever it likes
            raise _unusable(f"llama.cpp does not load it: {type(error).__name__}") from None


def _checked(path: str) -> str:
    try:
        with open(path, "rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        problem = error.strerror or "cannot be read"
        raise _unusable(f"the file {path!r}: {problem}") from None
    if magic != _MAGIC:
        raise _unusable(f"{path!r} is no GGUF file")
    return path


def _unusable(problem: str) -> ModelError:
    return ModelError(ModelErrorKind.REQUEST, f"The local model cannot be used: {problem}.")
