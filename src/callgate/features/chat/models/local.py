"""Models on this machine: a GGUF file, run by llama.cpp's server on loopback, and a local Ollama.

A GGUF file needs the extra `callgate[local]`. The server runs in this process and starts with the
first request, which waits until the file is loaded. It listens on a free port of 127.0.0.1 and
requires a generated key, so that web pages and other users cannot use it.

A model of Ollama uses its chat completions API; `ollama/llama3` needs no settings:

    no connection          -> an error with the command that starts Ollama, without retry
    404                    -> an error with the command that downloads the model
    no tool calling (400)  -> the model writes its calls as text from now on
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import msgspec

from callgate.core.models import Key, ModelError, ModelErrorKind, Piece, Price, Prompt, Retrying
from callgate.features.chat.models.openai_chat import OpenAIChatModel
from callgate.features.chat.settings import ModelTable

CONTEXT_TOKENS = 8192
_MODULE = "xllamacpp"
_MAGIC = b"GGUF"
_ERRORS_ONLY = 1


class LocalModel:
    def __init__(self, name: str, table: ModelTable) -> None:
        """Raises `ModelError` if the file or the extra is missing."""
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
            raise _unusable("an extra is missing; run: pip install 'callgate[local]'")
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
            self._server = None  # the server stops when it is garbage-collected

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
        except Exception as error:  # foreign code may raise any exception
            raise _unusable(f"llama.cpp cannot load it: {type(error).__name__}") from None


def _checked(path: str) -> str:
    try:
        with open(path, "rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        problem = error.strerror or "cannot be read"
        raise _unusable(f"the file {path!r}: {problem}") from None
    if magic != _MAGIC:
        raise _unusable(f"{path!r} is not a GGUF file")
    return path


def _unusable(problem: str) -> ModelError:
    return ModelError(ModelErrorKind.REQUEST, f"The local model cannot be used: {problem}.")


HOST_VARIABLE = "OLLAMA_HOST"
OLLAMA_CONTEXT_TOKENS = 32_768
_HOST, _PORT = "127.0.0.1", 11434
_PORTS = {"http": 80, "https": 443}
"""Ports of addresses with a scheme and without a port, as in Ollama's own client."""
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 mapped, not bound
"""Listening addresses, mapped to the address for a client on this machine."""
_NO_TOOLS = re.compile(r"does not support tools", re.IGNORECASE)
_NOT_FOUND = 404


def origin(environ: Mapping[str, str]) -> str:
    """Return the address of Ollama: `OLLAMA_HOST` in every form that Ollama accepts, or the
    default.
    """
    text = environ.get(HOST_VARIABLE, "").strip().strip("\"'").strip()
    scheme, separator, address = text.partition("://")
    if not separator:
        scheme, address = "http", text
    usual_port = _PORTS.get(scheme, _PORT) if separator else _PORT
    bare_ipv6 = address.count(":") > 1 and not address.startswith("[")
    try:
        url = urlsplit(f"//[{address}]" if bare_ipv6 else f"//{address}")
        host, port = url.hostname or _HOST, url.port or usual_port
    except ValueError:  # not an address: the request fails with an error
        return f"{scheme}://{address}"
    host = _ANY_ADDRESS.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}{url.path.rstrip('/')}"


class OllamaModel(OpenAIChatModel):
    def __init__(self, name: str, table: ModelTable) -> None:
        base_url = table.base_url or f"{origin({})}/v1"
        self._origin = base_url.removesuffix("/v1")
        context = table.context_tokens or OLLAMA_CONTEXT_TOKENS
        super().__init__(
            name, msgspec.structs.replace(table, base_url=base_url, context_tokens=context), None
        )

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        try:
            async with aclosing(super().stream(prompt)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Retrying) and piece.kind is ModelErrorKind.UNREACHABLE:
                        raise self._not_running()
                    yield piece
        except ModelError as error:
            raise self._explained(error) from None

    def _explained(self, error: ModelError) -> ModelError:
        model = self._table.model
        if error.status == _NOT_FOUND:
            return ModelError(
                ModelErrorKind.REQUEST,
                f"Ollama does not have the model {model!r}. Run: ollama pull {model}",
                status=error.status,
            )
        if self.native_tools and _NO_TOOLS.search(error.message):
            self.native_tools = False
            return ModelError(
                ModelErrorKind.NO_TOOLS,
                f"{model!r} has no tool calling, so it writes its calls as text.",
            )
        return error

    def _not_running(self) -> ModelError:
        return ModelError(
            ModelErrorKind.UNREACHABLE,
            f"Ollama does not answer at {self._origin}. Run: ollama serve"
            f" (or set {HOST_VARIABLE} to its address).",
        )
