"""A model on this machine: what is missing is said, and its server is for us alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from callgate.core.content import TextBlock
from callgate.core.models import ModelError, ModelErrorKind
from callgate.features.chat.models.make import make_model
from callgate.features.chat.settings import ModelTable
from tests.features.chat.models.asking import reply_of
from tests.models_server import ModelServer, Says

STAND_IN = '''
"""Has the face of xllamacpp that we use. Its server is elsewhere already."""
import os
from types import SimpleNamespace

started = []

class CommonParams:
    def __init__(self):
        self.model = SimpleNamespace(path="")
        self.cpuparams, self.cpuparams_batch = SimpleNamespace(), SimpleNamespace()

class Server:
    def __init__(self, params):
        if "bad" in params.model.path:
            raise RuntimeError("Failed to load " + params.model.path)
        started.append(params)
        self.listening_address = os.environ["STAND_IN_ADDRESS"]
'''


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF" + bytes(60))
    return path


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "xllamacpp.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    before = sys.modules.pop("xllamacpp", None)
    yield
    sys.modules.pop("xllamacpp", None)
    if before is not None:
        sys.modules["xllamacpp"] = before


def local(path: Path, **table: Any) -> Any:
    return make_model("here", ModelTable(kind="local", path=str(path), **table))


async def test_a_file_is_served_on_loopback_with_a_key_of_its_own(
    weights: Path, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(Says("Hi.")) as server:
        monkeypatch.setenv("STAND_IN_ADDRESS", server.origin)
        model = local(weights, context_tokens=512, threads=3)
        assert (model.native_tools, model.context_tokens, model.price) == (True, 512, None)
        reply = await reply_of(model)
        (params,) = sys.modules["xllamacpp"].started
        (request,) = server.requests
    assert reply.message.content == [TextBlock("Hi.")]
    assert (params.model.path, params.n_ctx, params.hostnames, params.port) == (str(weights), 512, ["127.0.0.1"], 0)
    assert (params.ui, params.cors_origins, params.endpoint_slots) == (False, "", False)
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (3, 3)
    (key,) = params.api_keys
    assert len(key) > 30
    assert request.headers["authorization"] == f"Bearer {key}"
    assert (request.target, request.body["model"]) == ("/v1/chat/completions", "small.gguf")


def test_a_local_model_is_a_small_one_unless_the_settings_say_otherwise(weights: Path, stand_in: None) -> None:
    assert [local(weights, small=small).small for small in (None, True, False)] == [True, True, False]


async def test_a_file_that_cannot_be_loaded_is_an_error(tmp_path: Path, stand_in: None) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelError) as caught:
        await reply_of(local(path))
    assert caught.value.kind is ModelErrorKind.REQUEST


@pytest.mark.skipif(find_spec("xllamacpp") is not None, reason="xllamacpp is installed")
def test_without_the_extra_it_is_named(weights: Path) -> None:
    with pytest.raises(ModelError) as caught:
        local(weights)
    assert "callgate[local]" in str(caught.value)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no")
    for path in (tmp_path / "text.gguf", tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError) as caught:
            local(path)
        assert caught.value.kind is ModelErrorKind.REQUEST
